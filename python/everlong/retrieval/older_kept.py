"""Payloads of kept tokens for blocks that were archived without one. Keys and values come from the archive.

The tokens are those that were chosen when the block was archived. If it was not trimmed then, they are chosen now.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryNotFoundError
from everlong.frame.kept_tokens import (
    best_tokens,
    chosen_in,
    kept_bytes,
    kept_rows,
    plain_rows,
    tensors_of,
    token_scores,
)
from everlong.frame.part import Hidden, Needs, Span, Tensors
from everlong.frame.parts import Parts, needs_of
from everlong.memory.kept_tensors import TOKENS, payload_name


class OlderKept:
    """Makes these payloads in the background (retrieval/older_blocks.py). For one thread at a time."""

    def __init__(self, core: _core.Memory, config: MemoryConfig, parts: Parts) -> None:
        self._core, self._config = core, config
        self._chooser, self._kept_writer = parts.token_scorer, parts.kept_writer
        self._kept_writer_id = None if self._kept_writer is None else self._kept_writer.id
        self._name = payload_name(self._kept_writer_id)
        self._chooses = True

    def needs(self) -> Needs:
        """Return what `tensors` needs: states for the chooser only where something is still to be chosen."""
        layers = set(needs_of(self._kept_writer).hidden_layers)
        layers |= set(needs_of(self._chooser).hidden_layers if self._chooses else ())
        return Needs(hidden_layers=tuple(sorted(layers)))

    def missing(self) -> list[int]:
        """Return the ids of the blocks that have no payload of this writer, in order of archiving."""
        blocks = [
            block for block in self._core.blocks.infos() if self._first(block) < block.end and self._lacks(block.id)
        ]
        self._chooses = not all(self._chosen(block) for block in blocks)
        return [block.id for block in blocks]

    def _lacks(self, block: int) -> bool:
        try:
            return self._name not in self._core.blocks.tensor_shapes(block)
        except MemoryNotFoundError:  # forgotten meanwhile: there is nothing to make
            return False

    def _first(self, block: _core.BlockInfo) -> int:
        """Return the block's first token that is no sink. Sinks are never chosen."""
        return max(block.begin, self._config.frame.sink_tokens)

    @torch.no_grad()
    def tensors(self, block_id: int, _: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        """Make a block's tensors, as the hook `block` of a part does."""
        block = self._core.blocks.info(block_id)
        first = self._first(block)
        ids, hidden = ids[first - block.begin :], {layer: rows[first - block.begin :] for layer, rows in hidden.items()}
        k, v = (rows[:, :, first - block.begin :].float() for rows in self._rows(block))
        span = Span(first, ids, hidden, lambda: (k, v))
        chosen = self._chosen(block) or self._choose(span)
        places = torch.tensor(sorted(chosen), dtype=torch.int64, device="cpu") - first
        rows = kept_rows(self._kept_writer, dataclasses.replace(span, chosen=places))
        archive = self._config.archive
        payload = kept_bytes(rows, page_tokens=archive.page_tokens, codec=archive.codec)
        return tensors_of(block.begin, chosen, payload, self._kept_writer_id)

    def _chosen(self, block: _core.BlockInfo) -> list[int] | None:
        try:
            return chosen_in({TOKENS: self._core.blocks.tensor(block.id, TOKENS)}, block.begin, block.end)
        except MemoryNotFoundError:
            return None

    def _choose(self, span: Span) -> list[int]:
        tokens = len(span.ids)
        count = -(-tokens // self._config.frame.kept_share)
        return best_tokens(token_scores(self._chooser, span), span.begin, [(span.begin, span.begin + tokens)], count)

    def _rows(self, block: _core.BlockInfo) -> tuple[torch.Tensor, torch.Tensor]:
        """Return k, v [L, Hkv, n, D] fp32, un-rotated, as the archive has them."""
        core, page_tokens = self._core, self._config.archive.page_tokens
        pages = core.blocks.pages_of(block.stream, block.begin, block.end)
        lengths = [page.end - page.begin for page in pages]
        codec = core.blocks.read_codec(block.id)
        payload = np.zeros(sum(core.page_bytes(length, codec) for length in lengths), dtype=np.uint8)
        core.blocks.read_pages(pages, payload, codec)
        manifest = core.manifest()
        shape = (manifest.layers, manifest.kv_heads, manifest.head_dim)
        rows = plain_rows(
            payload,
            lengths,
            shape,
            lambda tokens: core.page_bytes(tokens, codec),
            page_tokens=page_tokens,
            codec=codec,
            dtype=torch.float32,
        )
        return rows.k, rows.v
