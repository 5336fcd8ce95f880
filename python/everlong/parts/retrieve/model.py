"""`<RETRIEVE>`, learned: whether a model says at the end of a question that it wants something back for it.

The one-GPU design, 3.2.3: a row of the output embeddings for the token, and low-rank maps (models/low_rank.py) that are
at work while it is decided. The row stands beside the model's own: neither model nor tokenizer is changed, and the
token is said where it is likelier than all the others together. What it then asks for is what the question's own
queries find, those of the towers among them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everlong.errors import UnsupportedModelError
from everlong.models.low_rank import Adapter, AttachedAdapter
from everlong.models.pack import Pack, PackPart

RETRIEVE = "retrieve"
_MAPS = "maps."


@dataclasses.dataclass(frozen=True)
class RetrieveSettings:
    hidden_size: int
    threshold: float = 0.5  # from which probability on it is said


class RetrieveRow(torch.nn.Module):
    """The token's row of the output embeddings. Thread-safe to use."""

    def __init__(self, settings: RetrieveSettings) -> None:
        super().__init__()
        self.settings = settings
        self.row = torch.nn.Linear(settings.hidden_size, 1)
        torch.nn.init.zeros_(self.row.weight)
        torch.nn.init.zeros_(self.row.bias)

    def forward(self, state: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """[...] log odds that it is said, behind which the output embeddings get `state` [..., hidden size] and say
        `logits` [..., V] of all other tokens.
        """
        own: torch.Tensor = self.row(state.float())[..., 0]
        return own - logits.float().logsumexp(dim=-1)

    def part(self, maps: Adapter, made: Mapping[str, Any]) -> PackPart:
        kept = maps.part(made)
        tensors = {name: tensor.detach().float() for name, tensor in self.state_dict().items()}
        tensors |= {_MAPS + name: tensor for name, tensor in kept.tensors.items()}
        return PackPart(tensors, {**dataclasses.asdict(self.settings), "maps": dict(kept.settings)}, made)


class Retrieving:
    """A row and its maps beside a model. Not thread-safe: the model computes for one thread at a time."""

    def __init__(self, row: RetrieveRow, maps: Adapter, model: Any) -> None:
        self.row = row
        self._attached = AttachedAdapter(maps, model)
        self._output = model.get_output_embeddings()
        if self._output is None:
            raise UnsupportedModelError("<RETRIEVE> is said beside output embeddings, and this model has none")

    @classmethod
    def of_part(cls, part: PackPart, model: Any) -> Retrieving:
        """ModelMismatchError for another model's."""
        said = {name: value for name, value in part.settings.items() if name != "maps"}
        row = RetrieveRow(RetrieveSettings(**said))
        row.load_state_dict({name: one for name, one in part.tensors.items() if not name.startswith(_MAPS)})
        maps = {name.removeprefix(_MAPS): one for name, one in part.tensors.items() if name.startswith(_MAPS)}
        adapter = Adapter.of_part(PackPart(maps, part.settings["maps"], part.made))
        return cls(row.eval().requires_grad_(requires_grad=False), adapter, model)

    def says(self, state: torch.Tensor, logits: torch.Tensor) -> bool:
        """Behind what `listening` heard last [hidden size], of all other tokens' logits [V]."""
        odds = self.row(state.to(self.row.row.weight.device), logits.to(self.row.row.weight.device))
        return float(torch.sigmoid(odds)) >= self.row.settings.threshold

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[torch.Tensor]]:
        """Inside, the maps are at work; the list is what the output embeddings got, a tensor [..., n, hidden size] a
        forward.
        """
        heard: list[torch.Tensor] = []

        def keep(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            heard.append(given[0])

        hook = self._output.register_forward_pre_hook(keep)
        try:
            with self._attached.at_work():
                yield heard
        finally:
            hook.remove()


def retrieving_of(pack: Pack, model: Any) -> Retrieving | None:
    """Of a pack, None where it has none."""
    return Retrieving.of_part(pack.parts[RETRIEVE], model) if RETRIEVE in pack.parts else None
