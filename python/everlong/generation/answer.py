"""What an answer is, once it is there."""

from __future__ import annotations

import dataclasses
from typing import Literal

from everlong.retrieval.recall import Recall
from everlong.retrieval.walk import WalkTrace

# A memory whose confidence is below this is unsure: the answer is likelier not among what came back.
UNSURE_BELOW = 0.5

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
    # How likely the answer is among what came back for the question, 0..1, as it was calibrated on questions that a
    # memory answers and on as many that it does not. None where nothing was searched for the question: all of the text
    # is in the frame, or the caller named pages; or where no part of the index was asked that can tell.
    confidence: float | None = None
    # Sentences of what came back that stood in words before the question, best first (`MemoryConfig.quotes`).
    quoted: tuple[str, ...] = ()
    # The walk that took part in the question's search, where `MemoryConfig.index` has "graph".
    walk: WalkTrace | None = None

    @property
    def unsure(self) -> bool:
        """Whether the memory was searched and the answer is likelier not among what came back."""
        return is_unsure(self.confidence)


def is_unsure(confidence: float | None) -> bool:
    return confidence is not None and confidence < UNSURE_BELOW
