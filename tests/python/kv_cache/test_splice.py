"""The short form of the doctor, which every model passes before it gets a memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import everlong
from everlong import ops
from everlong.kv_cache import splice
from everlong.kv_cache.splice import require_splice, splice_error
from everlong.models.attach import attach
from support import ARCHITECTURES, SMALL, TINY_KINDS, byte_tokenizer, tiny_model


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
@pytest.mark.parametrize("frame_tokens", [384, 1024])  # short and long factors of a longrope model
def test_every_architecture_reads_on_exactly(kind: str, rope: str, frame_tokens: int) -> None:
    assert splice_error(attach(tiny_model(kind, rope), frame_tokens)) < 1e-3


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_another_text_than_the_archived_one_is_found(kind: str, rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ops.archive_kv

    def other_text(k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return archive(k.roll(1, dims=0), v.roll(1, dims=0).flip(2), *rest, **named)

    served = attach(tiny_model(kind, rope), 384)
    monkeypatch.setattr(ops, "archive_kv", other_text)
    assert splice_error(served) > 0.5


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_rounding_is_no_mistake(kind: str, rope: str) -> None:
    model = tiny_model(kind, rope)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    model.config.dtype = torch.bfloat16
    assert splice_error(attach(model, 384)) < 0.5


def test_a_model_that_does_not_read_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention looks at less than its cache holds, which no short forward over its keys shows."""
    model = tiny_model()
    update = everlong.kv_cache.cache.ResidentLayer.update

    def newest_only(layer: Any, *args: Any, **how: Any) -> Any:
        return tuple(x[:, :, -args[0].shape[-2] :] for x in update(layer, *args, **how))

    with monkeypatch.context() as broken:
        broken.setattr(everlong.kv_cache.cache.ResidentLayer, "update", newest_only)
        broken.setattr(everlong.kv_cache.cache.ResidentLayer, "get_mask_sizes", lambda layer, length: (length, 0))
        with pytest.raises(everlong.UnsupportedModelError, match="were archived and moved"):
            everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        assert mm.generate("and then", max_new_tokens=2).tokens == 2


def test_a_model_is_asked_once_for_each_way_that_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(splice, "splice_error", lambda served: asked.append(served.first_position) or 0.0)
    model = tiny_model("phi3", "longrope")
    for frame_tokens in (384, 384, 1024, 1024):
        require_splice(attach(model, frame_tokens))
    assert asked == [0, 512]
    model.set_attn_implementation("eager")
    require_splice(attach(model, 384))
    assert asked == [0, 512, 0]


def test_hooks_are_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    served = attach(tiny_model(), 384)
    splice_error(served)
    assert not served.rotary._forward_hooks
    monkeypatch.setattr(splice, "_forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        splice_error(served)
    assert not served.rotary._forward_hooks
