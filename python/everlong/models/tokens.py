"""What a forward reads: token ids, or vectors in place of their embeddings."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A run of tokens on their way into a frame.

    Soft tokens are vectors that need not be rows of the model's embedding. `ids` stand for them wherever a memory keeps
    token ids: in the archive, in its word index and in citations.
    """

    ids: torch.Tensor  # [n] int64, on the CPU
    embeds: torch.Tensor | None = None  # [n, hidden size]; None: those of `ids`

    def __post_init__(self) -> None:
        if self.ids.dim() != 1:
            raise ValueError(f"ids have the shape {tuple(self.ids.shape)}, expected [n]")
        if self.embeds is not None and (self.embeds.dim() != 2 or len(self.embeds) != len(self.ids)):
            raise ValueError(f"inputs_embeds have the shape {tuple(self.embeds.shape)}, expected [{len(self.ids)}, D]")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Tokens:
        return Tokens(self.ids[part], None if self.embeds is None else self.embeds[part])

    def inputs(self, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return them as a model's forward takes them, a batch of one."""
        if self.embeds is None:
            # The runtime has its copy of RAM that is not pinned when the call returns, so no wait is needed.
            return {"input_ids": self.ids[None].to(device, non_blocking=True)}
        return {"inputs_embeds": self.embeds[None].to(device, dtype)}
