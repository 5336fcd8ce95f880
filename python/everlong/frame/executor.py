"""Executes what the Memory OS decides: archiving, trimming and evicting, in order."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence

import torch

import everlong._core as _core
from everlong.frame.archive import FrameArchive
from everlong.frame.kept_tokens import chosen_in
from everlong.frame.stream import Stream
from everlong.frame.zones import Zones
from everlong.kv_cache.steps import of_the_device

_LOGGER = logging.getLogger("everlong")

Actions = Sequence[_core.Archive | _core.Trim | _core.Evict | _core.Recall]
Recalls = Sequence[_core.Recall]  # whoever drives the frame carries them out, in order


@dataclasses.dataclass(frozen=True)
class Done:
    """What is left of the Memory OS's actions once all is archived and evicted."""

    _recalls: Recalls
    _refusal: BaseException | None  # the first error of archiving

    def recalls(self) -> Recalls:
        """Return the recalls. Raise why a block was refused."""
        if isinstance(self._refusal, torch.OutOfMemoryError):
            raise of_the_device(self._refusal) from self._refusal
        if self._refusal is not None:
            raise self._refusal
        return self._recalls


class Executor:
    """Does what the Memory OS decides over one frame. A block that the memory refuses is left out; the rest is done."""

    def __init__(self, stream: Stream, zones: Zones, archive: FrameArchive) -> None:
        self._stream, self._zones, self._archive = stream, zones, archive

    def do(self, actions: Actions, *, beside: bool = False) -> Done:
        """Archive, trim and evict, in order. Recalls are left: they come after that.

        `beside`: blocks of `actions` may still be on their way at the end, until the next call.
        """
        os = self._stream.os
        # Actions refer to the rolling zone as it lay before the evictions among them.
        rolling_begin = os.rolling[0] - sum(a.tokens for a in actions if isinstance(a, _core.Evict))
        recalls: list[_core.Recall] = []
        refusals = list(self._archive.flush())

        chosen: list[int] | None = None  # of the block that was just archived; stored with it
        for action, follows in itertools.zip_longest(actions, actions[1:]):
            if isinstance(action, _core.Archive):
                trim = follows if isinstance(follows, _core.Trim) else None
                try:
                    # The snapshot comes first: it may be copied off the device while the tokens are scored.
                    block = self._archive.snapshot(action, rolling_begin)
                    chosen = None if trim is None else self._chosen(trim, rolling_begin, refusals)
                    refusals += self._archive.store(block, chosen, rolling_begin, beside=beside)
                except BaseException as error:
                    _LOGGER.warning("archiving tokens %d to %d failed: %r", action.begin, action.end, error)
                    refusals.append(error)
                    chosen = []  # nothing is kept of what is in no archive
            elif isinstance(action, _core.Trim):
                if chosen is None:
                    chosen = self._chosen_before(action) or self._chosen(action, rolling_begin, refusals)
                os.choose(chosen)
                chosen = None
            elif isinstance(action, _core.Evict):
                self._zones.evict(action, rolling_begin)
                rolling_begin += action.tokens
            else:
                recalls.append(action)
        self._stream.drop_archived()
        return Done(recalls, refusals[0] if refusals else None)

    def _chosen(self, trim: _core.Trim, rolling_begin: int, refusals: list[BaseException]) -> list[int]:
        """Return the tokens that are kept of a block; none where they cannot be scored, which is a refusal."""
        try:
            return self._zones.chosen(trim, rolling_begin)
        except BaseException as error:
            _LOGGER.warning("scoring tokens %d to %d failed: %r", trim.begin, trim.end, error)
            refusals.append(error)
            return []

    def _chosen_before(self, trim: _core.Trim) -> list[int] | None:
        """Return the tokens that an earlier process chose of a block; None where they are not known."""
        core = self._stream.memory.core
        (page, *_) = core.blocks.pages_of(self._stream.os.stream, trim.begin, trim.begin + 1)
        chosen = chosen_in(core.blocks.tensors(page.block), trim.begin, trim.end) or []
        free = {token for run in trim.runs for token in range(*run)}
        return chosen if 0 < len(chosen) <= trim.tokens and free.issuperset(chosen) else None
