"""What goes wrong on the way: a memory that refuses a block, Ctrl-C, a model that fails. Nothing wrong is stored."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
import everlong._core as _core
from everlong.text.encoding import decode_text
from support import SMALL, byte_tokenizer, changed, next_logits, random_text, tiny_model
from support.native import Written, manifest
from support.transfer import store_beside

TEXT = random_text(2000)


@pytest.fixture(params=["at once", "beside"], autouse=True)
def storing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are stored at once, as on a CPU, or beside the next chunk's forward, as on a GPU."""
    store_beside(monkeypatch, request.param == "beside")


def open_model(folder: Path | None = None, kind: str = "llama", **config: Any) -> everlong.MemoryModel:
    settings = changed(SMALL, **config)
    return everlong.MemoryModel(tiny_model(kind), byte_tokenizer(), folder, config=settings)


def on_append(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None], *, before: bool) -> None:
    """Have `do` run before or after the block of that number, counted from 0, is archived."""
    append, seen = _core.Blocks.append, []

    def append_and(blocks: _core.Blocks, **block: Any) -> int:
        seen.append(block["begin"])
        if before and len(seen) - 1 == number:
            do()
        made = append(blocks, **block)
        if not before and len(seen) - 1 == number:
            do()
        return made

    monkeypatch.setattr(_core.Blocks, "append", append_and)


def refuse() -> None:
    raise everlong.CapacityError("the memory is full")


def stored(mm: everlong.MemoryModel, first: int = 0) -> dict[tuple[int, int], tuple[str, list[np.ndarray[Any, Any]]]]:
    """Text and keys of every page from token `first` on."""
    core = mm.memory.core
    return {
        (page.begin, page.end): (
            decode_text(mm.tokenizer, core.blocks.token_ids(0, page.begin, page.end).tolist()),
            [core.blocks.read_keys(page, layer) for layer in range(mm.frame.served.layers)],
        )
        for page in core.blocks.pages()
        if page.begin >= first
    }


@pytest.mark.parametrize("before", [True, False])
def test_only_the_block_that_is_refused_is_missing(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """Against a memory model that read the same and was refused nothing; the text against the text itself."""
    with monkeypatch.context() as patched, open_model() as mm:
        on_append(patched, 6, refuse, before=before)
        with pytest.raises(everlong.CapacityError):
            mm.read(TEXT, source="book")
        end = mm.stream_tokens
        assert 6 * SMALL.archive.block_tokens < end < len(TEXT)
        assert {block.source for block in mm.memory.blocks()} == {"book"}
        kept = stored(mm)
        for (first, last), (text, _) in kept.items():
            assert text == TEXT[first:last]
        missing = SMALL.archive.block_tokens if before else 0
        assert sum(last - first for first, last in kept) == end - missing

        assert mm.memory.forget(source="book") > 0
        report = mm.read(TEXT, source="book")
        assert (report.tokens, report.resumed_tokens) == (len(TEXT), 0)
        again, logits = stored(mm), next_logits(mm, "and so on")
        assert mm.perplexity(TEXT[:40]).tokens == 39
    with open_model() as twin:
        twin.read(TEXT[:end], source="book")
        for span, (_, keys) in stored(twin).items():
            if span in kept:
                assert all(np.array_equal(ours, theirs) for ours, theirs in zip(kept[span][1], keys, strict=True))
    with open_model() as anew:  # nothing of what was forgotten stands before it
        anew.read(TEXT, source="again")
        expected = stored(anew)
        assert torch.equal(next_logits(anew, "and so on"), logits)
    assert again.keys() == expected.keys()
    for span, (text, keys) in again.items():
        assert text == expected[span][0]
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(keys, expected[span][1], strict=True))


def test_a_full_memory_in_ram_goes_on_when_there_is_room_again() -> None:
    with open_model(host_bytes=1_000_000) as mm:
        with pytest.raises(everlong.CapacityError):
            mm.read(random_text(20_000, seed=3), source="too long")
        assert all(block.source == "too long" for block in mm.memory.blocks())
        mm.memory.forget(source="too long")
        mm.memory.compact()
        mm.read(TEXT[:600], source="short")
        held = "".join(text for text, _ in stored(mm).values())
        assert held == TEXT[:600]


def test_a_refused_block_leaves_a_memory_that_can_be_opened_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched, open_model(tmp_path / "m") as mm:
        on_append(patched, 3, refuse, before=True)
        with pytest.raises(everlong.CapacityError):
            mm.read(TEXT, source="book")
    with open_model(tmp_path / "m") as mm:
        mm.read("and on it goes", source="more")
        assert all(text in TEXT + "and on it goes" for text, _ in stored(mm).values())
        assert TEXT[300:330] in mm.recall(TEXT[300:330])[0].text


def test_ctrl_c_while_a_block_is_archived_waits_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model() as mm:
        with monkeypatch.context() as patched:
            on_append(patched, 3, lambda: signal.raise_signal(signal.SIGINT), before=False)
            with pytest.raises(KeyboardInterrupt):
                mm.frame.extend(mm.encode(TEXT), "read")
        mm.frame.extend(mm.encode(TEXT[mm.stream_tokens :]), "read")
        mm.frame.end_of_text()
        ours = stored(mm)
    with open_model() as twin:
        twin.frame.extend(twin.encode(TEXT), "read")
        twin.frame.end_of_text()
        expected = stored(twin)
    assert ours.keys() == expected.keys()
    for span, (text, keys) in ours.items():
        assert text == TEXT[slice(*span)]
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(keys, expected[span][1], strict=True))


def test_a_second_ctrl_c_in_the_same_step_stores_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with open_model() as mm:
        with monkeypatch.context() as patched:
            on_append(patched, 3, twice, before=False)
            with pytest.raises(KeyboardInterrupt):
                mm.read(TEXT, source="book")
        mm.memory.forget(source="book")
        mm.read(TEXT, source="book")
        begin = min(first for first, _ in stored(mm))
        assert all(text == TEXT[first - begin : last - begin] for (first, last), (text, _) in stored(mm).items())


@pytest.mark.parametrize("remember", [True, False])
def test_ctrl_c_within_an_answer_ends_it_between_two_tokens(remember: bool) -> None:
    """Whatever the model was at: afterwards all is as after an answer of as many tokens."""
    questions = [TEXT[300:330], TEXT[900:930]]
    with open_model(draft_tokens=0) as mm:
        mm.read(TEXT, source="book")
        passed = []

        def interrupt(*_: object) -> None:
            passed.append(1)
            if len(passed) == 6:
                signal.raise_signal(signal.SIGINT)

        hook = mm.model.model.layers[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            mm.generate(questions[0], max_new_tokens=50, recall=False, remember=remember)
        hook.remove()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        said = mm.stream_tokens - len(TEXT)
        assert said == (len(questions[0]) + 5 if remember else 0)
        ours = mm.generate(questions[1], max_new_tokens=20), stored(mm), next_logits(mm, "so")
    with open_model(draft_tokens=0) as twin:
        twin.read(TEXT, source="book")
        if remember:
            twin.generate(questions[0], max_new_tokens=5, recall=False)
        expected = twin.generate(questions[1], max_new_tokens=20), stored(twin), next_logits(twin, "so")
    assert ours[0] == expected[0]
    assert torch.equal(ours[2], expected[2])
    assert ours[1].keys() == expected[1].keys()
    for span, (text, keys) in ours[1].items():
        assert text == expected[1][span][0]
        assert all(np.array_equal(a, b) for a, b in zip(keys, expected[1][span][1], strict=True))


def fail_in(
    model: Any, layer: int, call: int, error: type[RuntimeError] = RuntimeError
) -> torch.utils.hooks.RemovableHandle:
    passed = []

    def fail(*_: object) -> None:
        passed.append(1)
        if len(passed) == call:
            raise error("out of memory")

    handle: torch.utils.hooks.RemovableHandle = model.model.layers[layer].register_forward_hook(fail)
    return handle


@pytest.mark.parametrize(
    ("raised", "told"),
    [(RuntimeError, RuntimeError), (torch.OutOfMemoryError, everlong.DeviceMemoryError)],
)
def test_a_forward_that_fails_leaves_full_attention_as_it_was(
    raised: type[RuntimeError], told: type[RuntimeError]
) -> None:
    with open_model() as mm, open_model() as twin:
        hook = fail_in(mm.model, 1, call=10, error=raised)
        with pytest.raises(told, match="out of memory"):
            mm.read(TEXT, source="book")
        hook.remove()
        read = mm.stream_tokens
        assert {block.source for block in mm.memory.blocks()} == {"book"}
        assert "".join(text for text, _ in stored(mm).values()) == TEXT[:read]
        twin.read(TEXT[:read], source="book")
        assert torch.equal(next_logits(mm, "and so on"), next_logits(twin, "and so on"))


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5"])
def test_a_forward_that_fails_half_way_breaks_a_frame_with_states_of_its_own(kind: str, tmp_path: Path) -> None:
    def open_mixed() -> everlong.MemoryModel:
        rope = "nested" if kind == "gemma3" else "partial"
        return everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), tmp_path / "m", config=SMALL)

    with open_mixed() as mm:
        mm.read(TEXT[:900], source="book")
        expected = next_logits(mm, "and so on")
    with open_mixed() as mm:
        hook = fail_in(mm.model, 1, call=1)
        with pytest.raises(RuntimeError, match="out of memory"):
            mm.generate("lost", remember=False)
        assert torch.allclose(next_logits(mm, "and so on"), expected, atol=1e-5)
        hook.remove()
        hook = fail_in(mm.model, 1, call=1)
        with pytest.raises(RuntimeError, match="out of memory"):
            mm.read("lost", source="lost")
        hook.remove()
        for call in (
            lambda: mm.read("more"),
            lambda: mm.generate("more"),
            lambda: list(mm.stream("more")),
            lambda: mm.recall("more"),
            lambda: mm.perplexity("more"),
            lambda: mm.signal("summarize"),
            mm.frame.checkpoint,
        ):
            with pytest.raises(everlong.BrokenFrameError, match="then make another"):
                call()
        assert mm.memory.blocks(source="lost") == []
    with open_mixed() as mm:
        assert mm.stream_tokens == 900
        assert torch.allclose(next_logits(mm, "and so on"), expected, atol=1e-5)


def test_an_open_memory_is_gone_on_with_by_one_at_a_time(tmp_path: Path) -> None:
    open_model(tmp_path / "m").close()
    with everlong.Memory.open(tmp_path / "m") as memory:
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, SMALL) as mm:
            mm.read(TEXT[:900], source="book")
            with pytest.raises(everlong.MemoryBusyError, match="close that one first"):
                everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, SMALL)
            mm.read(TEXT[900:1200], source="book")
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, SMALL) as mm:
            assert mm.stream_tokens == 1200


def test_what_was_archived_in_ram_outlives_a_broken_frame(tmp_path: Path) -> None:
    """As the error says: close the one that broke, make another over the same memory, as in a folder."""
    for folder in (None, tmp_path / "m"):
        mm = everlong.MemoryModel(tiny_model("qwen3_5", "partial"), byte_tokenizer(), folder, SMALL)
        mm.read(TEXT[:900], source="book")
        hook = fail_in(mm.model, 1, call=1)
        with pytest.raises(RuntimeError, match="out of memory"):
            mm.read("lost")
        hook.remove()
        mm.close()
        again = everlong.MemoryModel(mm.model, byte_tokenizer(), folder or mm.memory, SMALL)
        assert again.stream_tokens == 900
        assert again.read("more").tokens == 4
        again.close()
        mm.memory.close()


def test_a_block_that_cannot_be_stored_is_told_by_close(tmp_path: Path) -> None:
    """The disk takes no more while the last block is stored, and nobody flushes."""
    rng = np.random.default_rng(3)
    memory = everlong.Memory.open(tmp_path / "m", create=manifest())
    Written(rng, 0, 0, 10, "").append_to(memory.core)
    memory.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        Written(rng, 0, 10, 10, "").append_to(memory.core)
        with pytest.raises(everlong.MemoryIOError):
            memory.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with everlong.Memory.open(tmp_path / "m") as again:
        assert [block.span for block in again.blocks()] == [(0, 10)]
