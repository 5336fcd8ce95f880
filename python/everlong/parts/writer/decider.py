"""The decision of Head A: whether a block, by its Detail Tokens alone, says what a question asks for.

The question and D are vectors among the same input embeddings, so one map brings both into one space. There each token
of the question looks for its like in D (late interaction; Khattab and Zaharia, arXiv 2004.12832). It learns how near
the nearest is and what stands there. Then it looks at the question's other tokens: "edition 3" is worth little where
"edition" is found and "3" is not. There are three outcomes: the block is right, it says the same of something else, or
it has the words only.
"""

from __future__ import annotations

import dataclasses
import math

import torch

KINDS = ("right", "other", "words")  # what a block is to a question
_WAVES = 4  # of a place among the question's tokens, or among D
_FURTHEST = 256.0


@dataclasses.dataclass(frozen=True)
class DeciderSettings:
    embedding_size: int
    width: int = 128
    heads: int = 8
    depth: int = 2
    inner: int = 256  # width of the SwiGLU

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, expected a multiple of the {self.heads} heads")


class Decider(torch.nn.Module):
    """The network of the decision. Thread-safe to use."""

    def __init__(self, settings: DeciderSettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.of_embeddings = torch.nn.Linear(settings.embedding_size, width, bias=False)
        self.of_place = torch.nn.Linear(2 * _WAVES, width, bias=False)
        self.blocks = torch.nn.ModuleList(_Block(width, settings.heads, settings.inner) for _ in range(settings.depth))
        self.last = torch.nn.RMSNorm(width)
        self.kinds = torch.nn.Linear(2 * width, len(KINDS))
        torch.nn.init.zeros_(self.kinds.weight)
        torch.nn.init.zeros_(self.kinds.bias)

    def forward(self, question: torch.Tensor, mask: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Return logits [B, len(KINDS)] fp32 of questions [B, T, E] to D [B, n, E].

        Both are in units of the model's embeddings (their root mean square is 1). `mask` [B, T] bool marks the rows of
        a question; the others are padding. Without D (n = 0) a question meets nothing.
        """
        words, there = self._read(question), self._read(details)
        hidden = ~mask[:, None, None, :]
        for block in self.blocks:
            words = block(words, there, hidden)
        read = self.last(words)
        share = mask.float()[..., None]
        mean = (read * share).sum(dim=1) / share.sum(dim=1).clamp(min=1)
        most = read.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
        found: torch.Tensor = self.kinds(torch.cat([mean, most], dim=-1))
        return found

    def _read(self, rows: torch.Tensor) -> torch.Tensor:
        places = torch.arange(rows.shape[1], device=rows.device, dtype=torch.float32)
        waves = places[:, None] * (math.pi / _FURTHEST ** torch.linspace(0, 1, _WAVES, device=rows.device))
        read: torch.Tensor = self.of_embeddings(rows.float())
        read = read + self.of_place(torch.cat([waves.sin(), waves.cos()], dim=-1))
        return read


def odds(logits: torch.Tensor) -> torch.Tensor:
    """Return the log odds [...] that the block is right, from `Decider`'s logits [..., len(KINDS)]."""
    return logits[..., 0] - logits[..., 1:].logsumexp(dim=-1)


class _Block(torch.nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.across, self.among = _CrossAttention(width, heads), _CrossAttention(width, heads)
        self.normal = torch.nn.RMSNorm(width)
        self.gate_and_up = torch.nn.Linear(width, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, words: torch.Tensor, there: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        if there.shape[1]:
            words = words + self.across(words, there, None)
        words = words + self.among(words, words, hidden)
        gate, up = self.gate_and_up(self.normal(words)).chunk(2, dim=-1)
        out: torch.Tensor = words + self.down(torch.nn.functional.silu(gate) * up)
        return out


class _CrossAttention(torch.nn.Module):
    """Attention that also says how near the nearest is, which a softmax alone forgets.

    Queries and keys begin with the same map, so that the nearest is the most similar.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.normal = torch.nn.RMSNorm(width)
        self.q = torch.nn.Linear(width, width, bias=False)
        self.kv = torch.nn.Linear(width, 2 * width, bias=False)
        self.out = torch.nn.Linear(width + heads, width, bias=False)
        with torch.no_grad():
            self.kv.weight[:width] = self.q.weight

    def forward(self, queries: torch.Tensor, context: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        q = self.q(self.normal(queries)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            rows.unflatten(-1, (self.heads, -1)).transpose(1, 2) for rows in self.kv(self.normal(context)).chunk(2, -1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        nearest = scores.amax(dim=-1)  # [B, heads, T]
        found = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.out(torch.cat([found, nearest.transpose(1, 2)], dim=-1))
        return out
