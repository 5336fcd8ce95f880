"""What a question costs beside its own forward passes: search and restore, by how much the memory holds.

Search is the attention mass of the retrieval heads over every archived token, BM25 over every page, their fusion, and
the groups. Restore is the groups' pages, read from the memory (on disk, through the page cache), decoded, rotated and
written into the frame. The run has three anchors. One is a plain read of as many bytes as the search scans. One is the
question's forward pass, which any way of answering pays. One is the forward pass of the best group, which
`answer.recall_mode` "auto" (the default) reads again instead of restoring it. All figures are medians.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

import numpy as np
import torch

from everlong.bench.clock import now
from everlong.generation.memory_model import MemoryModel
from everlong.retrieval.question_states import TappedQuestion
from everlong.retrieval.recall import SearchOutcome
from everlong.retrieval.search import search
from everlong.text.prompt import Prompt

QUESTION_TOKENS = 16
_TOKENS_ASKED_OF = 4000  # token of the stream, in the middle of what is read before a memory is grown


@dataclasses.dataclass(frozen=True)
class QuestionCost:
    tokens: int  # held by the memory
    search_ms: float
    restore_ms: float
    restored_tokens: int
    scanned_bytes: int
    plain_read_ms: float  # of scanned_bytes, summed by torch
    question_ms: float  # one forward pass of the question, of which there are two
    again_ms: float  # how much longer the best group's forward pass takes than restoring it


def median_ms(work: Callable[[], object], rounds: int, device: torch.device) -> float:
    """Return the median of `rounds` calls."""
    seconds = []
    for _ in range(rounds):
        started = now(device)
        work()
        seconds.append(now(device) - started)
    return 1e3 * statistics.median(seconds)


def measure(mm: MemoryModel, tokens: int, rounds: int) -> QuestionCost:
    """Measure one question to a calibrated memory that holds `tokens`."""
    frame, profile, device = mm.frame, mm.profile, mm.model.device
    assert profile is not None
    # A question in the words of the middle of the book, so that pages share words with it.
    core = mm.memory.core
    begin = min(_TOKENS_ASKED_OF, core.blocks.stream_end(0) // 2)
    ids = torch.from_numpy(core.blocks.token_ids(0, begin, begin + QUESTION_TOKENS).astype(np.int64))
    whole = slice(0, len(ids))
    question = median_ms(lambda: mm.searcher.states_of(ids, whole), rounds, device)
    tapped = TappedQuestion(ids.numpy().astype(np.int32), mm.searcher.states_of(ids, whole), profile)

    def searched() -> SearchOutcome:
        return search(frame, Prompt(ids, whole), tapped, mm.config)

    found = searched()
    offers = found.in_frame_order(mm.config.answer.order, mm.config.answer.recalled_temperature)
    with frame.branch():
        frame.begin_prompt()
        as_configured = median_ms(lambda: frame.bring_back(offers), rounds, device)
        frame.stream.config = mm.config.changed(answer={"recall_mode": "kv"})
        restore = median_ms(lambda: frame.bring_back(offers), rounds, device)
        frame.stream.config = mm.config
        restored = frame.os.recalled_tokens
    kept_heads = len({(layer, kv_head) for layer, _, kv_head in profile.heads})
    number_bytes = 2 if mm.config.search.heads_keys == "bf16" else 1
    scanned = tokens * kept_heads * frame.served.head_dim * number_bytes
    plain = torch.ones(scanned // 8, dtype=torch.int64)
    return QuestionCost(
        tokens=tokens,
        search_ms=median_ms(searched, rounds, device),
        restore_ms=restore,
        restored_tokens=restored,
        scanned_bytes=scanned,
        plain_read_ms=median_ms(plain.sum, rounds, device),
        question_ms=question,
        again_ms=as_configured - restore,
    )
