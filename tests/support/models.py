"""Tiny models with random weights, of every architecture that everlong serves. No file is needed."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

WINDOW = 2048
# The config of every tiny model, unless its kind changes it.
SHAPE = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
    "eos_token_id": 256,
    "pad_token_id": None,
    "bos_token_id": None,
}

_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
# The kinds of RoPE, as `rope_parameters` of a config.
ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": _YARN,
    "proportional": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "partial": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    # 1.3 to 2 times slower for short texts, 2 to 9 times for long ones. WINDOW / 512 gives m = 1.105.
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.3 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 512,
    },
    # A table for each type of layer.
    "nested": {
        "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
ROPE["nested proportional"] = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 100000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_MIXED = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 48}
_LINEAR = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

# The transformers model type of every kind, and what its config has beside SHAPE.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),  # a window as long as any frame
    "gemma3": ("gemma3_text", _MIXED),
    # Full attention has a head_dim of its own. The last two layers use the keys of earlier layers.
    "gemma4": (
        "gemma4_text",
        {
            **_MIXED,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 257,
        },
    ),
    "gpt_oss": ("gpt_oss", {**_MIXED, **_EXPERTS}),  # attention sinks
    "phi3": ("phi3", {"original_max_position_embeddings": 512}),
    "qwen3_next": ("qwen3_next", {**_LINEAR, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "glm": ("glm", {}),  # interleaved
    "cohere": ("cohere", {}),  # interleaved, and so are its cos and sin
    "cohere2": ("cohere2", _MIXED),  # its full-attention layers are NoPE
}


def tiny_model(kind: str = "llama", rope: str = "default", seed: int = 0, **changes: Any) -> Any:
    """Make a model of KINDS with a RoPE of ROPE: fp32, in evaluation mode.

    The same seed gives the same weights. `changes` are values of the config.
    """
    model_type, own = KINDS[kind]
    torch.manual_seed(seed)
    shape = {**SHAPE, **own, "rope_parameters": copy.deepcopy(ROPE[rope]), **changes}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Freshly initialised weights give almost flat attention. Larger ones make positions and keys matter.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
            elif kind == "gemma4" and name.endswith("q_norm.weight"):
                parameter.mul_(0.25)  # it has no 1/sqrt(D), so its scores would explode
    return model.eval()


def deep_model() -> Any:
    """Make a Llama with one layer more and a long window, for learned parts that read several layers."""
    return tiny_model("llama", num_hidden_layers=4, max_position_embeddings=8192)


# Every architecture once, as (kind, rope). Models of OWN_STATE have layers that are not archived.
OWN_STATE = [
    ("gemma3", "nested"),
    ("gemma4", "nested proportional"),
    ("gpt_oss", "yarn"),
    ("qwen3_next", "partial"),
    ("qwen3_5", "partial"),
    ("cohere2", "default"),
]
ARCHITECTURES = [
    ("llama", "default"),
    ("qwen3", "yarn"),
    ("mistral", "default"),
    ("phi3", "longrope"),
    ("smollm3", "default"),
    ("glm", "partial"),
    ("cohere", "default"),
    *OWN_STATE,
]
# Every architecture, and Llama with every RoPE.
TINY_KINDS = [
    *ARCHITECTURES,
    ("llama", "llama3"),
    ("llama", "linear"),
    ("llama", "dynamic"),
    ("llama", "yarn"),
    ("llama", "proportional"),
]
