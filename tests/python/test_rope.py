"""RoPE from a config, against the model's own rotary embedding and its own rotation of a key."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from everlong import ops
from everlong.errors import UnsupportedModelError
from everlong.rope import INTERLEAVED_MODEL_TYPES, OTHER_ROTATION_MODEL_TYPES, RopeTable, rope_table

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}

# model type, its rotary embedding's class, rope_parameters, elements of a head that are rotated, attention scaling
SERVED = {
    "llama": ("llama", "LlamaRotaryEmbedding", {"rope_type": "default", "rope_theta": 1e5}, 16, 1.0),
    "llama linear": ("llama", "LlamaRotaryEmbedding", {"rope_type": "linear", "factor": 4.0}, 16, 1.0),
    "llama llama3": ("llama", "LlamaRotaryEmbedding", {"rope_type": "llama3", **LLAMA3}, 16, 1.0),
    "qwen3 yarn": (
        "qwen3",
        "Qwen3RotaryEmbedding",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        128,
        1.1386294361119891,  # 0.1 ln 4 + 1
    ),
    "mistral": ("mistral", "MistralRotaryEmbedding", {"rope_type": "default"}, 16, 1.0),
    "glm": ("glm", "GlmRotaryEmbedding", {"rope_type": "default", "partial_rotary_factor": 0.5}, 64, 1.0),
    "glm4": ("glm4", "Glm4RotaryEmbedding", {"rope_type": "default", "partial_rotary_factor": 0.5}, 64, 1.0),
    "cohere": ("cohere", "CohereRotaryEmbedding", {"rope_type": "default"}, 16, 1.0),
    "helium": ("helium", "HeliumRotaryEmbedding", {"rope_type": "default"}, 128, 1.0),
    "ernie4_5": ("ernie4_5", "Ernie4_5RotaryEmbedding", {"rope_type": "default"}, 128, 1.0),
    "phi": ("phi", "PhiRotaryEmbedding", {"rope_type": "default", "partial_rotary_factor": 0.5}, 8, 1.0),
    "stablelm": (
        "stablelm",
        "StableLmRotaryEmbedding",
        {"rope_type": "default", "partial_rotary_factor": 0.25},
        4,
        1.0,
    ),
}


def make_config(model_type: str, rope_parameters: dict[str, Any] | None) -> Any:
    parameters = rope_parameters if rope_parameters is None else {"rope_theta": 1e4, **rope_parameters}
    return AutoConfig.for_model(model_type, **SIZES, rope_parameters=parameters)


@pytest.mark.parametrize("name", sorted(SERVED))
def test_table_rotates_as_the_model_does(name: str) -> None:
    model_type, rotary_class, parameters, rotary_dim, attention_scaling = SERVED[name]
    config = make_config(model_type, parameters)
    before = config.to_dict()
    table = rope_table(config)
    assert config.to_dict() == before
    assert (table.rotary_dim, table.attention_scaling) == (rotary_dim, pytest.approx(attention_scaling, abs=1e-12))
    assert table.inv_freq.dtype == torch.float64

    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    positions = torch.tensor([0, 1, 2, 17, 300])
    rotary = getattr(modeling, rotary_class)(config)
    k = torch.randn(1, 2, 5, rotary_dim + 6, generator=torch.Generator().manual_seed(0))
    cos, sin = rotary(k, positions[None])
    turned = modeling.apply_rotary_pos_emb(k[..., :rotary_dim], k[..., :rotary_dim], cos, sin)[1]

    ours, _ = ops.rerotate_kv(k, k, positions, table.inv_freq, table.attention_scaling, table.interleaved)
    # The model computes its angle in float32: at position 300 it is off by up to 300 * 2^-24.
    torch.testing.assert_close(ours[..., :rotary_dim], turned, rtol=0, atol=1e-4)
    assert torch.equal(ours[..., rotary_dim:], k[..., rotary_dim:])
    back, _ = ops.derotate_kv(torch.cat((turned, k[..., rotary_dim:]), -1), k, cos, sin, table.interleaved)
    torch.testing.assert_close(back, k, rtol=0, atol=2e-6)


@pytest.mark.parametrize("model_type", sorted(INTERLEAVED_MODEL_TYPES))
def test_interleaved_types_turn_neighbours(model_type: str) -> None:
    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    assert modeling.rotate_half(torch.arange(4.0)).tolist() == [-1.0, 0.0, -3.0, 2.0]


@pytest.mark.parametrize(
    ("rope_parameters", "named"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}, "'longrope'"),
        ({"rope_type": "default", "mrope_section": [2, 3, 3]}, "mrope_section"),
    ],
)
def test_other_kinds_are_refused_by_name(rope_parameters: dict[str, Any], named: str) -> None:
    config = make_config("llama", None)
    config.rope_parameters = {"rope_theta": 1e4, **rope_parameters}
    with pytest.raises(UnsupportedModelError, match="default, linear, llama3, yarn work") as error:
        rope_table(config)
    assert named in str(error.value)


def test_models_that_rotate_otherwise_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_attention"):
        rope_table(AutoConfig.for_model("gemma3_text"))
    with pytest.raises(UnsupportedModelError, match="no rope_parameters"):
        rope_table(AutoConfig.for_model("gpt2"))
    with pytest.raises(UnsupportedModelError, match="in a way of its own"):
        rope_table(AutoConfig.for_model("deepseek_v3"))
    assert not OTHER_ROTATION_MODEL_TYPES & INTERLEAVED_MODEL_TYPES


def test_fingerprint_tells_tables_apart() -> None:
    table = rope_table(make_config("llama", {"rope_type": "default"}))
    frequencies = table.inv_freq.clone()
    frequencies[-1] = torch.nextafter(frequencies[-1], torch.tensor(1.0, dtype=torch.float64))
    others = [
        RopeTable(frequencies, 1.0, False),
        RopeTable(table.inv_freq, 1.0 + 2.0**-52, False),
        RopeTable(table.inv_freq, 1.0, True),
        RopeTable(table.inv_freq[:-1], 1.0, False),
    ]
    assert len({table.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    same = RopeTable(table.inv_freq.clone(), 1.0, False)
    assert same.fingerprint() == table.fingerprint()
    assert same == table
    assert hash(same) == hash(table)
    assert same != others[0]
