"""What an answer is, once it is there."""

from __future__ import annotations

import dataclasses
from typing import Literal

from everlong.retrieval.recall import Recall

FinishReason = Literal["stop", "length", "time"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, and where it came from."""

    text: str
    tokens: int  # generated
    # What came back: for the question, best first, then what came while it was answered; without pages that the caller
    # named.
    recalled: tuple[Recall, ...]
    # Why it ends: "stop", by an end token, a stop string or a stopping criterion of the caller's; "length", by
    # max_new_tokens or max_length; "time", by max_time.
    finish_reason: FinishReason
    token_ids: tuple[int, ...]  # what was generated, an end token too
