"""RoPE from a config, against the model's own rotary embedding and its own rotation of a key, in fp64."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import AutoConfig

from everlong import ops
from everlong.errors import UnsupportedModelError
from everlong.models.releases import rotary_positions
from everlong.models.rope import (
    INTERLEAVED_MODEL_TYPES,
    KINDS,
    NO_ROPE,
    OTHER_ROTATION_MODEL_TYPES,
    RopeTable,
    first_position,
    rope_table,
    table_tokens,
    turn_keys,
)
from support.examples import examples

WINDOW = 8192
ORIGINAL = 1024
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
    "pad_token_id": None,
}
SCALED = {"factor": 8.0, "original_max_position_embeddings": ORIGINAL}
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": SCALED,  # m = 0.1 ln 8 + 1
    "llama3": {**SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {
        **SCALED,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    },
    "proportional": {"partial_rotary_factor": 0.5},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model's own rotary embedding, and what the table of its config should be."""

    model_type: str
    rotary: str  # its class
    kind: str = "default"
    partial: float = 1.0
    layer_type: str | None = None
    frame_tokens: int = ORIGINAL

    def __str__(self) -> str:
        return f"{self.model_type}-{self.kind}-{self.partial}-{self.layer_type}-{self.frame_tokens}"

    def config(self) -> Any:
        parameters = {"rope_type": self.kind, "rope_theta": 1e4, **PARAMETERS[self.kind]}
        if self.partial != 1.0:
            parameters["partial_rotary_factor"] = self.partial
            for name in ("short_factor", "long_factor"):
                if name in parameters:
                    parameters[name] = parameters[name][: int(8 * self.partial)]
        changes: dict[str, Any] = {"rope_parameters": parameters}
        if self.layer_type is not None:
            other = {"rope_type": "default", "rope_theta": 77.0}
            names = ("full_attention", "sliding_attention")
            changes["rope_parameters"] = {name: parameters if name == self.layer_type else other for name in names}
            changes["layer_types"] = ["sliding_attention", "full_attention"] * 3
        if self.kind == "longrope":
            changes["original_max_position_embeddings"] = ORIGINAL
        return AutoConfig.for_model(self.model_type, **SIZES, **changes)

    def modeling(self) -> Any:
        file = self.model_type.removesuffix("_text")
        return importlib.import_module(f"transformers.models.{file}.modeling_{file}")

    def model_table(self) -> tuple[torch.Tensor, float]:
        """inv_freq and attention scaling that the model itself uses for a text of `frame_tokens`."""
        rotary = getattr(self.modeling(), self.rotary)(self.config())
        layer_type = () if self.layer_type is None else (self.layer_type,)
        positions = torch.tensor([[self.frame_tokens - 1]])
        rotary(torch.zeros(1), rotary_positions(rotary, positions), *layer_type)
        prefix = "" if self.layer_type is None else f"{self.layer_type}_"
        return getattr(rotary, f"{prefix}inv_freq").double(), getattr(rotary, f"{prefix}attention_scaling")

    def phases(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's cos, sin [1, T, ...] at any position, in fp64, in its own layout."""
        inv_freq, scaling = self.model_table()
        angles = positions.double()[None, :, None] * inv_freq
        if self.model_type.startswith("cohere"):
            angles = angles.repeat_interleave(2, dim=-1)
        elif self.model_type != "gpt_oss":
            angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * scaling, angles.sin() * scaling

    def rotated(self, k: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The model's own rotation of k [B, H, T, D], in fp64."""
        cos, sin = self.phases(positions)
        rotary_dim = 2 * self.model_table()[0].numel()
        k = k.double()
        turned = self.modeling().apply_rotary_pos_emb(k[..., :rotary_dim], k[..., :rotary_dim], cos, sin)[1]
        return torch.cat((turned, k[..., rotary_dim:]), dim=-1)


CASES = [
    *(Case("llama", "LlamaRotaryEmbedding", kind) for kind in KINDS),
    *(Case("glm", "GlmRotaryEmbedding", kind, partial=0.5) for kind in KINDS if kind != "proportional"),
    *(Case("cohere", "CohereRotaryEmbedding", kind) for kind in KINDS),
    *(
        Case("gemma3_text", "Gemma3RotaryEmbedding", kind, layer_type="full_attention")
        for kind in KINDS
        if kind != "yarn"
    ),
    Case("gemma3_text", "Gemma3RotaryEmbedding", "linear", layer_type="sliding_attention"),
    Case("llama", "LlamaRotaryEmbedding", "longrope", frame_tokens=ORIGINAL + 1),
    Case("phi3", "Phi3RotaryEmbedding", "longrope", partial=0.5, frame_tokens=WINDOW),
    Case("phi3", "Phi3RotaryEmbedding", "longrope", frame_tokens=ORIGINAL),
    Case("llama", "LlamaRotaryEmbedding", "dynamic", frame_tokens=WINDOW),
    Case("gpt_oss", "GptOssRotaryEmbedding", "yarn"),
    Case("smollm3", "SmolLM3RotaryEmbedding", "yarn"),
    Case("mistral", "MistralRotaryEmbedding"),
    Case("qwen3", "Qwen3RotaryEmbedding", "yarn"),
    Case("qwen3_next", "Qwen3NextRotaryEmbedding", partial=0.25),
    Case("qwen3_5_text", "Qwen3_5TextRotaryEmbedding", partial=0.25),
    Case("glm4", "Glm4RotaryEmbedding", partial=0.5),
    Case("cohere2", "Cohere2RotaryEmbedding"),
    Case("helium", "HeliumRotaryEmbedding"),
    Case("ernie4_5", "Ernie4_5RotaryEmbedding"),
    Case("phi", "PhiRotaryEmbedding", partial=0.5),
    Case("stablelm", "StableLmRotaryEmbedding", partial=0.25),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_table_is_the_models_own(case: Case) -> None:
    config = case.config()
    before = config.to_dict()
    table = rope_table(config, case.layer_type, case.frame_tokens)
    assert config.to_dict() == before
    inv_freq, scaling = case.model_table()
    assert torch.equal(table.inv_freq, inv_freq)
    assert table.attention_scaling == pytest.approx(scaling, abs=1e-12)
    assert table.interleaved == (case.model_type in INTERLEAVED_MODEL_TYPES)


def test_cases_cover_what_they_should() -> None:
    tables = [(case, rope_table(case.config(), case.layer_type, case.frame_tokens)) for case in CASES]
    assert {case.kind for case, _ in tables} == set(KINDS) == set(PARAMETERS)
    for interleaved in (False, True):
        own = [table for _, table in tables if table.interleaved == interleaved]
        assert {table.rotary_dim for table in own} >= {8, 16}
        assert {table.attention_scaling for table in own} > {1.0}


def test_longrope_chooses_by_the_frame() -> None:
    """Short factors up to the original window; beyond it the long ones, at positions where the model uses them too."""
    config = Case("phi3", "Phi3RotaryEmbedding", "longrope").config()
    short, long = (rope_table(config, frame_tokens=tokens) for tokens in (ORIGINAL, ORIGINAL + 1))
    assert short == rope_table(config)
    assert (short.inv_freq[1:] > long.inv_freq[1:]).all()
    assert (first_position(config, ORIGINAL), first_position(config, ORIGINAL + 1)) == (0, ORIGINAL)
    assert (table_tokens(config, ORIGINAL), table_tokens(config, ORIGINAL + 1)) == (ORIGINAL, WINDOW)
    yarn = Case("llama", "LlamaRotaryEmbedding", "yarn").config()
    assert (first_position(yarn, WINDOW), table_tokens(yarn, 1)) == (0, WINDOW)


POSITION = st.one_of(st.integers(0, 10_000_000), st.integers(0, 100), st.integers(9_999_900, 10_000_000))


def ulp_of_pairs(k: torch.Tensor, table: RopeTable) -> torch.Tensor:
    """The distance of neighbouring bf16 numbers at the length of the pair that an element of k [..., D] is in.

    A rotation rounds at the size of its pair: an element that cancels to almost nothing has that error too.
    """
    size = k.double().abs().clone()
    rotary = size[..., : table.rotary_dim]
    half = table.rotary_dim // 2
    pairs = rotary.unflatten(-1, (half, 2)) if table.interleaved else rotary.unflatten(-1, (2, half))
    dim = -1 if table.interleaved else -2
    rotary.copy_(pairs.norm(dim=dim, keepdim=True).expand(pairs.shape).flatten(-2))
    return 2.0 ** (torch.frexp(size).exponent.double() - 8)


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(
    case=st.sampled_from(CASES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    positions=st.lists(st.tuples(POSITION, POSITION), min_size=1, max_size=6),
    padding=st.integers(0, 5),
    transposed=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_off_and_on_again_is_the_models_own_rotation(
    case: Case,
    dtype: torch.dtype,
    shape: tuple[int, int],
    positions: list[tuple[int, int]],
    padding: int,
    transposed: bool,
    seed: int,
) -> None:
    """K at p, un-rotated, is k; put at q it is the model's K at q: 2e-6 in fp32, 1 ulp in bf16."""
    table = rope_table(case.config(), case.layer_type, case.frame_tokens)
    at, to = (torch.tensor(column) for column in zip(*positions, strict=True))
    tokens, dim = len(positions), max(16, table.rotary_dim) + padding
    sizes = (shape[0], tokens, shape[1], dim) if transposed else (*shape, tokens, dim)
    k = torch.rand(sizes, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1).to(dtype)
    k = k.transpose(1, 2) if transposed else k
    cos, sin = case.phases(at)
    if case.model_type == "gpt_oss":  # its cos and sin are half as wide: the op wants both numbers of a pair
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)

    def check(got: torch.Tensor, expected: torch.Tensor) -> None:
        error = (got.double() - expected).abs()
        limit = ulp_of_pairs(expected, table) if dtype == torch.bfloat16 else torch.tensor(2e-6)
        assert bool((error <= limit).all()), f"{float(error.max())}"

    def put(un_rotated: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        scaling, interleaved = table.attention_scaling, table.interleaved
        return ops.rerotate_kv(un_rotated, un_rotated, where, table.inv_freq, scaling, interleaved)[0]

    def take_off(keys: torch.Tensor) -> torch.Tensor:
        return ops.derotate_kv(keys, keys, cos, sin, table.interleaved)[0]

    # On: the model's own rotation.
    check(put(k, at), case.rotated(k, at))
    # Off: its inverse, which is the rotation by -p; both carry m.
    held = case.rotated(k, at).to(dtype)  # a key as the frame holds it
    un_rotated = case.rotated(held, -at)
    un_rotated[..., : table.rotary_dim] /= table.attention_scaling**2
    check(take_off(held), un_rotated)
    # Off and on again, there or elsewhere; in between the key is fp32, as in `archive_kv`.
    check(put(take_off(held.float()), at).to(dtype), held.double())
    elsewhere = case.rotated(un_rotated, to)
    check(put(take_off(held.float()), to).to(dtype), elsewhere)
    turned = [turn_keys(held[:, :, t : t + 1], table, int(to[t] - at[t])) for t in range(tokens)]
    check(torch.cat(turned, dim=2), elsewhere)


def test_layers_without_positions_stay_as_they_are() -> None:
    k = torch.randn(1, 2, 3, 16)
    assert torch.equal(turn_keys(k, NO_ROPE, 1000), k)
    config = AutoConfig.for_model("gemma3_text", **SIZES)
    config.rope_parameters = {"full_attention": None, "sliding_attention": config.rope_parameters["sliding_attention"]}
    assert rope_table(config, "full_attention") == NO_ROPE


@pytest.mark.parametrize("model_type", sorted(INTERLEAVED_MODEL_TYPES))
def test_interleaved_types_turn_neighbours(model_type: str) -> None:
    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    assert modeling.rotate_half(torch.arange(4.0)).tolist() == [-1.0, 0.0, -3.0, 2.0]


def test_models_that_rotate_otherwise_are_refused() -> None:
    config = Case("llama", "LlamaRotaryEmbedding").config()
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(UnsupportedModelError, match=r"'spiral'; default, linear, .* work"):
        rope_table(config)
    with pytest.raises(UnsupportedModelError, match="no rope_parameters"):
        rope_table(AutoConfig.for_model("gpt2"))
    with pytest.raises(UnsupportedModelError, match="in a way of its own"):
        rope_table(AutoConfig.for_model("deepseek_v3"))
    with pytest.raises(UnsupportedModelError, match="no RoPE for layers of the type 'other'"):
        rope_table(AutoConfig.for_model("gemma3_text"), "other")
    assert not OTHER_ROTATION_MODEL_TYPES & INTERLEAVED_MODEL_TYPES


def test_fingerprint_tells_tables_apart() -> None:
    table = rope_table(Case("llama", "LlamaRotaryEmbedding").config())
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
