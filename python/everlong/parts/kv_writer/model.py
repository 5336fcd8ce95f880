"""The KV writer: it puts a block's keys and values into those of a few anchor tokens.

They are un-rotated, so that they fit any position. Emitted KV compresses better than emitted embeddings do
(500xCompressor, arXiv 2408.03094; SAC, arXiv 2510.08907; Attention Matching, arXiv 2602.16284). The anchors are the
tokens that the Trimmer keeps, with their own keys and values. The writer learns what they take over from the tokens
that are evicted,

    v_a <- v_a + g (sum_t p_at v_t - v_a) + rest_a,   p_at over all tokens t of the block, near ones first,

and the same for keys. g is one number for each layer and head. The rest is a low-rank map of what a Q-Former reads at
the anchor. Both begin at zero, so an untrained KV writer gives the anchors' own keys and values.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from everlong.models.pack import Pack, PackedModule
from everlong.models.rng import isolated_rng
from everlong.parts.latents import LatentReader, LatentSettings

KV_WRITER = "kv-writer"
_PLAIN = ("reader.center", "reader.scale", "reader.embedding_scale", "k_scale", "v_scale")


@dataclasses.dataclass(frozen=True)
class KvWriterSettings:
    reader: LatentSettings
    kv_layers: int  # archived layers
    kv_heads: int
    head_dim: int
    rank: int = 48  # of the map that gives `rest`
    merging_heads: int = 4  # ways to weigh the evicted tokens; each KV head mixes them

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states are read, as `HiddenTap` counts them."""
        return self.reader.layers


class KvWriterNet(PackedModule):
    """The KV writer's network. Thread-safe to use.

    A block may have any length from 1 (trained on 512) and any number of anchors.
    """

    settings: KvWriterSettings
    KEPT_AS = torch.float16

    k_scale: torch.Tensor
    v_scale: torch.Tensor

    def __init__(self, config: KvWriterSettings) -> None:
        super().__init__()
        self.settings = config
        self.reader = LatentReader(config.reader)
        width, heads = config.reader.width, config.merging_heads
        shape = (config.kv_layers, config.kv_heads)
        self.register_buffer("k_scale", torch.ones(*shape, config.head_dim))
        self.register_buffer("v_scale", torch.ones(*shape, config.head_dim))
        self.asking = torch.nn.Linear(width, width, bias=False)
        self.asked = torch.nn.Linear(width, width, bias=False)
        nearness = torch.tensor([2.0 ** (1 - head) for head in range(heads)])
        self.nearness = torch.nn.Parameter(torch.log(torch.expm1(nearness)))
        self.mix = torch.nn.Parameter(torch.zeros(2, *shape, heads))  # for keys and for values; a softmax follows
        self.take = torch.nn.Parameter(torch.zeros(2, *shape))  # g
        self.down = torch.nn.Linear(width, config.rank, bias=False)
        self.up = torch.nn.Linear(config.rank, 2 * math.prod(shape) * config.head_dim)
        with torch.no_grad():
            self.up.weight.zero_()
            self.up.bias.zero_()

    def forward(
        self, states: torch.Tensor, k: torch.Tensor, v: torch.Tensor, anchors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return un-rotated keys and values of the anchors, [B, layers, Hkv, N, D] fp32 each.

        `states` are [B, L, width] of blocks of equal length, `k` and `v` their own un-rotated keys and values [B,
        layers, Hkv, L, D], `anchors` [B, N] int64, ascending.
        """
        config, batch = self.settings, len(states)
        length, count = states.shape[1], anchors.shape[1]
        read = self.reader.tokens(states)
        wide = anchors[..., None].expand(-1, -1, read.shape[-1])
        middle = anchors.double() + 0.5
        reach = torch.full_like(middle, max(1.0, length / count))
        latents = self.reader(read, read.gather(1, wide), middle, reach)

        heads = config.merging_heads
        q = self.asking(latents).unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, m, N, w]
        to = self.asked(read).unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, m, L, w]
        at = torch.arange(length, device=states.device) + 0.5
        away = ((at - middle[..., None]).abs() / reach[..., None]).float()[:, None]  # [B, 1, N, L]
        logits = q @ to.transpose(-1, -2) / math.sqrt(q.shape[-1])
        logits = logits - torch.nn.functional.softplus(self.nearness)[:, None, None] * away
        shares = logits.softmax(dim=-1)  # [B, m, N, L]

        rest = self.up(self.down(latents)).view(batch, count, 2, config.kv_layers, config.kv_heads, config.head_dim)
        index = anchors[:, None, None, :, None].expand(-1, config.kv_layers, config.kv_heads, -1, config.head_dim)
        written = []
        for which, (rows, scale) in enumerate(((k, self.k_scale), (v, self.v_scale))):
            own = rows.gather(3, index).float()
            mix, take = self.mix[which].softmax(dim=-1), self.take[which][..., None, None]
            merged = torch.einsum("lhm,bmnt,blhtd->blhnd", mix, shares, rows.float())
            added = rest[:, :, which].permute(0, 2, 3, 1, 4) * scale[:, :, None]
            written.append(own + take * (merged - own) + added)
        return written[0], written[1]

    @staticmethod
    def untrained(config: KvWriterSettings, seed: int = 0) -> KvWriterNet:
        """Return an untrained writer: it gives the anchors' own keys and values, as what is learned begins at zero."""
        with isolated_rng(seed):
            return KvWriterNet(config).eval()


def kv_writer_of(pack: Pack) -> KvWriterNet | None:
    """Return the pack's KV writer, or None where it has none."""
    return KvWriterNet.of_part(pack.parts[KV_WRITER]) if KV_WRITER in pack.parts else None
