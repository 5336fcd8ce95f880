"""The time to an answer's first token where nothing of the memory is in RAM, and how what comes back arrives.

The system drops what it holds of the memory's payload before each question. Then the question is read for its queries,
searched by, and read again behind what came back. What comes back arrives layer by layer, beside the forward that reads
the best passage again; or, for comparison, all of it before that forward.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everlong.bench.clock import now
from everlong.frame.kv_frame import KvFrame
from everlong.generation.memory_model import MemoryModel
from everlong.kv_cache.page_loading import LoadTiming
from everlong.text.prompt import build_prompt

_QUESTION_TOKENS = 16
_AT_ONCE = 1 << 62  # bytes of all layers together


@dataclasses.dataclass(frozen=True)
class FirstToken:
    """Milliseconds to a first token, and what they went to."""

    total: float
    queries: float  # the question's first forward
    search: float
    disk: float  # what waited for the disk while pages came back
    decoding: float  # of them
    again: float  # the forward of the best passage
    question: float  # the question's second forward


@dataclasses.dataclass(frozen=True)
class Cold:
    """Medians over the rounds."""

    tokens: int  # held by the memory
    bytes: int  # that came back from the disk
    by_layer: FirstToken
    at_once: FirstToken
    warm: FirstToken  # by layer, with the system's cache as it is
    arrived: tuple[LoadTiming, ...]  # of the last question, layer by layer


def drop_page_cache(memory: Path) -> None:
    """Drop the system's cache of the payload of a memory in a folder, as far as the system heeds it.

    Its other files are left alone: to close one of them here would end SQLite's locks.
    """
    for file in (memory / "segments").iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(mm: MemoryModel, folder: Path, rounds: int) -> Cold:
    """Ask a calibrated memory in a folder, which keeps nothing in RAM (`archive.host_bytes` 0), in three ways in turn.

    The questions are in words of what was read first.
    """
    assert isinstance(mm.frame, KvFrame)
    pages = mm.frame.zones.pages
    part_bytes, ends = pages.part_bytes, mm.frame.os.rolling[0]
    times: Mapping[str, list[FirstToken]] = {"by layer": [], "at once": [], "warm": []}
    arrived: Sequence[LoadTiming] = ()
    for number in range(-1, rounds):  # the first one warms up
        begin = (number % rounds + 1) * ends // (rounds + 2)
        ids = mm.memory.core.blocks.token_ids(0, begin, begin + _QUESTION_TOKENS).astype(np.int64)
        question = mm.tokenizer.decode(ids.tolist())
        for way, of_way in times.items():
            if way != "warm":
                drop_page_cache(folder)
            pages.part_bytes = _AT_ONCE if way == "at once" else part_bytes
            asked = _first_token(mm, question)
            if number >= 0:
                of_way.append(asked)
            arrived = pages.arrived if way == "by layer" else arrived
    pages.part_bytes = part_bytes
    return Cold(
        mm.memory.stats().tokens,
        sum(part.bytes for part in arrived),
        by_layer=_median(times["by layer"]),
        at_once=_median(times["at once"]),
        warm=_median(times["warm"]),
        arrived=tuple(arrived),
    )


def _first_token(mm: MemoryModel, question: str) -> FirstToken:
    frame, searcher, device = mm.frame, mm.searcher, mm.model.device
    assert isinstance(frame, KvFrame)
    prompt = build_prompt(mm.tokenizer, question)
    with frame.branch(traced=False):
        begun = now(device)
        tapped = searcher.tap(prompt)
        queries = now(device)
        found = searcher.find(prompt, tapped=tapped).chosen(mm.config.search.decisive)
        offers = found.in_frame_order(mm.config.answer.order, mm.config.answer.recalled_temperature)
        searched = now(device)
        frame.begin_prompt()
        frame.bring_back(offers)
        back = now(device)
        frame.extend(prompt.ids, "prompt").argmax()
        ended = now(device)
    arrived = frame.zones.pages.arrived
    disk = decoding = free = 0.0
    for part in arrived:
        disk += part.read - max(part.needed, free)
        decoding += part.written - part.read
        free = part.written
    again = back - searched - disk - decoding
    split = (ended - begun, queries - begun, searched - queries, disk, decoding, again, ended - back)
    return FirstToken(*(1e3 * seconds for seconds in split))


def _median(of: Sequence[FirstToken]) -> FirstToken:
    names = [field.name for field in dataclasses.fields(FirstToken)]
    medians: dict[str, Any] = {name: statistics.median(getattr(one, name) for one in of) for name in names}
    return FirstToken(**medians)
