"""Whether payload travels beside what computes, and where the host waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import everlong
from everlong.frame.kv_frame import KvFrame
from everlong.frame.model_setup import attach_model
from stages.calibrated import calibrated_memory
from stages.check import Check
from stages.random_words import Words, as_text, random_qwen3, word_tokenizer
from stages.timeline import READS_A_NUMBER, WAITS, Activity, Timeline, places_that_wait, watched

# A copy of at least this size is of pages or of a block; tables, scores and the index's keys are smaller.
PAYLOAD_BYTES = 4 << 20
LAYER_BYTES = 1 << 20  # likewise of some layers of the pages that a question brings back
CHUNKS = 4
TOKENS = 8
WARMS = 3  # questions before the watched one, whose words, pages and kernels are then no longer new


def run(check: Check) -> None:
    if check.small:
        torch.set_num_threads(1)  # tiny models gain nothing from a second one
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    # The layers of an 8B model, with chunks so long that the device, not the host, takes the time.
    middle = {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 8, "head_dim": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = everlong.MemoryConfig()
    if not check.small:
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
        config = config.changed(
            frame={"tokens": 8192, "chunk_tokens": 4096, "rolling_tokens": 2048}, archive={"block_tokens": 2048}
        )
    words = 2000 if check.small else 32000
    model = random_qwen3(check.device, vocab_size=words, **heads, **(small if check.small else middle))
    tokenizer = word_tokenizer(words)
    served = attach_model(model, config).keyed
    assert served is not None
    with (
        calibrated_memory(served, tokenizer, config) as memory,
        everlong.MemoryModel(model, tokenizer, memory, config, pack=None) as mm,
    ):
        work = Work(mm, words, first_chunks=4)
        work.warm_up()
        idle = watched(lambda: None, check.device)  # what the profiler itself waits for
        read = watched(work.read, check.device)
        work.ask(1)
        check.tell("how the last question's pages arrived, in ms since its recall", arrived(mm))
        asked = watched(lambda: work.ask(1), check.device)
        answered = watched(lambda: work.ask(1 + TOKENS), check.device)
        if check.on_gpu:
            streams(check, "archived spans", "DtoH", read, PAYLOAD_BYTES)
            streams(check, "recalled pages", "HtoD", asked, LAYER_BYTES)
        for name, seen, before, count in (
            ("a chunk that is read", read, idle, CHUNKS),
            ("a question", asked, idle, 1),
            ("a token that is decoded", answered, asked, TOKENS),
        ):
            waits(check, name, seen, before, count)
        if check.on_gpu:
            where(check, work)


class Work:
    """What is done again and again with one memory."""

    def __init__(self, mm: everlong.MemoryModel, words: int, first_chunks: int) -> None:
        self._mm = mm
        self._words = Words(words, first=100)
        self._text = self._words.ids(first_chunks * mm.config.frame.chunk_tokens)
        self._at = 0

    def warm_up(self) -> None:
        """Read until the frame is full, and each kernel has run."""
        self._mm.read(as_text(self._text.tolist()))
        self.read()
        for tokens in (2,) * WARMS:
            self.ask(tokens)

    def read(self) -> None:
        self._mm.read(self._words.text(CHUNKS * self._mm.config.frame.chunk_tokens))

    def ask(self, tokens: int) -> None:
        """Ask with words of another place each time."""
        self._at = (self._at + 331) % (len(self._text) // 2)
        question = as_text(self._text[self._at : self._at + 16].tolist())
        answer = self._mm.generate(question, max_new_tokens=tokens, remember=False)
        if answer.tokens != tokens or not answer.recalled:
            raise AssertionError(f"{answer.tokens} tokens behind {len(answer.recalled)} groups, expected {tokens}")


def arrived(mm: everlong.MemoryModel) -> dict[str, str]:
    """Return when the host came to each part of the layers, and when it went on."""
    assert isinstance(mm.frame, KvFrame)
    return {
        f"layers {part.first_layer} to {part.last_layer}": f"{1e3 * part.needed:.1f} to {1e3 * part.written:.1f}"
        for part in mm.frame.zones.pages.arrived
    }


def streams(check: Check, what: str, direction: str, seen: Timeline, least: int) -> None:
    """Check that payload has a stream of its own, from or to pinned memory, in copies of at least so many bytes."""
    copies = seen.copies_of(direction, least)
    with check.case(f"{what} travel beside the stream that computes, by pinned memory"):
        if not seen.kernels:
            raise AssertionError("the profiler saw no kernel")
        check.tell(f"copies of {what}", told(copies))
        check.tell(f"other copies while there were {what}", told(set(seen.copies) - set(copies)))
        if not copies:
            raise AssertionError(f"no copy {direction} of at least {least} bytes")
        wrong = [copy for copy in copies if copy.stream == seen.compute_stream or not copy.pinned]
        if wrong:
            raise AssertionError(f"{len(wrong)} of {len(copies)}, on stream {seen.compute_stream}: {told(wrong)}")
        megabytes = sum(copy.bytes for copy in copies) / 1e6
        seconds = sum(copy.end - copy.begin for copy in copies) / 1e6
        check.figure(f"{what}: copied", megabytes, "MB")
        check.figure(f"{what}: copies take", 1e3 * seconds, "ms")
        check.figure(f"{what}: rate of the copies", megabytes / 1e3 / seconds, "GB/s")
        check.figure(f"{what}: share of the copies' time in which a kernel ran", seen.share_hidden(copies))


def told(copies: Any) -> dict[str, int]:
    """Return the number of copies by kind and stream."""
    counted: dict[str, int] = {}
    copy: Activity
    for copy in copies:
        key = f"{copy.name}, stream {copy.stream}"
        counted[key] = counted.get(key, 0) + 1
    return counted


def waits(check: Check, name: str, seen: Timeline, before: Timeline, count: int) -> None:
    """Note how often the host waits for one of `count`, beyond what was seen `before`."""
    for call in (*WAITS, READS_A_NUMBER):
        number = (seen.calls[call] - before.calls[call]) / count
        if number != 0 or call == READS_A_NUMBER:
            check.figure(f"{name}: {call}", number, "calls")
    if check.on_gpu:
        check.figure(f"{name}: copies by pageable memory", (seen.pageable - before.pageable) / count, "copies")
        for call in ("cudaMalloc", "cudaHostAlloc", "cudaFree"):
            if number := (seen.calls[call] - before.calls[call]) / count:
                check.figure(f"{name}: {call}", number, "calls")


def where(check: Check, work: Work) -> None:
    """Note the lines of Python in which torch waits, for each kind of work."""
    kinds: dict[str, Callable[[], None]] = {
        f"a text of {CHUNKS} chunks": work.read,
        "a question and its first token": lambda: work.ask(1),
        f"a question and {1 + TOKENS} tokens": lambda: work.ask(1 + TOKENS),
    }
    for name, one in kinds.items():
        check.tell(f"where torch waits for {name}", places_that_wait(one))
