"""A frame's bytes: said beforehand, and never passed while it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import everlong
from everlong.frame.budget import frame_bytes
from support import ARCHITECTURES, SMALL, byte_tokenizer, random_text, tiny_model

ZONED = SMALL.changed(frame={"anchor_tokens": 4, "anchors": 4, "tombstones": 4}, search={"index": ("lexical",)})


NO_KV = ("_cache", "rope", "_tables", "_sliding_window_tensor")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors that are reachable from a cache, its layers and its snapshots."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)
    elif any(kind.__module__.startswith(("everlong", "transformers.cache")) for kind in type(value).__mro__):
        yield from tensors_in({name: inner for name, inner in vars(value).items() if name not in NO_KV})


def held(cache: Any, *more: torch.Tensor) -> int:
    """Bytes of the distinct storages behind them: a view keeps all of what it looks at."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*tensors_in(cache), *more)}
    return sum(storages.values())


class Peak:
    """The most that a cache held, with what an update makes while the old is still there."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.most = cache, held(cache)
        for layer in cache.own.layers.values():
            if hasattr(layer, "keys"):
                layer.__class__ = self._watched(type(layer))

    def _watched(self, kind: type) -> type:
        peak = self

        class Watched(kind):  # type: ignore[misc,valid-type]
            def update(self, *args: Any, **how: Any) -> Any:
                old = (self.keys, self.values) if self.is_initialized else ()
                new = super().update(*args, **how)
                peak.look(*old, *new)
                return new

        return Watched

    def look(self, *more: torch.Tensor) -> None:
        self.most = max(self.most, held(self.cache, *more))


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
@pytest.mark.parametrize("config", [SMALL, ZONED], ids=["plain", "zoned"])
def test_reading_keeps_within_what_was_said(kind: str, rope: str, config: everlong.MemoryConfig) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        need = mm.frame.zones.bytes
    exact = config.changed(frame={"bytes": need.total})
    with everlong.MemoryModel(model, tokenizer, config=exact) as mm:
        peak = Peak(mm.frame.cache)
        steps = []

        def looked_at(method: Any) -> Any:
            def look(*args: Any, **named: Any) -> Any:
                steps.append(method.__name__)
                result = method(*args, **named)
                peak.look()
                return result

            return look

        for owner, name in ((mm.frame.executor, "do"), (mm.frame.zones.anchors, "set")):
            setattr(owner, name, looked_at(getattr(owner, name)))
        for part in range(4):
            mm.read(random_text(300, seed=part))
        assert steps.count("do") > 4
        assert (steps.count("set") > 4) == (config.frame.anchor_zone_tokens > 0)
        assert mm.frame.cache.buffers.nbytes() == need.slots
        assert 0.9 * need.total <= peak.most <= need.total
        assert (need.own_layers > 0) == bool(mm.frame.cache.own)
        mm.generate("and then", max_new_tokens=3)


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    model, tokenizer = tiny_model("gemma3", "nested"), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        need = mm.frame.zones.bytes.total
    short = SMALL.changed(frame={"bytes": need - 1})
    with pytest.raises(everlong.CapacityError, match=rf"{need - 1:,}.* needs {need:,}.*frame.tokens=1,023 fits"):
        everlong.MemoryModel(model, tokenizer, config=short)
    assert everlong.MemoryModel(model, tokenizer, config=short.changed(frame={"tokens": 1023})).frame
    with pytest.raises(everlong.CapacityError, match="too little for any frame"):
        everlong.MemoryModel(model, tokenizer, config=SMALL.changed(frame={"bytes": 1000}))


def test_a_window_costs_what_it_holds() -> None:
    """gemma3 by hand: two sliding layers of 48 tokens, chunks of 64, 2 heads of 16, fp32; one of them twice."""
    with everlong.MemoryModel(tiny_model("gemma3", "nested"), byte_tokenizer(), config=SMALL) as mm:
        need = frame_bytes(mm.frame.served, SMALL)
    assert need.own_layers == 3 * (47 + 64) * 2 * 2 * 16 * 4
    assert need.slots == 1024 * (2 * 2 * 2 * 16 * 4 + 2 * 8 * 4)
    assert need.long_lived == 8 * (2 * 2 * 2 * 16 * 4 + 2 * 8 * 4)
