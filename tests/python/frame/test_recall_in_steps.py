"""What comes back is read again chunk by chunk: in between other frames compute, and it may be given up."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from everlong import MemoryModel
from everlong.errors import MemoryBusyError
from everlong.frame.offers import offers_of
from support import SMALL, byte_tokenizer, next_logits, random_text, tiny_model

TEXT = random_text(1500)


@contextlib.contextmanager
def opened(model: Any, mode: str = "text") -> Iterator[MemoryModel]:
    with MemoryModel(model, byte_tokenizer(), config=SMALL.changed(answer={"recall_mode": mode})) as mm:
        mm.read(TEXT, source="book")
        yield mm


def bringing(mm: MemoryModel) -> Generator[None]:
    pages = [page for page in mm.memory.core.blocks.pages() if page.end <= 240]
    return mm.frame.bring_back_in_steps(offers_of(pages, "named", (), ()))


@pytest.mark.parametrize("mode", ["text", "kv"])
def test_it_is_the_same_whatever_is_computed_in_between(mode: str) -> None:
    model = tiny_model()
    with opened(model, mode) as one, opened(model, mode) as other, opened(model, mode) as beside:
        steps = 0
        for _ in bringing(one):
            steps += 1
            beside.generate("Who?", max_new_tokens=3)
        chunks = -(-one.frame.os.recalled_tokens // SMALL.frame.chunk_tokens)
        assert chunks > 2
        assert steps == (chunks - 1 if mode == "text" else 0)
        for _ in bringing(other):
            pass
        assert one.frame.os.recalled_tokens == other.frame.os.recalled_tokens
        assert torch.equal(next_logits(one, "so"), next_logits(other, "so"))


def test_nobody_else_begins_a_step_meanwhile() -> None:
    with opened(tiny_model()) as mm:
        steps = bringing(mm)
        next(steps)
        with pytest.raises(MemoryBusyError):
            mm.frame.clear_recalled()
        for _ in steps:
            pass
        mm.frame.clear_recalled()


@pytest.mark.parametrize("taken", [1, 2])
def test_who_gives_it_up_leaves_the_zone_empty(taken: int) -> None:
    model = tiny_model()
    with opened(model) as mm, opened(model) as fresh:
        steps = bringing(mm)
        for _ in range(taken):
            next(steps)
        steps.close()
        assert mm.frame.os.recalled_tokens == 0
        assert torch.equal(next_logits(mm, "so"), next_logits(fresh, "so"))
        for one in (mm, fresh):
            for _ in bringing(one):
                pass
        assert torch.equal(next_logits(mm, "so"), next_logits(fresh, "so"))


def test_a_chunk_that_fails_leaves_it_empty_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    with opened(model) as mm, opened(model) as fresh:
        steps = bringing(mm)
        next(steps)

        def fails(*given: Any, **named: Any) -> None:
            raise RuntimeError("the device is gone")

        with monkeypatch.context() as patched:
            patched.setattr(mm.frame.zones.computing, "forward_at", fails)
            with pytest.raises(RuntimeError, match="the device is gone"):
                next(steps)
        assert mm.frame.os.recalled_tokens == 0
        assert torch.equal(next_logits(mm, "so"), next_logits(fresh, "so"))
