"""Whether a memory holds a haystack, so that a run that was cut short may go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.text.encoding import encode
from everlong_lab.corpora.haystack import HaystackPiece


def holds_text(core: _core.Memory, tokenizer: Any, parts: Sequence[HaystackPiece], tokens: int) -> bool:
    """Return whether the first `tokens` of a memory are those of the parts, as far as these go."""
    for part in parts:
        end = min(part.end, tokens)
        if end <= part.begin:
            break
        if not np.array_equal(
            core.blocks.token_ids(0, part.begin, end), encode(tokenizer, part.text)[: end - part.begin]
        ):
            return False
    return True
