"""What an answer says where the memory is unsure: that it does not hold it, and what is nearest.

A small model answers what it is asked, whatever came back: it invents, or answers another question. So where what came
back more likely lacks the answer (`Answer.unsure`), the model is not asked at all. Its tokens are these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong.text.encoding import encode

NOT_THERE = "The memory does not hold this."
_NEAREST = "Nearest is: "


def tokens_of(tokenizer: Any, nearest: Sequence[str]) -> list[int]:
    """Return the tokens of such an answer, and of its end; `nearest` is a line, or nothing."""
    text = " ".join([NOT_THERE, *(f"{_NEAREST}{line}" for line in nearest[:1])])
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    return [*encode(tokenizer, text).tolist(), *end]
