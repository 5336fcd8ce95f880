"""The zones of a frame as the host holds them: sinks, tombstones, anchors, kept tokens, what came back, and rolling.

The Memory OS decides what stands where; these move it. `kv_zones.py` holds keys and values, `text_frame.py` text alone.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.frame.budget import FrameBytes
from everlong.frame.checkpoint import Checkpoint, KvState
from everlong.frame.detail_tokens import SoftBlock
from everlong.frame.kept_tokens import KeptPayload
from everlong.frame.offers import Offers, Page, identity
from everlong.frame.part import Hidden, Offer
from everlong.frame.transfer import Archived
from everlong.models.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class PreparedRecall:
    """What is to come back, in the forms in which it does."""

    pages: Sequence[_core.PageRef] = ()
    temperature: Mapping[Page, float] = dataclasses.field(default_factory=dict)  # 1 for pages that are not named
    best: Sequence[_core.PageRef] = ()
    # By block: blocks that come as their chosen tokens alone, and blocks that come as Detail Tokens, in order.
    kept: Mapping[int, KeptPayload] = dataclasses.field(default_factory=dict)
    soft: Mapping[int, SoftBlock] = dataclasses.field(default_factory=dict)
    why: Mapping[Page, Offer] = dataclasses.field(default_factory=dict)  # who offered a page

    def offers(self, conversation: Sequence[_core.PageRef]) -> list[_core.Offer]:
        """Return what the Memory OS places: the conversation's pages, Detail Tokens, then pages."""
        return [
            *(_core.Offer(page, "conversation", by="conversation") for page in conversation),
            *(block.offer for block in self.soft.values()),
            *(self._page(page) for page in self.pages),
        ]

    def _page(self, page: _core.PageRef) -> _core.Offer:
        offer = self.why.get(identity(page))
        by, sure = ("", None) if offer is None else (", ".join(offer.found_by), offer.confidence)
        if page.block in self.kept:
            return _core.Offer(page, "chosen", tokens=self.kept[page.block].tokens, by=by, sure=sure)
        return _core.Offer(page, by=by, sure=sure)

    @classmethod
    def as_pages(cls, offers: Offers) -> PreparedRecall:
        """Return the pages of offers that do not come as Detail Tokens."""
        placed = [(page, offer) for offer in offers if not offer.as_details for page in offer.pages]
        return cls(
            [page for page, _ in placed],
            {identity(page): offer.temperature for page, offer in placed},
            [page for page, offer in placed if offer.best],
            why={identity(page): offer for page, offer in placed},
        )


class Zones(abc.ABC):
    """What is resident. For the frame's thread alone.

    `rolling_begin` is the token of the stream where the rolling zone starts.
    """

    # Whether the frame holds what is in no archive: layers with own state, an anchor zone, kept tokens.
    keeps_state = False
    stores_beside = False  # whether it is cheaper to store a block while something else is computed

    @property
    @abc.abstractmethod
    def resident_tokens(self) -> int:
        """How many tokens the next token attends to."""

    @property
    @abc.abstractmethod
    def bytes(self) -> FrameBytes:
        """The most that the frame takes on the device, also while reading."""

    @abc.abstractmethod
    def compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        """Put chunk [n] behind the newest token. Return logits [1, V] of the last token, or [n, V].

        The logits may be anything where they are not `needed`. A failure leaves no token of the chunk behind, or breaks
        the frame.
        """

    def room_ahead(self) -> int:
        """Return how many tokens `compute_ahead` may get now; 0: no token could be taken back."""
        return 0

    def compute_ahead(self, chunk: Tokens) -> torch.Tensor | None:
        """Compute chunk [n] behind the newest token, and put none of it there. Return logits [n, V].

        None where they are of no use. `adopt` then puts token after token there.
        """
        raise NotImplementedError

    def adopt(self) -> bool:
        """Put the next token that was computed ahead behind the newest one.

        False where there is none, or where something else has changed since: it was computed over what is gone.
        """
        return False

    @abc.abstractmethod
    def payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        """Take a snapshot of a span. Return a call that waits for the bytes to archive.

        Any thread may call the result, once.
        """

    @abc.abstractmethod
    def evict(self, action: _core.Evict, rolling_begin: int) -> None:
        """Drop rolling's oldest tokens, and keep what is to stay of them."""

    def chosen(self, action: _core.Trim, rolling_begin: int) -> list[int]:
        """Return the best of a closed block's tokens, the best first. A frame that keeps none is never asked."""
        raise NotImplementedError

    def chosen_tensors(
        self, action: _core.Archive, chosen: Sequence[int], rolling_begin: int
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Return what is stored with a block of the tokens that were chosen in it."""
        return {}

    def prepare(self, offers: Offers) -> PreparedRecall:
        """Return the forms in which they come back."""
        return PreparedRecall.as_pages(offers)

    @abc.abstractmethod
    def place(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> None:
        """Fill the recalled zone. Without placements, empty it."""

    def place_in_steps(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> Generator[None]:
        """Do as `place`, and yield between two chunks of what is read again."""
        self.place(placements, prepared)
        yield from ()

    @abc.abstractmethod
    def narrow(self) -> None:
        """Show from now on what the stream shows alone. In a branch, with nothing in the recalled zone."""

    @abc.abstractmethod
    def come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        """Bring sinks and the newest tokens of an archived stream back, in a new process.

        `last` is what of the last checkpoint holds for this stream. The tokens between `stream_end` and
        `archived_until` are about to be read again.
        """

    @abc.abstractmethod
    def begin_anew(self) -> None:
        """Hold nothing, as zones of a new frame. `come_back` follows."""

    @property
    def own_from(self) -> int | None:
        """The first token that the state of layers not archived has anything of; None: there is no such state."""
        return None

    @abc.abstractmethod
    def remember(self) -> Callable[[], None]:
        """Keep what is resident now. Return a call that puts it back, to be called once."""

    def is_whole(self, last: Checkpoint) -> bool:
        """Return whether the checkpoint has all that a frame held after reading something."""
        return True

    def state(self) -> KvState | None:
        """Return a copy, for a checkpoint, of what is in no archive."""
        return None

    @contextlib.contextmanager
    def heeding_tombstones(self, heeded: bool) -> Iterator[Callable[[Hidden], Sequence[float]]]:
        """Wrap a forward. The result returns scores for how its newest token attends to each tombstone.

        There are no scores where tombstones are not `heeded`, or where the frame has none.
        """
        yield lambda hidden: ()

    @abc.abstractmethod
    def detach(self) -> None:
        """Take the frame's hooks off the model."""
