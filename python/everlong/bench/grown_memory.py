"""A memory of any size in minutes: real blocks of a real model, archived again and again as later streams.

Speed depends on how much a memory holds, not on what it holds. No figure from such a memory is about answers.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from everlong.data import shipped_books
from everlong.generation.memory_model import MemoryModel

SEED_TOKENS = 8192
_STREAM = 1  # stream of the copies; the model's own stream is 0
_COPY = "copy"  # source of the copies


def read_seed(mm: MemoryModel, tokens: int = SEED_TOKENS) -> None:
    """Read the first tokens of the shipped books, block by block, and calibrate on them."""
    mm.read(mm.tokenizer.decode(_book_ids(mm, tokens)), source="book")
    mm.calibrate()


def grow(mm: MemoryModel, tokens: int) -> int:
    """Add copies of what was read, block by block, each with the next tokens of the books, until it holds `tokens`.

    Returns how many tokens it holds: whole blocks, or more than `tokens` where it held more already.
    """
    core = mm.memory.core
    whole = [block for block in mm.memory.blocks() if block.source != _COPY and block.span[0] > 0][:-1]
    payloads = []
    for block in whole:
        pages = core.blocks.pages_of(0, *block.span)
        payload = np.empty(sum(core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
        core.blocks.read_pages(pages, payload)
        payloads.append(payload)
    ids = np.asarray(_book_ids(mm, 300_000), dtype=np.int32)
    have, at, copies = mm.memory.stats().tokens, core.blocks.stream_end(_STREAM), 0
    while have < tokens:
        block, payload = whole[copies % len(whole)], payloads[copies % len(whole)]
        length = block.span[1] - block.span[0]
        first = at % (len(ids) - length)
        core.blocks.append(
            stream=_STREAM,
            begin=at,
            end=at + length,
            sink_tokens=0,
            source=_COPY,
            created_at=time.time(),
            tags=[],
            token_ids=ids[first : first + length],
            payload=payload,
        )
        at, have, copies = at + length, have + length, copies + 1
    return have


def _book_ids(mm: MemoryModel, tokens: int) -> list[int]:
    ids: list[int] = []
    for book in shipped_books():
        ids += mm.tokenizer(book.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= tokens:
            break
    return ids[:tokens]


def book_ids(mm: MemoryModel, tokens: int) -> torch.Tensor:
    """Return token ids [tokens] of the shipped books from their beginning; fewer where the books end before."""
    return torch.tensor(_book_ids(mm, tokens))
