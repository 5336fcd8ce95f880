"""What a search brings back, and from where."""

from __future__ import annotations

import dataclasses
import math

from everlong.config.answer import Order
from everlong.frame.part import Cosines, Offer, Vectors
from everlong.memory.where import Role
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.walk import WalkTrace
from everlong.text import notebook_html


@dataclasses.dataclass(frozen=True)
class Recall:
    """A group of pages of one block run that came back, and from where."""

    block_id: int  # block of the group's first page
    span: tuple[int, int]  # tokens of the stream
    score: float  # its best page's; comparable within one answer only
    source: str
    text: str
    passage: str  # the page of it that was found; the rest stands around it
    found_by: tuple[str, ...]  # index parts that found it
    role: Role  # what the passage was: read, asked or said
    # How likely it holds the answer, 0..1, among all that came back with it. Those of one search add up to
    # `Answer.confidence`. None for what no search found, or only parts with scores that do not tell right from wrong.
    confidence: float | None = None
    origin: str = ""  # where it was read from, usually a file's path
    place: str = ""  # where the passage stands in its file, as "p. 14"; "" for a plain text
    as_details: bool = False  # its block came back as Detail Tokens, which are not its words
    # Whether the model had some of it. Where quotes alone come back, it has nothing of a passage without a quote.
    used: bool = True
    # In UTC, ISO 8601: when its events happened, as `read` was told, else when it was archived.
    told: str = dataclasses.field(default="", compare=False)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: where it stands, which unfolds to the passage."""
        sure = "" if self.confidence is None else f"{self.confidence:.0%}"
        head = ", ".join(filter(None, (self.source or notebook_html.CONVERSATION, self.place, sure)))
        return notebook_html.unfolding(head, self.passage)


@dataclasses.dataclass(frozen=True)
class SearchOutcome:
    """A search's outcome: what it offers, best first, and how sure the index is."""

    offers: tuple[Offer, ...]
    agreed: bool  # every index part has the best page among its first; False where re-ranking chose another one
    decisiveness: float  # mass of the best page over the second best; 0 without heads
    blocks: tuple[Offer, ...] = ()  # blocks that are to come back as Detail Tokens, best first
    walk: WalkTrace | None = None  # the walk in the search, if there was one
    vectors: Vectors | None = None  # what the sentences of the recalled text are compared with
    cosines: Cosines | None = None  # compares the best of these sentences as wholes
    sentences: tuple[Sentence, ...] = ()  # those nearest to the question, best first, where they were looked for

    @property
    def confidence(self) -> float | None:
        """How likely one of the offers holds the answer, 0..1; None where no part was asked that can tell."""
        if self.blocks and not self.offers:
            return None
        sure = [offer.confidence for offer in self.offers]
        told = [one for one in sure if one is not None]
        return min(1.0, sum(told)) if len(told) == len(sure) else None

    def chosen(self, decisive: float | None) -> SearchOutcome:
        """Return the first offer alone when it is decisive, else all."""
        sure = decisive is not None and self.agreed and self.decisiveness >= decisive
        return dataclasses.replace(self, offers=self.offers[:1]) if sure else self

    def in_frame_order(self, order: Order, temperature: float) -> list[Offer]:
        """Return blocks, then pages, as they are to stand: "relevance" puts the best last, "time" the newest.

        An offer of probability p is cooled to 1 + (temperature - 1) (1 - p / p_best). Fused scores are log p, up to a
        constant. A part alone keeps scores of its own, which then stand for it.
        """
        best = max((offer.score for offer in self.offers), default=0.0)
        offers = [
            dataclasses.replace(
                offer, temperature=1 - (temperature - 1) * math.expm1(offer.score - best), best=offer is self.offers[0]
            )
            for offer in reversed(self.offers)
        ]
        blocks = list(reversed(self.blocks))
        if order == "time":
            for one in (offers, blocks):
                one.sort(key=lambda offer: (offer.stream, offer.begin))
        return [*blocks, *offers]
