"""The writer: a block's states become Detail Tokens D, vectors among the model's input embeddings that stand for it.

A Detail Token begins as the mean of the embeddings of a run of the block's tokens, which is pooling (arXiv 2510.20797).
The writer learns which of them count, and a rest that begins at zero. D is read between `opening` and `closing` in
place of the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import Pack, PackedModule, PackPart
from everlong.models.rng import isolated_rng
from everlong.parts.latents import LatentReader, LatentSettings, means_of, runs_of, within
from everlong.parts.writer.decider import Decider, DeciderSettings

if TYPE_CHECKING:
    from everlong.parts.trimmer.model import TrimmerNet

WRITER = "writer"
_LORA = "lora."  # prefix of the maps that were trained to read D beside the model's layers


@dataclasses.dataclass(frozen=True)
class WriterSettings:
    reader: LatentSettings
    tokens: int = 32  # Detail Tokens of a block (N), where nobody asks for another number
    page_tokens: int = 64  # tokens of a page: D comes in pages, too
    opening: tuple[int, ...] = ()  # ids between which D was read in training
    closing: tuple[int, ...] = ()
    decider: DeciderSettings | None = None  # Head A's; None where it was not trained

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states are read, as `HiddenTap` counts them."""
        return self.reader.layers


class WriterNet(PackedModule):
    """The writer's network. Thread-safe to use. A block may have any length from 1 (trained on 512)."""

    settings: WriterSettings
    KEPT_AS = torch.float16
    BESIDE = ("lora",)

    def __init__(self, config: WriterSettings) -> None:
        super().__init__()
        self.settings = config
        self.reader = LatentReader(config.reader)
        width = config.reader.width
        states = len(config.layers) * config.reader.hidden_size
        self.counts = torch.nn.Linear(states, 1, bias=False)  # weight of a token in its run, as a logarithm
        self.louder = torch.nn.Linear(width, 1, bias=False)
        self.rest = torch.nn.Linear(width, config.reader.embedding_size)
        self.decider = None if config.decider is None else Decider(config.decider)
        with torch.no_grad():
            for zero in (self.counts.weight, self.louder.weight, self.rest.weight, self.rest.bias):
                zero.zero_()

    def details(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        """Return D [N, E] fp32 of one block. N is `tokens`, or the settings' number where it is None.

        `states` are [L, layers * hidden size], `embeddings` [L, E] those of its tokens. Raises ValueError for an empty
        block.
        """
        return self.details_of(states[None], embeddings[None], tokens)[0]

    def details_of(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        """Return D [B, N, E] of blocks of equal length: states [B, L, width], embeddings [B, L, E]."""
        length = states.shape[1]
        runs = runs_of(length, self.settings.tokens if tokens is None else tokens).to(states.device)
        read = self.reader.tokens(states, embeddings)
        middle, reach = runs.double().mean(dim=-1), (runs[:, 1] - runs[:, 0]).double()
        batch = (len(states), -1)
        latents = self.reader(read, means_of(read, runs), middle[None].expand(batch), reach[None].expand(batch))
        inside = within(runs, length)
        logits = self.counts(self.reader.normal(states)).transpose(1, 2).expand(-1, len(runs), -1)  # [B, N, L]
        pooled = logits.masked_fill(~inside, -torch.inf).softmax(dim=-1) @ embeddings.float()
        found: torch.Tensor = pooled * (1 + self.louder(latents)) + self.rest(latents) * self.reader.embedding_scale
        return found

    def forward(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        """Return `details_of`."""
        return self.details_of(states, embeddings, tokens)

    def of_page(self, length: int, page: int, tokens: int | None = None) -> slice:
        """Return which rows of D [N, E] of a block of `length` tokens belong to a page; at least one."""
        count = self.settings.tokens if tokens is None else tokens
        first = min(page * self.settings.page_tokens * count // length, count - 1)
        last = -(-min((page + 1) * self.settings.page_tokens, length) * count // length)
        return slice(first, max(first + 1, last))

    def verdicts(self, question: torch.Tensor, mask: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Return Head A's logits [B, kinds] of questions' embeddings [B, T, E] to D [B, n, E].

        `mask` [B, T] bool marks what is not padding. Raises ValueError for a writer that was trained without Head A.
        """
        if self.decider is None:
            raise ValueError("this writer was trained without questions to blocks, so it decides nothing of them")
        size = self.reader.embedding_scale
        found: torch.Tensor = self.decider(question.float() / size, mask, details.float() / size)
        return found

    @staticmethod
    def untrained(config: WriterSettings, seed: int = 0) -> WriterNet:
        """Return an untrained writer. Its D is exactly the mean of the embeddings in N equal runs."""
        with isolated_rng(seed):
            return WriterNet(config).eval()

    @torch.no_grad()
    def count_as(self, trimmer: TrimmerNet, sharpness: float) -> None:
        """Let tokens count as a Trimmer's linear map scores them, times `sharpness`.

        Where that is large, D are the embeddings of the tokens of each run that it would keep. Raises ValueError for a
        Trimmer of other layers.
        """
        if trimmer.settings.layers != self.settings.layers:
            raise ValueError(f"the Trimmer reads layers {trimmer.settings.layers}, the writer {self.settings.layers}")
        self.counts.weight.copy_(sharpness * trimmer.linear.weight * trimmer.scale / self.reader.scale)

    def part_with(self, lora: LowRankMaps | None, made: Mapping[str, Any]) -> PackPart:
        """Return the part as a pack keeps it, with the maps that were trained to read D."""
        part = self.part(made)
        if lora is None:
            return part
        kept = lora.part(made)
        tensors = {**part.tensors, **{_LORA + name: tensor for name, tensor in kept.tensors.items()}}
        return PackPart(tensors, {**part.settings, "lora": dict(kept.settings)}, made)


def writer_of(pack: Pack) -> WriterNet | None:
    """Return the pack's writer, or None where it has none."""
    return WriterNet.of_part(pack.parts[WRITER]) if WRITER in pack.parts else None


def maps_of(part: PackPart) -> LowRankMaps | None:
    """Return the maps that were trained with a writer to read its D; None where the model reads it alone."""
    if "lora" not in part.settings:
        return None
    maps = {name.removeprefix(_LORA): tensor for name, tensor in part.tensors.items() if name.startswith(_LORA)}
    return LowRankMaps.of_part(PackPart(maps, part.settings["lora"], part.made))


def reading_details(part: PackPart, model: torch.nn.Module) -> AttachedMaps | None:
    """Return `maps_of`, attached to the layers of a model."""
    maps = maps_of(part)
    return None if maps is None else AttachedMaps(maps, model)


def reading_mode(part: PackPart, model: torch.nn.Module) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a reusable context in which the model reads a writer's D as it did in training."""
    attached = reading_details(part, model)
    return contextlib.nullcontext if attached is None else attached.active
