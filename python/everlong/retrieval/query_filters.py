"""Times and tags that a question names, which narrow its search; and tags for blocks that were given none.

The search is narrowed before any index part scores a page (cpp/graph/include/everlong/graph/tag_tree.h).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.memory.origins import key_tag
from everlong.retrieval.query_times import times_of
from everlong.text.encoding import decode_text, encode
from everlong.text.keyphrases import Tagger, phrases_of


def rarity_of(core: _core.Memory, tokenizer: Any) -> Callable[[Sequence[str]], list[float]]:
    """Return a function that says how rare words are in a memory. A word is as rare as the rarest of its tokens."""

    @functools.lru_cache(maxsize=1 << 16)
    def tokens_of(word: str) -> tuple[int, ...]:
        return tuple(encode(tokenizer, f" {word}").tolist())

    def rarity(words: Sequence[str]) -> list[float]:
        ids = [tokens_of(word) for word in words]
        idf = iter(core.search.idf(np.array([token for of in ids for token in of], dtype=np.int32)).tolist())
        return [max((next(idf) for _ in of), default=0.0) for of in ids]

    return rarity


def block_tags(tagger: Tagger, tokenizer: Any) -> Callable[[torch.Tensor], tuple[str, ...]]:
    """Return a `Frame.tagger`: it makes the tags that are kept of a block's ids [n], as everlong's own."""

    def tags(ids: torch.Tensor) -> tuple[str, ...]:
        return tuple(map(key_tag, tagger.tags(decode_text(tokenizer, ids.tolist()))))

    return tags


def filters_of(question: str, by: Sequence[str]) -> _core.Narrow | None:
    """Return what a question names of `by`, "times" and "tags"; None where it names nothing.

    It is soft: where no block has any of it, all are searched.
    """
    times = times_of(question) if "times" in by else []
    tags = sorted(set(phrases_of(question))) if "tags" in by else []
    return _core.Narrow(times, tags) if times or tags else None
