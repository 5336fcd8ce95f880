"""A memory of a million tokens in RAM behind a model of Qwen3-8B's shape, on one GPU: speed, time to answer, memory.

Weights are random, and so is most of what the memory holds: every block has the same valid keys and values under other
words. No figure depends on what they say. A question finds its place by its words.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import batch
import numpy as np
import torch

import everlong
import everlong.ops as ops
from everlong.bench import decoding, reading
from everlong.bench.clock import now
from everlong.frame.model_setup import attach_model
from everlong.models.attach import AttachedModel
from stages.calibrated import calibrated_memory
from stages.check import Check
from stages.random_words import Words, as_text, random_qwen3, word_tokenizer

# Qwen3-8B.
SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SMALL_SHAPE = {
    "vocab_size": 4000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
TOKENS = 1_000_000
FREE_BYTES = 25 << 30  # RAM left to others
INDEX_TOKEN_BYTES = 1500  # RAM for words, keys of the heads, and rows of pages
FRAME_BYTES = 1 << 30
HEADS_BYTES = 2 << 30  # device memory for the keys that are searched there
MOST_DEVICE_GB = 24
STREAM = 1  # the memory's stream for what was never read; the model's own stream is 0
READ_BYTES = 8 << 30  # RAM for what is read rather than made
FIRST_WORD = 1000  # the words of the questions are below it
RARE, COMMON = 6, 10  # words of a question that stand in one place only, and in many
ANSWER_TOKENS = 64
QUESTIONS = 5
RESTORE = "restore, and the best group read again"  # as recall_mode "auto" does it
SECONDS_TO_FILL = 30.0


@dataclasses.dataclass(frozen=True)
class Planted:
    """Where a question's rare words stand."""

    words: list[int]
    begin: int  # in STREAM


def run(check: Check) -> None:
    if check.small:
        torch.set_num_threads(1)  # tiny models gain nothing from a second one
    with check.case("the model is made on the device"):
        started = now(check.device)
        shape = SMALL_SHAPE if check.small else SHAPE
        model, tokenizer = random_qwen3(check.device, **shape), word_tokenizer(shape["vocab_size"])
        check.figure("making the model takes", now(check.device) - started, "s")
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        check.figure("weights", weights / 1e9, "GB")
        with_model(check, model, tokenizer)


def with_model(check: Check, model: Any, tokenizer: Any) -> None:
    config = everlong.MemoryConfig(
        frame=everlong.FrameConfig(bytes=FRAME_BYTES), search=everlong.SearchConfig(heads_device_bytes=HEADS_BYTES)
    )
    served = attach_model(model, config).keyed
    assert served is not None
    tokens = tokens_that_fit(check, served, config)
    host_bytes = tokens * (token_bytes(served, config) + INDEX_TOKEN_BYTES) + READ_BYTES
    config = config.changed(archive={"host_bytes": host_bytes})
    ram = reading.anonymous_bytes()
    with (
        calibrated_memory(served, tokenizer, config) as memory,
        everlong.MemoryModel(model, tokenizer, memory, config, pack=None) as mm,
    ):
        with check.case("new text is read"):
            read_new_text(check, mm)
        planted: list[Planted] = []
        with check.case("a memory is filled"):
            planted += fill(check, mm, tokens)
        with check.case("questions are answered"):
            ask(check, mm, planted)
        with check.case("the device holds little beside the weights"):
            sizes(check, mm, ram)
        with check.case("tokens are decoded beside transformers alone"):
            decode(check, mm)
        with check.case("rows are decoded together"):
            decode_rows(check, mm)


def token_bytes(served: AttachedModel, config: everlong.MemoryConfig) -> int:
    page = config.archive.page_tokens
    return ops.payload_bytes(page, page, served.layers, served.kv_heads, served.head_dim, config.archive.codec) // page


def tokens_that_fit(check: Check, served: AttachedModel, config: everlong.MemoryConfig) -> int:
    if check.small:
        return 4096
    room = available_bytes() - FREE_BYTES
    fit = room // (token_bytes(served, config) + INDEX_TOKEN_BYTES)
    if fit < TOKENS:
        check.tell("cut short", f"RAM has room for {fit:,} tokens, {TOKENS:,} were wanted")
    return max(config.archive.block_tokens * 2 * QUESTIONS, min(TOKENS, fit))


def available_bytes() -> int:
    """Return the RAM that nobody uses, here or in this control group."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            told = 1024 * int(line.split()[1])
            own = everlong._core.free_memory_bytes()
            return min(told, own) if own > 0 else told
    raise RuntimeError("/proc/meminfo has no MemAvailable")


# --- reading


def read_new_text(check: Check, mm: everlong.MemoryModel) -> None:
    """Read in chunks behind a full frame, beside transformers' own prefill of the same chunks over a span of that
    length.
    """
    chunk, words = reading.chunk_tokens(mm.config), Words(mm.frame.served.model.config.vocab_size, FIRST_WORD)
    first, rounds = reading.warm_up_tokens(mm.config), 1 if check.small else 3
    timed = chunk * (1 if check.small else 12)
    ids = torch.from_numpy(words.ids(first + timed).astype(np.int64))
    cache = reading.prefilled(mm.model, ids[: reading.span_tokens(mm.config)])
    reading.baseline_seconds(mm.model, cache, ids[reading.span_tokens(mm.config) : first], chunk)
    mm.frame.extend(ids[:first], "read")
    found = reading.measure(mm, cache, ids[first:], rounds)
    mm.frame.checkpoint()
    check.figure("reading new text", found.everlong_tokens_per_second, "tokens/s")
    check.figure("plain prefill of the same chunks", found.anchor_tokens_per_second, "tokens/s")
    check.figure("reading over plain prefill", found.ratio)


# --- filling


def fill(check: Check, mm: everlong.MemoryModel, tokens: int) -> list[Planted]:
    """Add blocks of random words with one payload, until there are `tokens` tokens, or time or RAM is short."""
    served, config, core = mm.frame.served.keyed, mm.config, mm.memory.core
    assert served is not None
    length = config.archive.block_tokens
    payload = random_payload(served, config, check.device)
    words = Words(mm.model.config.vocab_size, FIRST_WORD, seed=1)
    blocks = tokens // length
    places = {(1 + 2 * number) * blocks // (2 * QUESTIONS): number for number in range(QUESTIONS)}
    planted: list[Planted] = []
    started, held = time.perf_counter(), 0
    seconds = min(SECONDS_TO_FILL, check.left - 35)  # the cases that follow need this many
    for block in range(blocks):
        if (
            not check.small
            and block % 16 == 0
            and (time.perf_counter() - started > seconds or available_bytes() < FREE_BYTES)
        ):
            check.tell("filled short", f"{held:,} tokens of {tokens:,}: {time.perf_counter() - started:.0f} s went by")
            break
        ids = words.ids(length)
        if block in places:
            rare = [RARE * places[block] + word for word in range(RARE)]
            at = length // 3
            ids[at : at + RARE] = rare
            planted.append(Planted([*rare, *ids[at + RARE : at + RARE + COMMON].tolist()], held + at))
        core.blocks.append(
            stream=STREAM,
            begin=held,
            end=held + length,
            sink_tokens=0,
            source="random words",
            created_at=1.7e9 + block,
            tags=[],
            token_ids=ids,
            payload=payload,
        )
        held += length
    took = time.perf_counter() - started
    check.figure("tokens in the memory", mm.memory.stats().tokens, "tokens")
    check.figure("filling it takes", took, "s", note=f"{held * len(payload) / length / took / 1e9:.2f} GB/s")
    return planted


def random_payload(
    # Return the payload of a block: keys and values as a model might have them.
    served: AttachedModel,
    config: everlong.MemoryConfig,
    device: torch.device,
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Of a block: keys and values as a model might have them."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (served.layers, served.kv_heads, config.archive.block_tokens, served.head_dim)
    k, v = (torch.randn(shape, generator=generator, device=device, dtype=served.dtype) for _ in range(2))
    return ops.encode_kv(k, v, config.archive.page_tokens, config.archive.codec).cpu().numpy()


# --- asking


class Clock:
    """A streamer that notes when each token came."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.tokens: list[float] = []  # seconds from the start until the token was on the host
        self._puts = 0

    def put(self, _: torch.Tensor) -> None:
        if self._puts > 0:  # the prompt is put first
            self.tokens.append(time.perf_counter() - self.started)
        self._puts += 1

    def end(self) -> None:
        """Do nothing."""


class Parts:
    """Seconds of the parts of a question until its first token is there; of nested parts only the outer ones count."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.seconds: dict[str, float] = {}
        self._device, self._clock, self._within = device, clock, False

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*given: Any, **named: Any) -> Any:
            if self._within or self._clock.tokens:
                return call(*given, **named)
            started, self._within = now(self._device), True
            try:
                return call(*given, **named)
            finally:
                self._within = False
                self.seconds[part] = self.seconds.get(part, 0.0) + now(self._device) - started

        return timed_call


def ask(check: Check, mm: everlong.MemoryModel, planted: Sequence[Planted]) -> None:
    """Ask one question to warm up, then each in turn; each must bring back its own place."""
    first: list[float] = []
    rates: list[float] = []
    wholes: list[float] = []
    count = 8 if check.small else ANSWER_TOKENS
    for number, place in enumerate([planted[0], *planted]):
        if check.left < 8 and first:
            check.tell("questions", f"{len(first)} of {len(planted)}, for want of time")
            break
        clock = Clock()
        answer = mm.generate(as_text(place.words), max_new_tokens=count, remember=False, streamer=clock)
        require_found(answer, place)
        if number == 0:
            continue
        first.append(clock.tokens[0])
        rates.append((count - 1) / (clock.tokens[-1] - clock.tokens[0]))
        wholes.append(count / clock.tokens[-1])
    parts = [parts_of(mm, place) for place in planted[:3]]
    check.figure("question to first token", 1e3 * statistics.median(first), "ms")
    check.figure("decoding behind what came back", statistics.median(rates), "tokens/s")
    check.figure("whole answers, recall at each of them", statistics.median(wholes), "tokens/s", note=f"{count} tokens")
    for part in parts[0]:
        check.figure(f"of a question: {part}", 1e3 * statistics.median(one[part] for one in parts), "ms")
    check.tell("searched on the GPU: bytes, searches", mm.memory.core.index.device_use("heads"))
    check.tell("messages", mm.memory.core.index.take_messages())


def parts_of(mm: everlong.MemoryModel, place: Planted) -> dict[str, float]:
    """Ask the same question once more, waiting for the device between parts; their sum is a little above an untimed
    run.
    """
    clock = Clock()
    parts = Parts(mm.model.device, clock)
    with (
        mock.patch.object(mm.searcher, "tap", parts.timed("its first reading", mm.searcher.tap)),
        mock.patch.object(mm.searcher, "find", parts.timed("search", mm.searcher.find)),
        mock.patch.object(mm.searcher, "quotes", parts.timed("search for a quote", mm.searcher.quotes)),
        mock.patch.object(mm.frame, "bring_back", parts.timed(RESTORE, mm.frame.bring_back)),
        mock.patch.object(mm.frame, "extend", parts.timed("its second reading", mm.frame.extend)),
    ):
        mm.generate(as_text(place.words), max_new_tokens=1, remember=False, streamer=clock)
    return {**parts.seconds, "all of it, timed so": clock.tokens[0]}


def require_found(answer: everlong.Answer, place: Planted) -> None:
    rare = as_text(place.words[:RARE])
    if not any(rare in recall.text for recall in answer.recalled):
        spans = [recall.span for recall in answer.recalled]
        raise AssertionError(f"tokens {spans} came back, expected those around {place.begin}")


# --- memory, and decoding beside transformers


def sizes(check: Check, mm: everlong.MemoryModel, ram_before: int) -> None:
    check.figure("frame", mm.frame.zones.bytes.total / 1e9, "GB", wanted=f"<= {FRAME_BYTES / 1e9:.3f}")
    check.figure("host RAM of the memory", (reading.anonymous_bytes() - ram_before) / 1e9, "GB")
    stats = mm.memory.stats()
    check.tell("memory", {name: value for name, value in dataclasses.asdict(stats).items() if isinstance(value, int)})
    if not check.on_gpu:
        return
    peak = torch.cuda.max_memory_allocated(check.device) / 1e9
    check.figure("most memory of the device, by torch", peak, "GB", wanted=f"<= {MOST_DEVICE_GB}")
    check.figure("the same with what torch keeps free", torch.cuda.max_memory_reserved(check.device) / 1e9, "GB")
    free, total = torch.cuda.mem_get_info(check.device)
    check.figure("in use on the device now", (total - free) / 1e9, "GB")
    if peak > MOST_DEVICE_GB:
        raise AssertionError(f"{peak:.1f} GB, expected at most {MOST_DEVICE_GB}")


def decode(check: Check, mm: everlong.MemoryModel) -> None:
    """Decode token by token, beside transformers alone over as many slots."""
    if check.left < 8 and not check.small:
        check.tell("decoding beside transformers", "left out for want of time")
        return
    count = 4 if check.small else 32
    ids = Words(mm.model.config.vocab_size, FIRST_WORD, seed=2).ids(decoding.resident_tokens(mm) + count)
    (found,) = decoding.measure(
        [(mm.memory.stats().tokens, mm)], torch.from_numpy(ids.astype(np.int64)), count, 1 if check.small else 2
    )
    check.figure("decoding over the frame", found.everlong_tokens_per_second, "tokens/s")
    check.figure("transformers alone over as many slots", found.anchor_tokens_per_second, "tokens/s")
    check.figure("decoding over transformers alone", found.ratio)


def decode_rows(check: Check, mm: everlong.MemoryModel) -> None:
    """Decode forks of the frame, all together beside one after another. One alone may be a captured step."""
    for rows in (2,) if check.small else (8, 32):
        if check.left < 8 and not check.small:
            check.tell(f"{rows} rows", "left out for want of time")
            return
        found = batch.of_decoding(mm, rows, 2 if check.small else 8, time.perf_counter)
        check.figure(f"{rows} rows together over one after another", found["ratio"])
        if check.small and found["same"] < rows:
            raise AssertionError(f"{found['same']} of {rows} rows have the tokens that they have alone")
