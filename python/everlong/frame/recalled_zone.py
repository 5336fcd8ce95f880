"""The recalled zone of a frame of keys and values: pages that are restored or read again, and Detail Tokens."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence

import everlong._core as _core
from everlong.frame.detail_tokens import SoftBlock, soft_tokens
from everlong.frame.kept_tokens import KeptPayload
from everlong.frame.kept_zone import KeptZone
from everlong.frame.offers import Offers, Page, identity
from everlong.frame.pages import ArchivedPages
from everlong.frame.stream import Stream
from everlong.frame.zones import PreparedRecall
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.forward import FrameForward
from everlong.models.tokens import Tokens


class RecalledZone:
    """What came back, in a cache."""

    def __init__(
        self,
        stream: Stream,
        cache: ResidentCache,
        pages: ArchivedPages,
        kept: KeptZone,
        computing: FrameForward,
        soft_id: int,
    ) -> None:
        self._stream, self._cache, self._pages, self._kept = stream, cache, pages, kept
        self._computing, self._soft_id = computing, soft_id

    def prepare(self, offers: Offers) -> PreparedRecall:
        """Return the forms in which they come back."""
        plain = PreparedRecall.as_pages(offers)
        pages, soft = self._as_details(plain.pages, [offer.page.block for offer in offers if offer.as_details])
        kept = self._kept.payloads(pages)
        pages, temperature = self._of_whole_blocks(pages, plain.temperature, kept)
        return PreparedRecall(pages, temperature, plain.best, kept, soft)

    def place_in_steps(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> Generator[None]:
        """Fill the zone. Without placements, empty it. It yields between two chunks of what is read again."""
        first_slot = self._cache.open_recalled(sum(p.tokens for p in placements))
        if not placements:
            return
        of_details = [index for index, placement in enumerate(placements) if placement.details]
        computed = (
            slice(of_details[0], of_details[-1] + 1) if of_details else self._read_anew(placements, prepared.best)
        )
        first_computed = first_slot + sum(p.tokens for p in placements[: computed.start])
        behind = first_computed + sum(p.tokens for p in placements[computed])
        again = placements[computed]
        arriving = self._pages.start(
            [(placements[: computed.start], first_slot), (placements[computed.stop :], behind)],
            self._cache,
            prepared.kept,
            prepared.temperature,
            by_layer=len(again) > 0,
        )
        if again:
            if of_details:
                tokens = soft_tokens([prepared.soft[placement.page.block] for placement in again], self._soft_id)
            else:
                tokens = Tokens(self._stream.ids_of(again))
            chunk_tokens = self._stream.config.frame.chunk_tokens
            try:
                with self._cache.awaiting(arriving):
                    yield from self._computing.put_before(tokens, again[0].position, first_computed, chunk_tokens)
            except GeneratorExit:
                arriving.settle()  # else it arrives in slots that have another use then
                raise
            if not of_details:
                self._cool(again, first_computed, prepared.temperature)
        arriving.settle()

    def _as_details(
        self, pages: Sequence[_core.PageRef], blocks: Sequence[int]
    ) -> tuple[Sequence[_core.PageRef], Mapping[int, SoftBlock]]:
        """Return the pages that come back as they are, and the blocks that come as Detail Tokens, first to last."""
        details, mode = self._stream.parts.details, self._stream.config.answer.recall_mode
        if details is None or mode not in ("detail", "both") or not self._stream.os.evicted:
            return pages, {}
        if mode == "both":
            return pages, details.of(blocks)
        last_first = dict.fromkeys(page.block for page in reversed(pages))
        having = {block for block in last_first if details.has(block)}
        blocks = blocks or [block for block in reversed(last_first) if block in having]
        return [page for page in pages if page.block not in having], details.of(blocks)

    def _of_whole_blocks(
        self, pages: Sequence[_core.PageRef], temperature: Mapping[Page, float], kept: Mapping[int, KeptPayload]
    ) -> tuple[Sequence[_core.PageRef], Mapping[Page, float]]:
        """Replace pages of blocks in `kept` by all pages of the block: its chosen tokens lie in all of them."""
        if not kept:
            return pages, temperature
        core = self._stream.memory.core
        out: list[_core.PageRef] = []
        by_page = dict(temperature)
        named: set[int] = set()
        for page in reversed(pages):
            if page.block not in kept:
                out.append(page)
            elif page.block not in named:
                named.add(page.block)
                block = core.blocks.info(page.block)
                whole = core.blocks.pages_of(block.stream, block.begin, block.end)
                out += reversed(whole)
                by_page |= {identity(one): temperature.get(identity(page), 1.0) for one in whole}
        return out[::-1], by_page

    def _cool(self, placements: Sequence[_core.Placement], first_slot: int, temperature: Mapping[Page, float]) -> None:
        slot = first_slot
        for placement in placements:
            self._cache.buffers.cool(slot, placement.tokens, temperature.get(identity(placement.page), 1))
            slot += placement.tokens

    def _read_anew(self, placements: Sequence[_core.Placement], best: Sequence[_core.PageRef]) -> slice:
        """Return which of the placements are read again. The others are restored."""
        everything, nothing = slice(0, len(placements)), slice(len(placements), len(placements))
        mode = self._stream.config.answer.recall_mode
        if mode != "auto":
            return everything if mode == "text" else nothing
        breaks = [
            index for index, (one, next_) in enumerate(itertools.pairwise(placements), 1) if not _goes_on(one, next_)
        ]
        if not breaks:
            return nothing
        runs = [slice(*span) for span in itertools.pairwise([0, *breaks, len(placements)])]
        named = set(map(identity, best))
        return next((run for run in runs if any(identity(p.page) in named for p in placements[run])), runs[-1])


def _goes_on(first: _core.Placement, second: _core.Placement) -> bool:
    """Return whether the second run of tokens follows the first directly, or with an anchor in between."""
    follows = second.page.begin == first.page.end or identity(second.page) == identity(first.page)
    return first.page.stream == second.page.stream and follows
