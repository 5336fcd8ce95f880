"""Long-lived slots behind the sinks: anchors and tombstones, kept un-rotated.

The Memory OS decides which tokens they are and where they stand (cpp/os/anchors.h, cpp/os/tombstones.h).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch


@dataclasses.dataclass(frozen=True)
class AnchorMasters:
    """k, v fp32 [L, Hkv, slots, D], un-rotated, oldest first. A value: every change makes another one.

    A slot that moves is rotated from here, so that rounding never adds up.
    """

    tombstone_k: torch.Tensor
    tombstone_v: torch.Tensor
    anchor_k: torch.Tensor
    anchor_v: torch.Tensor

    @classmethod
    def empty(cls, layers: int, kv_heads: int, head_dim: int, device: torch.device) -> AnchorMasters:
        none = torch.zeros(layers, kv_heads, 0, head_dim, dtype=torch.float32, device=device)
        return cls(none, none, none, none)

    def __len__(self) -> int:
        return int(self.tombstone_k.shape[2] + self.anchor_k.shape[2])

    @property
    def k(self) -> torch.Tensor:
        """Of all slots [L, Hkv, slots, D], tombstones first."""
        return torch.cat([self.tombstone_k, self.anchor_k], dim=2)

    @property
    def v(self) -> torch.Tensor:
        return torch.cat([self.tombstone_v, self.anchor_v], dim=2)

    def with_anchor(self, k: torch.Tensor, v: torch.Tensor, *, dropped: int) -> AnchorMasters:
        """Return it without the oldest `dropped` anchor slots, and with those of tokens k, v [L, Hkv, n, D]."""
        return dataclasses.replace(
            self,
            anchor_k=torch.cat([self.anchor_k[:, :, dropped:], k], dim=2),
            anchor_v=torch.cat([self.anchor_v[:, :, dropped:], v], dim=2),
        )

    def with_tombstone(self, k: torch.Tensor, v: torch.Tensor) -> AnchorMasters:
        """Return it with one more slot: the mean of tokens k, v [L, Hkv, n, D]."""
        return dataclasses.replace(
            self,
            tombstone_k=torch.cat([self.tombstone_k, k.mean(dim=2, keepdim=True)], dim=2),
            tombstone_v=torch.cat([self.tombstone_v, v.mean(dim=2, keepdim=True)], dim=2),
        )

    def with_merged(self, first: int, tokens: int, next_tokens: int) -> AnchorMasters:
        """Return it with tombstone `first`, of `tokens` tokens, and the next as one: their mean, weighted by tokens."""

        def merge(x: torch.Tensor) -> torch.Tensor:
            mean = (x[:, :, first] * tokens + x[:, :, first + 1] * next_tokens) / (tokens + next_tokens)
            return torch.cat([x[:, :, :first], mean[:, :, None], x[:, :, first + 2 :]], dim=2)

        return dataclasses.replace(self, tombstone_k=merge(self.tombstone_k), tombstone_v=merge(self.tombstone_v))

    # --- as named tensors, for a file

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return named tensors on the CPU, without kinds that have no slots."""
        return {name: x.cpu().contiguous() for name, x in self._by_name().items() if x.numel() > 0}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> AnchorMasters | None:
        """Read what `tensors()` returned out of a file's tensors; None where nothing is there."""
        kept = {field.name: tensors[field.name] for field in dataclasses.fields(cls) if field.name in tensors}
        if not kept:
            return None
        none = next(iter(kept.values()))[:, :, :0]
        return cls(**{field.name: kept.get(field.name, none) for field in dataclasses.fields(cls)})

    def to(self, device: torch.device) -> AnchorMasters:
        return AnchorMasters(**{name: x.to(device) for name, x in self._by_name().items()})

    def _by_name(self) -> dict[str, torch.Tensor]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
