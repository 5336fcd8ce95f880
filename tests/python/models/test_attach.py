"""What everlong finds in a model, by measurement, and which models it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

import everlong
from everlong import ops
from everlong.frame.taps import QueryTap
from everlong.models import rope
from everlong.models.attach import attach, trained_window
from support import ARCHITECTURES, WINDOW, tiny_model

FRAME = 1024

# What is found in the tiny models: archived layers, those that rotate first; how many; the sliding ones.
ANATOMY = {
    "llama": ((0, 1, 2), 3, ()),
    "qwen3": ((0, 1, 2), 3, ()),
    "mistral": ((0, 1, 2), 3, ()),
    "phi3": ((0, 1, 2), 3, ()),
    "smollm3": ((0, 2, 1), 2, ()),
    "glm": ((0, 1, 2), 3, ()),
    "cohere": ((0, 1, 2), 3, ()),
    "gemma3": ((1, 3), 2, (0, 2)),
    "gemma4": ((1, 3), 2, (0, 2)),
    "gpt_oss": ((1, 3), 2, (0, 2)),
    "qwen3_next": ((1, 3), 2, ()),
    "qwen3_5": ((1, 3), 2, ()),
    "cohere2": ((1, 3), 0, (0, 2)),
}


@pytest.mark.parametrize(("kind", "table"), ARCHITECTURES)
def test_anatomy(kind: str, table: str) -> None:
    served = attach(tiny_model(kind, table), FRAME)
    assert (served.archived, served.rotated, tuple(served.sliding)) == ANATOMY[kind]
    assert (served.query_heads, served.kv_heads, served.window) == (4, 2, WINDOW)
    assert served.head_dim == (32 if kind == "gemma4" else 16)
    assert served.rope.interleaved == (kind in ("glm", "cohere"))
    assert served.first_position == (512 if kind == "phi3" else 0)
    if kind == "gemma3":
        local, full = served.sliding[0], served.rope
        assert local != full
        assert full.inv_freq[0] == 0.5  # linear, factor 2


@pytest.mark.parametrize(("kind", "table"), ARCHITECTURES)
def test_sixteen_bits_are_served(kind: str, table: str) -> None:
    """The measurement tells rounding from a wrong rotation."""
    model = tiny_model(kind, table)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    served = attach(model, FRAME)
    assert (served.archived, served.rotated, tuple(served.sliding)) == ANATOMY[kind]
    assert served.dtype == torch.bfloat16


@pytest.mark.parametrize(("kind", "table"), ARCHITECTURES)
def test_tapped_queries_are_those_of_attention(kind: str, table: str) -> None:
    """Un-rotated q of every archived layer, put at its position, is what the model's attention got."""
    seen: dict[int, torch.Tensor] = {}

    def listen(module: Any, query: Any, key: Any, value: Any, mask: Any, **arguments: Any) -> Any:
        seen[module.layer_idx] = query.detach()
        weights = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(2, 3)
        values = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
        return (weights.softmax(-1) @ values).transpose(1, 2).contiguous(), None

    AttentionInterface.register("listening", listen)
    AttentionMaskInterface.register("listening", sdpa_mask)
    model = tiny_model(kind, table)
    served = attach(model, FRAME)
    model.set_attn_implementation("listening")
    positions = torch.arange(7) + served.first_position
    with torch.no_grad(), QueryTap(served, range(served.layers)) as tap:
        model(input_ids=torch.arange(20, 27)[None], position_ids=positions[None], use_cache=False)
    for layer, index in enumerate(served.archived):
        q = tap.queries(layer).transpose(0, 1)[None] / served.score_scale(layer)  # [1, Hq, T, D]
        own = served.table(layer)
        turned, _ = ops.rerotate_kv(q, q, positions, own.inv_freq, own.attention_scaling, own.interleaved)
        assert (turned - seen[index]).abs().max() <= 1e-3 * seen[index].abs().max()


def wrong_pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rope, "INTERLEAVED_MODEL_TYPES", frozenset())
    return tiny_model("glm", "partial")


def wrong_halves(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rope, "INTERLEAVED_MODEL_TYPES", frozenset({"llama"}))
    return tiny_model()


def backwards(monkeypatch: pytest.MonkeyPatch) -> Any:
    """sin of the other sign: keys turn the other way."""
    model = tiny_model()
    model.model.rotary_emb.inv_freq.neg_()
    return model


def other_frequencies(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model()
    model.model.rotary_emb.inv_freq.mul_(1.0001)
    return model


def other_local_frequencies(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model("gemma3", "nested")
    model.model.rotary_emb.sliding_attention_inv_freq.mul_(1.0001)
    return model


def other_scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model("qwen3", "yarn")
    model.model.rotary_emb.attention_scaling *= 1.01
    return model


def cast_with_its_frequencies(monkeypatch: pytest.MonkeyPatch) -> Any:
    return tiny_model().to(torch.bfloat16)


def absolute_positions(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Beside its RoPE the model adds something for each position, as learned position embeddings do."""
    model = tiny_model()

    def add(module: Any, args: Any, kwargs: Any) -> Any:
        kwargs["hidden_states"] = args[0] + 0.1 * kwargs["position_ids"][..., None].sin()
        return (kwargs.pop("hidden_states"), *args[1:]), kwargs

    model.model.layers[0].register_forward_pre_hook(add, with_kwargs=True)
    return model


def rotary_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """cos and sin from a module that is not the decoder's `rotary_emb`, as granite_swa's."""
    model = tiny_model()
    monkeypatch.setattr(model.model, "forward", _forward_of(tiny_model().model))
    return model


def _forward_of(decoder: Any) -> Any:
    def forward(**arguments: Any) -> Any:
        return decoder(**arguments)

    return forward


def own_cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model()

    def forward(**arguments: Any) -> Any:
        raise ValueError("a cache of its own")

    monkeypatch.setattr(model, "forward", forward)
    return model


def window_everywhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    return tiny_model("mistral", sliding_window=FRAME - 1)


def linear_everywhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    return tiny_model("qwen3_next", "partial", layer_types=["linear_attention"] * 4)


def from_config(**arguments: Any) -> Callable[[pytest.MonkeyPatch], Any]:
    def make(monkeypatch: pytest.MonkeyPatch) -> Any:
        config = transformers.AutoConfig.for_model(**arguments)
        return transformers.AutoModelForCausalLM.from_config(config).eval()

    return make


SMALL_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": None,
}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (wrong_pairs, "keys of layer 0, moved by 37 positions, are off by .* half-split"),
        (wrong_halves, "keys of layer 0, moved by 37 positions, are off by .* interleaved"),
        (backwards, "keys of layer 0, moved by 37 positions, are off by"),
        (other_frequencies, "rotary embedding differs from the one its config describes"),
        (other_local_frequencies, "rotary embedding differs from the one its config describes"),
        (other_scaling, "rotary embedding differs from the one its config describes by 1.1e-02"),
        (cast_with_its_frequencies, r"frequencies were rounded, .* from_pretrained\(\.\.\., dtype"),
        (absolute_positions, "keys of layer 0, moved by 37 positions, are off by"),
        (rotary_elsewhere, "does not ask the `rotary_emb` of its decoder"),
        (own_cache, "over transformers' DynamicCache fails, ValueError: a cache of its own"),
        (window_everywhere, "a frame of at most 1023 tokens works"),
        (linear_everywhere, "no layer of full attention"),
        (
            from_config(model_type="bloom", hidden_size=32, n_head=2, n_layer=2, vocab_size=64),
            "no max_position_embeddi",
        ),
        (
            from_config(model_type="mamba", hidden_size=32, num_hidden_layers=2, vocab_size=64),
            "no max_position_embeddi",
        ),
        (from_config(model_type="gpt2", n_embd=32, n_head=2, n_layer=2, vocab_size=64), "models built like Llama"),
        (from_config(model_type="gpt_neox", **SMALL_SIZES), "no `self_attn`"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    make: Callable[[pytest.MonkeyPatch], Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(monkeypatch)
    with pytest.raises(everlong.UnsupportedModelError, match=reason):
        attach(model, min(FRAME, trained_window(model)))


def test_window_no_shorter_than_the_frame_is_full_attention() -> None:
    assert attach(tiny_model("mistral", sliding_window=FRAME), FRAME).archived == (0, 1, 2)


def test_frame_beyond_the_trained_window_is_refused() -> None:
    """It guarantees that a dynamic table is never asked to grow."""
    with pytest.raises(ValueError, match=f"trained window of {WINDOW}"):
        attach(tiny_model(rope="dynamic"), WINDOW + 1)
    assert attach(tiny_model(rope="dynamic"), WINDOW).rope == attach(tiny_model(), WINDOW).rope
