"""What a latent reader learns from: its scales come from the texts that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from everlong.models.soft_tokens import embedded
from everlong.parts.latents import LatentReader
from everlong_lab.training.distillation import EvictedRead
from everlong_lab.training.states import middle_and_spread

_SAMPLED_READS = 8  # samples for center and scale
_SAMPLED_EMBEDDINGS = 4096


@torch.no_grad()
def normalise(reader: LatentReader, model: Any, reads: Sequence[EvictedRead]) -> None:
    """Set the reader's scales from the texts: center and spread of each number of the states, and the size of
    embeddings.
    """
    center, spread = middle_and_spread(torch.cat([read.states(1)[0, ::4].float() for read in reads[:_SAMPLED_READS]]))
    reader.center.copy_(center)
    reader.scale.copy_(1 / spread)
    words = model.get_input_embeddings().num_embeddings
    ids = torch.linspace(0, words - 1, min(_SAMPLED_EMBEDDINGS, words)).long()
    reader.embedding_scale.copy_(embedded(model, ids).float().square().mean().sqrt())
