"""The writer: a block's states become Detail Tokens D, vectors among the model's input embeddings that stand for it.

The four-MI100 design, 3.3.1, and 3.2.2 of the one-GPU design. A Detail Token begins as the mean of the embeddings of a
run of the block's tokens, which is what pooling gives (arXiv 2510.20797); what is learned is which of them count, and a
rest that begins at zero. They are read between `opening` and `closing` in place of the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from everlong.models.low_rank import Adapter, AttachedAdapter
from everlong.models.pack import Pack, PackPart
from everlong.parts.latents import LatentReader, LatentSettings, means_of, runs_of, within
from everlong.parts.writer.deciding import Decider, DeciderSettings

if TYPE_CHECKING:
    from everlong.parts.trimmer.model import Trimmer

WRITER = "writer"
_LORA = "lora."  # before the names of the maps that were trained to read D beside the model's layers


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    reader: LatentSettings
    tokens: int = 32  # N, of a block: what `details` gives where nobody asks for another number
    page_tokens: int = 64  # of the block's text: D comes in pages, too
    opening: tuple[int, ...] = ()  # ids between which D was read in training
    closing: tuple[int, ...] = ()
    decider: DeciderSettings | None = None  # Head A's; None where it was not trained

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose states are read, as `HiddenTap` counts them."""
        return self.reader.layers


class Writer(torch.nn.Module):
    """Thread-safe to use; blocks have any length from 1 on (trained on 512)."""

    def __init__(self, config: WriterConfig) -> None:
        super().__init__()
        self.config = config
        self.reader = LatentReader(config.reader)
        width = config.reader.width
        states = len(config.layers) * config.reader.hidden_size
        self.counts = torch.nn.Linear(states, 1, bias=False)  # what a token counts in its run, as a logarithm
        self.louder = torch.nn.Linear(width, 1, bias=False)
        self.rest = torch.nn.Linear(width, config.reader.embedding_size)
        self.decider = None if config.decider is None else Decider(config.decider)
        with torch.no_grad():
            for zero in (self.counts.weight, self.louder.weight, self.rest.weight, self.rest.bias):
                zero.zero_()

    def details(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        """D [N, E] fp32 of one block: states [L, layers * hidden size], embeddings [L, E] of its tokens. N is `tokens`,
        the config's where it is None. ValueError for an empty block.
        """
        return self.details_of(states[None], embeddings[None], tokens)[0]

    def details_of(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        """D [B, N, E] of blocks of equal length: states [B, L, width], embeddings [B, L, E]."""
        length = states.shape[1]
        runs = runs_of(length, self.config.tokens if tokens is None else tokens).to(states.device)
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
        """`details_of`."""
        return self.details_of(states, embeddings, tokens)

    def of_page(self, length: int, page: int, tokens: int | None = None) -> slice:
        """Which rows of D [N, E] of a block of so many tokens are those of its page, one at least."""
        count = self.config.tokens if tokens is None else tokens
        first = min(page * self.config.page_tokens * count // length, count - 1)
        last = -(-min((page + 1) * self.config.page_tokens, length) * count // length)
        return slice(first, max(first + 1, last))

    def verdicts(self, question: torch.Tensor, asked: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Head A's logits [B, kinds] of questions' embeddings [B, T, E], of which `asked` [B, T] bool are not padding,
        to D [B, n, E]. ValueError of a writer that was trained without it.
        """
        if self.decider is None:
            raise ValueError("this writer was trained without questions to blocks, so it decides nothing of them")
        size = self.reader.embedding_scale
        found: torch.Tensor = self.decider(question.float() / size, asked, details.float() / size)
        return found

    @staticmethod
    def untrained(config: WriterConfig, seed: int = 0) -> Writer:
        """D is exactly the mean of the embeddings in N equal runs: all that is learned begins at zero."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Writer(config).eval()

    @torch.no_grad()
    def count_as(self, trimmer: Trimmer, sharpness: float) -> None:
        """Let tokens count as a Trimmer's linear map scores them, times `sharpness`: where that is large, D are the
        embeddings of the tokens of each run that it would keep. ValueError for a Trimmer of other layers.
        """
        if trimmer.settings.layers != self.config.layers:
            raise ValueError(f"the Trimmer reads layers {trimmer.settings.layers}, the writer {self.config.layers}")
        self.counts.weight.copy_(sharpness * trimmer.linear.weight * trimmer.scale / self.reader.scale)

    def part(self, made: Mapping[str, Any], lora: Adapter | None = None) -> PackPart:
        """As a pack keeps it: maps in 16 bits, and beside them those that were trained to read D."""
        tensors = {name: tensor.detach().to(torch.float16) for name, tensor in self.state_dict().items()}
        for name in ("reader.center", "reader.scale", "reader.embedding_scale"):
            tensors[name] = self.state_dict()[name].detach()
        settings: dict[str, Any] = dataclasses.asdict(self.config)
        if lora is not None:
            kept = lora.part(made)
            tensors |= {_LORA + name: tensor for name, tensor in kept.tensors.items()}
            settings["lora"] = dict(kept.settings)
        return PackPart(tensors, settings, made)

    @classmethod
    def of_part(cls, part: PackPart) -> Writer:
        said = {name: value for name, value in part.settings.items() if name != "lora"}
        said["reader"] = LatentSettings(**{**said["reader"], "layers": tuple(said["reader"]["layers"])})
        said |= {name: tuple(said[name]) for name in ("opening", "closing")}
        if said.get("decider") is not None:
            said["decider"] = DeciderSettings(**said["decider"])
        writer = cls(WriterConfig(**said))
        own = {name: tensor.float() for name, tensor in part.tensors.items() if not name.startswith(_LORA)}
        writer.load_state_dict(own)
        return writer.eval().requires_grad_(requires_grad=False)


def writer_of(pack: Pack) -> Writer | None:
    """The writer of a pack, None where it has none."""
    return Writer.of_part(pack.parts[WRITER]) if WRITER in pack.parts else None


def maps_of(part: PackPart) -> Adapter | None:
    """What was trained with a writer to read its D; None where the model reads it alone."""
    if "lora" not in part.settings:
        return None
    maps = {name.removeprefix(_LORA): tensor for name, tensor in part.tensors.items() if name.startswith(_LORA)}
    return Adapter.of_part(PackPart(maps, part.settings["lora"], part.made))


def reading_details(part: PackPart, model: torch.nn.Module) -> AttachedAdapter | None:
    """`maps_of`, beside the layers of a model."""
    maps = maps_of(part)
    return None if maps is None else AttachedAdapter(maps, model)


def as_it_reads(part: PackPart, model: torch.nn.Module) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Inside what this gives, again and again, the model reads a writer's D as it did in training."""
    attached = reading_details(part, model)
    return contextlib.nullcontext if attached is None else attached.at_work
