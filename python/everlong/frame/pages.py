"""Reads archived pages out of the memory into a cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.kept_tokens import KeptPayload, plain_rows
from everlong.frame.offers import Page, identity
from everlong.frame.transfer import PayloadTransfer
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.kept import KeptRows
from everlong.kv_cache.page_loading import LayerGroup, LayerRead, LoadTiming, PageLoad, Run
from everlong.models.attach import AttachedModel

# Where a forward waits for pages layer by layer, some layers of all of them arrive at once: about so many bytes, and in
# so many parts at most. Each part costs a look into the catalog.
_PART_BYTES = 2 << 20
_MOST_PARTS = 8
_NOTHING: Mapping[Page, float] = MappingProxyType({})


class ArchivedPages:
    """The pages of one memory, for one model."""

    def __init__(self, served: AttachedModel, core: _core.Memory, config: MemoryConfig) -> None:
        self._served, self._core = served, core
        self._page_tokens, self._codec = config.archive.page_tokens, config.archive.codec
        largest_page = core.page_bytes(self._page_tokens, "fp32")  # of any codec
        self.transfer = PayloadTransfer(served.device, largest_page, self.block_bytes(config.archive.block_tokens))
        self.part_bytes = _PART_BYTES
        self.arrived: Sequence[LoadTiming] = ()  # how the newest recall arrived, part by part

    def restore(self, placements: Sequence[_core.Placement], first_slot: int, cache: ResidentCache) -> None:
        """Restore what is placed to consecutive slots."""
        self.start([(placements, first_slot)], cache).settle()

    def restore_runs(self, runs: Sequence[Run], cache: ResidentCache) -> None:
        """Read runs from the memory and write them to their slots of a cache.

        Raise MemoryNotFoundError where a page is not there (any more).
        """
        self._start(runs, cache, by_layer=False).settle()

    def start(
        self,
        placed: Sequence[tuple[Sequence[_core.Placement], int]],
        cache: ResidentCache,
        kept: Mapping[int, KeptPayload] = MappingProxyType({}),
        temperature: Mapping[Page, float] = _NOTHING,
        *,
        by_layer: bool = False,
    ) -> PageLoad:
        """Start to restore what is placed, each to consecutive slots from the first one that stands beside it.

        Chosen tokens of a block in `kept` are that payload, which is there at once, all else its pages. Keys of a page
        are divided by its temperature. `by_layer`: a forward will wait for one layer after the other.
        """
        runs: list[Run] = []
        of_kept: dict[int, list[Run]] = {}
        for placements, slot in placed:
            for placement in placements:
                run = Run(
                    placement.page,
                    placement.first_token,
                    placement.tokens,
                    slot,
                    placement.position,
                    temperature.get(identity(placement.page), 1.0),
                )
                # A page of the conversation comes whole, even where its block comes as its chosen tokens, too.
                chosen = kept.get(run.page.block)
                if chosen is not None and chosen.has(run.page.begin + run.first_token, run.tokens):
                    of_kept.setdefault(run.page.block, []).append(run)
                else:
                    runs.append(run)
                slot += placement.tokens
        arriving = self._start(runs, cache, by_layer=by_layer)
        for block, runs_of_block in of_kept.items():
            self._restore_kept(kept[block], runs_of_block, cache)
        self.arrived = arriving.arrived
        return arriving

    def _start(self, runs: Sequence[Run], cache: ResidentCache, *, by_layer: bool) -> PageLoad:
        def plan(first_layer: int) -> Iterator[LayerGroup]:
            return self._parts(runs, first_layer, by_layer=by_layer)

        def write(reading: LayerRead) -> None:
            self._write(reading, cache)

        return PageLoad(plan, self._read, write, 2 * self.transfer.batch_bytes)

    def plain_rows(self, written: KeptPayload) -> KeptRows:
        """Return keys and values of a payload's tokens, un-rotated, on the CPU."""
        served = self._served
        full, rest = divmod(len(written.tokens), self._page_tokens)
        return plain_rows(
            written.payload,
            [self._page_tokens] * full + [rest] * (rest > 0),
            (served.layers, served.kv_heads, served.head_dim),
            self._core.page_bytes,
            page_tokens=self._page_tokens,
            codec=self._codec,
            dtype=served.dtype,
        )

    def block_bytes(self, tokens: int) -> int:
        """Return the bytes of the payload of so many tokens."""
        full, rest = divmod(tokens, self._page_tokens)
        page_bytes = self._core.page_bytes
        return full * page_bytes(self._page_tokens) + (page_bytes(rest) if rest else 0)

    def _restore_kept(self, kept: KeptPayload, runs: Sequence[Run], cache: ResidentCache) -> None:
        page_tokens, count = self._page_tokens, len(kept.tokens)
        page_bytes = self._core.page_bytes(page_tokens)
        rows = []
        for run in runs:
            done = 0
            while done < run.tokens:
                page, first = divmod(kept.place_of(run.page.begin + run.first_token + done), page_tokens)
                length = min(page_tokens, count - page * page_tokens)
                tokens = min(run.tokens - done, length - first)
                position = run.position + done + self._served.first_position
                rows.append([page * page_bytes, length, first, tokens, run.slot + done, position])
                done += tokens
        table = torch.tensor(rows, dtype=torch.int64, device="cpu")
        payload = torch.from_numpy(kept.payload).to(self._served.device)
        cache.buffers.write_pages(payload, table, page_tokens=page_tokens, codec=self._codec)
        self._cool(runs, None, cache)

    def _parts(self, runs: Sequence[Run], first_layer: int, *, by_layer: bool) -> Iterator[LayerGroup]:
        """Yield what is to be read, in order of layers."""
        blocks = self._core.blocks
        codecs = {block: blocks.read_codec(block) for block in {run.page.block for run in runs}}
        together = self._served.layers
        # A transform's layers are coded as one.
        if by_layer and all(blocks.codec(block) == codec for block, codec in codecs.items()):
            of_layer = sum(self._layer_bytes(run, codecs[run.page.block]) for run in runs)
            together = max(-(-together // _MOST_PARTS), self.part_bytes // max(1, of_layer))
        for first in range(first_layer, self._served.layers, together):
            layers = range(first, min(first + together, self._served.layers))
            for codec in sorted(set(codecs.values())):
                yield from self._batches([run for run in runs if codecs[run.page.block] == codec], layers, codec)

    def _batches(self, runs: Sequence[Run], layers: range, codec: str) -> Iterator[LayerGroup]:
        batch: list[Run] = []
        size = 0
        for run in runs:
            run_bytes = len(layers) * self._layer_bytes(run, codec)
            if batch and size + run_bytes > self.transfer.batch_bytes:
                yield LayerGroup(layers, codec, batch, size)
                batch, size = [], 0
            batch.append(run)
            size += run_bytes
        if batch:
            yield LayerGroup(layers, codec, batch, size)

    def _read(self, part: LayerGroup) -> LayerRead:
        started = time.perf_counter()
        rows = []
        offset = 0
        for run in part.runs:
            page_tokens = run.page.end - run.page.begin
            position = run.position + self._served.first_position
            rows.append([offset, page_tokens, run.first_token, run.tokens, run.slot, position])
            offset += len(part.layers) * self._layer_bytes(run, part.codec)
        staged = self.transfer.stage(offset)
        pages, layers = [run.page for run in part.runs], part.layers
        reads = self._core.blocks.start_read_pages(pages, layers.start, len(layers), staged.array, part.codec)
        return LayerRead(part, staged, torch.tensor(rows, dtype=torch.int64, device="cpu"), reads, started)

    def _write(self, reading: LayerRead, cache: ResidentCache) -> None:
        part = reading.part
        with self.transfer.on_device(reading.staged) as payload:
            cache.buffers.write_pages(
                payload, reading.table, page_tokens=self._page_tokens, codec=part.codec, layers=part.layers
            )
        self._cool(part.runs, part.layers, cache)

    def _cool(self, runs: Sequence[Run], layers: range | None, cache: ResidentCache) -> None:
        for run in runs:
            cache.buffers.cool(run.slot, run.tokens, run.temperature, layers)

    def _layer_bytes(self, run: Run, codec: str) -> int:
        return self._core.page_bytes(run.page.end - run.page.begin, codec) // self._served.layers
