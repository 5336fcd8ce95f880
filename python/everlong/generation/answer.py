"""An answer, and what is known about it."""

from __future__ import annotations

import dataclasses
from typing import Literal

from everlong.retrieval.recall import Recall
from everlong.retrieval.walk import WalkTrace
from everlong.text import notebook_html

# A memory with less confidence than this is unsure: what came back more likely lacks the answer.
UNSURE_BELOW = 0.5

FinishReason = Literal["stop", "length", "time"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, and where it came from."""

    text: str
    tokens: int  # how many were generated
    # What came back: for the question, best first, then during the answer; without pages that the caller named.
    recalled: tuple[Recall, ...]
    # Why it ends: "stop" by an end token, a stop string or a stopping criterion of the caller; "length" by
    # max_new_tokens or max_length; "time" by max_time.
    finish_reason: FinishReason
    token_ids: tuple[int, ...]  # generated tokens, an end token too
    # How likely what came back for the question holds the answer, 0..1. It is calibrated on questions that a memory
    # answers and on as many that it does not. None where nothing was searched (all of the text is in the frame, or the
    # caller named pages), or where no index part that can tell was asked.
    confidence: float | None = None
    # Recalled sentences that stood in words before the question, in their order (`answer.quotes`).
    quoted: tuple[str, ...] = ()
    # The walk in the question's search, of the part `walker`.
    walk: WalkTrace | None = None

    @property
    def unsure(self) -> bool:
        """Whether the memory was searched, and what came back more likely lacks the answer."""
        return is_unsure(self.confidence)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the answer, and citations that unfold."""
        doubt = "" if not self.unsure else notebook_html.paragraph(f"memory unsure: {self.confidence or 0:.0%}")
        return notebook_html.paragraph(self.text) + doubt + "".join(recall._repr_html_() for recall in self.recalled)


def is_unsure(confidence: float | None) -> bool:
    """Return whether a confidence is below UNSURE_BELOW; False for None."""
    return confidence is not None and confidence < UNSURE_BELOW
