"""Detail Tokens on their way into a frame: `<MEM_START>` D `<MEM_END>` of a block, as soft tokens.

parts/writer says what they are and makes them. The Memory OS decides where they stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.memory.detail_tensors import are_details
from everlong.models.tokens import Tokens
from everlong.text.control import memory_marks


@dataclasses.dataclass(frozen=True, eq=False)
class SoftBlock:
    """A block as soft tokens."""

    block: _core.BlockInfo
    embeds: torch.Tensor  # [slots, hidden size], on the CPU

    @property
    def offer(self) -> _core.Offer:
        """The whole block, as its soft tokens."""
        block = self.block
        whole = _core.PageRef(block.id, 0, block.stream, block.begin, block.end)
        return _core.Offer(whole, "details", slots=len(self.embeds), by="details")


def soft_tokens(blocks: Sequence[SoftBlock], soft_id: int) -> Tokens:
    """Return the soft tokens of all blocks, one block after the other. `soft_id` stands for each where ids are kept."""
    embeds = torch.cat([block.embeds for block in blocks])
    return Tokens(torch.full((len(embeds),), soft_id, dtype=torch.int64, device="cpu"), embeds)


class DetailTokens:
    """The Detail Tokens of a memory's blocks, by one writer, for one model."""

    def __init__(
        self,
        core: _core.Memory,
        model: Any,
        tokenizer: Any,
        tensor: str,
        marks: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """`tensor` is the name of the blocks' tensor that holds them.

        `marks` are ids that a trained writer's Detail Tokens were read between, all blocks together, and are read
        between again. Without them each block stands between marks of its own.
        """
        self._core = core
        self._tensor = tensor
        self._start, self._end = (_bracket(model, ids) for ids in memory_marks(tokenizer))
        self._around = None if marks is None else tuple(_embedded(model, ids) for ids in marks)

    def of(self, blocks: Iterable[int]) -> dict[int, SoftBlock]:
        """Return soft tokens by block, in the order given, each block once. Blocks that have none are left out."""
        found: dict[int, SoftBlock] = {}
        for block in dict.fromkeys(blocks):
            details = self._details(block)
            if details is not None:
                own = details if self._around is not None else torch.cat([self._start, details, self._end])
                found[block] = SoftBlock(self._core.blocks.info(block), own)
        if self._around is not None and found:
            first, last = next(iter(found)), next(reversed(found))
            found[first] = SoftBlock(found[first].block, torch.cat([self._around[0], found[first].embeds]))
            found[last] = SoftBlock(found[last].block, torch.cat([found[last].embeds, self._around[1]]))
        return found

    def has(self, block: int) -> bool:
        """Return whether that block has some. Raise MemoryNotFoundError where there is no such block, or no more."""
        dtype, shape = self._core.blocks.tensor_shapes(block).get(self._tensor, ("", ()))
        return are_details(dtype, shape, self._start.shape[1])

    def _details(self, block: int) -> torch.Tensor | None:
        """Return a block's Detail Tokens [n, hidden size] fp32; None where it has none."""
        if not self.has(block):
            return None
        return torch.from_numpy(self._core.blocks.tensor(block, self._tensor).astype(np.float32))


def _bracket(model: Any, mark: Sequence[int]) -> torch.Tensor:
    """Return [1, hidden size] fp32: the embedding of a mark's token, or the mean of the tokens that spell it."""
    return _embedded(model, mark).mean(dim=0, keepdim=True)


@torch.no_grad()
def _embedded(model: Any, mark: Sequence[int]) -> torch.Tensor:
    """Return [n, hidden size] fp32 of a mark's tokens."""
    table = model.get_input_embeddings()
    rows: torch.Tensor = table(torch.tensor(mark, dtype=torch.int64, device=table.weight.device)).float()
    return rows.cpu()
