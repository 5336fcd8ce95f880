"""Reads archived pages out of the memory into a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryBusyError
from everlong.frame.cache import ResidentCache
from everlong.frame.kept import KeptRows
from everlong.frame.kept_payload import KeptPayload
from everlong.frame.kept_writing import plain_rows
from everlong.frame.transfer import PayloadTransfer
from everlong.models.attach import ServedModel


@dataclasses.dataclass(frozen=True)
class Run:
    """Tokens of an archived page, and where they go."""

    page: _core.PageRef
    first_token: int  # the first token, counted in the page
    tokens: int
    slot: int  # slot of the first token
    position: int  # position of the first token in the frame


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Pages on their way from the memory into a cache."""

    table: torch.Tensor  # int64 [pages, 6], as `ops.restore_kv` reads it
    codec: str
    staged: _core.StagingBuffer
    reads: _core.PendingReads  # reads that fill the buffer


class ArchivedPages:
    """The pages of one memory, for one model."""

    def __init__(self, served: ServedModel, core: _core.Memory, config: MemoryConfig) -> None:
        self._served, self._core = served, core
        self._page_tokens, self._codec = config.archive.page_tokens, config.archive.codec
        largest_page = core.page_bytes(self._page_tokens, "fp32")  # of any codec
        self.transfer = PayloadTransfer(served.device, largest_page, self.block_bytes(config.archive.block_tokens))

    def restore(
        self,
        placements: Sequence[_core.Placement],
        first_slot: int,
        cache: ResidentCache,
        kept: Mapping[int, KeptPayload] = MappingProxyType({}),
    ) -> None:
        """Restore what is placed to consecutive slots: the payload of a block in `kept`, the pages of any other."""
        runs: list[Run] = []
        slot = first_slot
        of_kept: dict[int, list[Run]] = {}
        for placement in placements:
            run = Run(placement.page, placement.first_token, placement.tokens, slot, placement.position)
            (of_kept.setdefault(run.page.block, []) if run.page.block in kept else runs).append(run)
            slot += placement.tokens
        self.restore_runs(runs, cache)
        for block, chosen in of_kept.items():
            self._restore_kept(kept[block], chosen, cache)

    def restore_runs(self, runs: Sequence[Run], cache: ResidentCache) -> None:
        """Read runs from the memory and write them to their slots of a cache, one batch while the next is read.

        Raise MemoryNotFoundError where a page is not there (any more).
        """
        try:
            self._restore_runs(runs, cache)
        except MemoryBusyError:  # a compaction codes a block anew meanwhile
            self._restore_runs(runs, cache)

    def _restore_runs(self, runs: Sequence[Run], cache: ResidentCache) -> None:
        codecs = {block: self._core.blocks.read_codec(block) for block in {run.page.block for run in runs}}
        being_read: _Batch | None = None
        for codec, batch in self._batches(runs, codecs):
            next_batch = self._start_reading(batch, codec)
            if being_read is not None:
                self._write(being_read, cache)
            being_read = next_batch
        if being_read is not None:
            self._write(being_read, cache)

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

    def _batches(self, runs: Sequence[Run], codecs: Mapping[int, str]) -> Iterator[tuple[str, list[Run]]]:
        for codec in sorted(set(codecs.values())):
            batch: list[Run] = []
            size = 0
            for run in (run for run in runs if codecs[run.page.block] == codec):
                page_bytes = self._page_bytes(run, codec)
                if batch and size + page_bytes > self.transfer.batch_bytes:
                    yield codec, batch
                    batch, size = [], 0
                batch.append(run)
                size += page_bytes
            if batch:
                yield codec, batch

    def _start_reading(self, runs: Sequence[Run], codec: str) -> _Batch:
        table = torch.zeros(len(runs), 6, dtype=torch.int64, device="cpu")
        offset = 0
        for row, run in enumerate(runs):
            page_tokens = run.page.end - run.page.begin
            position = run.position + self._served.first_position
            entries = [offset, page_tokens, run.first_token, run.tokens, run.slot, position]
            table[row] = torch.tensor(entries, device="cpu")
            offset += self._page_bytes(run, codec)
        staged = self.transfer.stage(offset)
        pages = [run.page for run in runs]
        reads = self._core.blocks.start_read_pages(pages, 0, self._served.layers, staged.array, codec)
        return _Batch(table, codec, staged, reads)

    def _write(self, batch: _Batch, cache: ResidentCache) -> None:
        batch.reads.wait()
        with self.transfer.on_device(batch.staged) as payload:
            cache.buffers.write_pages(payload, batch.table, page_tokens=self._page_tokens, codec=batch.codec)

    def _page_bytes(self, run: Run, codec: str) -> int:
        return self._core.page_bytes(run.page.end - run.page.begin, codec)
