"""What all trials of a model share: a little text of its vocabulary, and the scale of its logits."""

from __future__ import annotations

from typing import Any

import torch


def trial_ids(model: Any, tokens: int) -> torch.Tensor:
    """Return ids [tokens] int64, ascending, from all over the vocabulary but its first, on the embeddings' device."""
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device
    return torch.linspace(1, embeddings.num_embeddings - 1, tokens, dtype=torch.float64, device=device).long()


def spread(logits: torch.Tensor) -> torch.Tensor:
    """Return the norm of logits [n, V] without each row's mean, which says nothing: the scale of their differences."""
    norm: torch.Tensor = torch.linalg.vector_norm(logits - logits.mean(dim=-1, keepdim=True))
    return norm
