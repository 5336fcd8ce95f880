"""A Q-Former (BLIP-2, Li et al., arXiv 2301.12597): latents that read a block.

Each latent stands for a run of the block's tokens. It begins as the mean of its run. Then it attends to all tokens of
the block, to near ones most, and to the other latents. Nothing depends on the length of the block or the number of
latents, so one reader serves all.
"""

from __future__ import annotations

import dataclasses
import math

import torch

_WAVES = 6  # of a place in the block, each twice as fast as the one before
_PLACE = 2 * _WAVES + 1
_MOST = 8.0  # clamp for centred and scaled numbers: the states of a text's very first token have another size


@dataclasses.dataclass(frozen=True)
class LatentSettings:
    layers: tuple[int, ...]  # layers whose states are read, as `HiddenTap` counts them
    hidden_size: int
    embedding_size: int = 0  # of the model's input embeddings; 0: they are not read
    width: int = 192
    heads: int = 4
    depth: int = 2  # attention blocks
    inner: int = 384  # width of the SwiGLU
    order: int = 0  # waves of a token's place in a latent's run; they let heads tell a run's first words from its last

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, expected a multiple of the {self.heads} heads")


def runs_of(length: int, count: int) -> torch.Tensor:
    """Return int64 [count, 2]: where each of `count` equal runs of `length` tokens begins and ends.

    No run is empty: where there are more runs than tokens, runs share tokens. Raises ValueError where either is below
    1.
    """
    if length < 1 or count < 1:
        raise ValueError(f"{count} runs of {length} tokens: expected one or more of both")
    first = torch.arange(count) * length // count
    last = torch.maximum(first + 1, torch.arange(1, count + 1) * length // count)
    return torch.stack([first, last], dim=-1)


class LatentReader(torch.nn.Module):
    """Reads states [B, L, layers * hidden size] and embeddings [B, L, E] of blocks of L tokens each."""

    center: torch.Tensor
    scale: torch.Tensor
    embedding_scale: torch.Tensor

    def __init__(self, settings: LatentSettings) -> None:
        super().__init__()
        self.settings = settings
        states = len(settings.layers) * settings.hidden_size
        self.register_buffer("center", torch.zeros(states))
        self.register_buffer("scale", torch.ones(states))
        self.register_buffer("embedding_scale", torch.ones(()))  # root mean square of the model's embeddings
        width = settings.width
        self.of_states = torch.nn.Linear(states, width)
        own = settings.embedding_size
        self.of_embeddings = torch.nn.Linear(own, width, bias=False) if own else None
        self.of_place = torch.nn.Linear(_PLACE, width, bias=False)
        self.latent = torch.nn.Linear(_PLACE + 1, width)
        self.blocks = torch.nn.ModuleList(
            _Block(width, settings.heads, settings.inner, settings.order) for _ in range(settings.depth)
        )
        self.last = torch.nn.RMSNorm(width)

    def normal(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states as fp32, centred and scaled as in training."""
        return ((states.float() - self.center) * self.scale).clamp(-_MOST, _MOST)

    def tokens(self, states: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return [B, L, width]: what the tokens of the blocks say, each with its place in its block."""
        normal = self.normal(states)
        place = _places(torch.arange(states.shape[1], device=states.device) + 0.5, states.shape[1])
        read: torch.Tensor = self.of_states(normal) + self.of_place(place)
        if self.of_embeddings is not None and embeddings is not None:
            read = read + self.of_embeddings(embeddings.float() / self.embedding_scale)
        return read

    def forward(
        self, tokens: torch.Tensor, begin: torch.Tensor, middle: torch.Tensor, reach: torch.Tensor
    ) -> torch.Tensor:
        """Return [B, N, width]: what the latents read in `tokens` [B, L, width].

        They begin as `begin` [B, N, width] and stand at `middle` [B, N], where a token's middle is its number and a
        half. Each covers `reach` [B, N] tokens.
        """
        length = tokens.shape[1]
        at = torch.arange(length, device=tokens.device) + 0.5
        offset = (at - middle[..., None]) / reach[..., None]  # [B, N, L]: place in the run, from -0.5 to 0.5
        order = _order(offset.float(), self.settings.order)
        between = (middle[:, None] - middle[..., None]).abs() / reach[..., None]
        place = torch.cat([_places(middle, length), reach.float().log()[..., None] / 4], dim=-1)
        latents = self.latent(place) + begin
        for block in self.blocks:
            latents = block(latents, tokens, offset.abs().float(), between.float(), order)
        read: torch.Tensor = self.last(latents)
        return read


def within(runs: torch.Tensor, length: int) -> torch.Tensor:
    """Return bool [N, length]: which tokens stand in which run."""
    at = torch.arange(length, device=runs.device)
    return (at >= runs[:, :1]) & (at < runs[:, 1:])


def means_of(rows: torch.Tensor, runs: torch.Tensor) -> torch.Tensor:
    """Return the mean of each run, [B, N, width], of rows [B, L, width]."""
    share = within(runs, rows.shape[1]).to(rows.dtype)
    return (share / share.sum(dim=-1, keepdim=True)) @ rows


class _Block(torch.nn.Module):
    def __init__(self, width: int, heads: int, inner: int, order: int) -> None:
        super().__init__()
        self.cross = _Attention(width, heads, order)
        self.among = _Attention(width, heads)
        self.normal = torch.nn.RMSNorm(width)
        self.gate_and_up = torch.nn.Linear(width, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(
        self,
        latents: torch.Tensor,
        tokens: torch.Tensor,
        away: torch.Tensor,
        between: torch.Tensor,
        order: torch.Tensor | None = None,
    ) -> torch.Tensor:
        latents = latents + self.cross(latents, tokens, away, order)
        latents = latents + self.among(latents, latents, between)
        gate, up = self.gate_and_up(self.normal(latents)).chunk(2, dim=-1)
        wide: torch.Tensor = self.down(torch.nn.functional.silu(gate) * up)
        return latents + wide


class _Attention(torch.nn.Module):
    """Attention heads with a penalty for distance, counted in lengths of a run (Press et al., arXiv 2108.12409).

    Each head begins with a smaller penalty than the one before; the penalties are learned. With `order` each head also
    learns where in a run it looks. So one may read a run's first word and another its last.
    """

    def __init__(self, width: int, heads: int, order: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.asking, self.asked = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.q = torch.nn.Linear(width, width, bias=False)
        self.kv = torch.nn.Linear(width, 2 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        nearness = torch.tensor([2.0 ** (1 - 2 * head) for head in range(heads)])
        self.nearness = torch.nn.Parameter(torch.log(torch.expm1(nearness)))
        self.order = torch.nn.Parameter(torch.randn(heads, 2 * order)) if order else None

    def forward(
        self, queries: torch.Tensor, context: torch.Tensor, away: torch.Tensor, order: torch.Tensor | None = None
    ) -> torch.Tensor:
        q = self.q(self.asking(queries)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for rows in self.kv(self.asked(context)).chunk(2, dim=-1)
        )
        bias = -torch.nn.functional.softplus(self.nearness)[:, None, None] * away[:, None]
        if self.order is not None and order is not None:
            bias = bias + torch.einsum("hw,bnlw->bhnl", self.order, order)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return out


def _order(offset: torch.Tensor, waves: int) -> torch.Tensor | None:
    """Return [..., 2 * waves] of offsets [...] in a run; 0 outside of the run."""
    if waves == 0:
        return None
    angles = offset[..., None] * 2 * math.pi * 2.0 ** torch.arange(waves, device=offset.device)
    found = torch.cat([(angles / 2).sin(), angles.cos()], dim=-1)
    return found * (offset.abs() <= 0.5)[..., None]


def _places(at: torch.Tensor, length: int) -> torch.Tensor:
    """Return [..., _PLACE] of places [...] in a block: waves of their share of it, and its length."""
    share = at.double() / length
    angles = share[..., None] * math.pi * 2.0 ** torch.arange(_WAVES, device=at.device, dtype=torch.float64)
    long = torch.full_like(share, math.log(length) / 8)[..., None]
    return torch.cat([angles.sin(), angles.cos(), long], dim=-1).float()
