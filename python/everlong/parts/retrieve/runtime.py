"""A <RETRIEVE> row and its maps beside a model: whether the model asks for recall at the end of a question."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from everlong.errors import UnsupportedModelError
from everlong.frame.part import RecallGate
from everlong.models.hooks import register_hook
from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import PackPart
from everlong.parts.retrieve.model import MAPS, RetrieveRow

if TYPE_CHECKING:
    from everlong.text.prompt import Prompt


class LearnedGate(RecallGate):
    """Recalls where the model asks for it at the end of a question."""

    def __init__(self, retrieving: RetrieveRuntime) -> None:
        self._retrieving = retrieving

    def should_recall(self, prompt: Prompt, read: Callable[[], torch.Tensor]) -> bool:
        with self._retrieving.recording_states() as heard, torch.no_grad():
            logits = read()
        return self._retrieving.asks_for_recall(heard[-1].flatten(0, -2)[-1], logits)


class RetrieveRuntime:
    """A row and its maps beside a model."""

    def __init__(self, row: RetrieveRow, maps: LowRankMaps, model: Any) -> None:
        self.row = row
        self._attached = AttachedMaps(maps, model)
        self._output = model.get_output_embeddings()
        if self._output is None:
            raise UnsupportedModelError("<RETRIEVE> needs output embeddings, and this model has none")

    @classmethod
    def of_part(cls, part: PackPart, model: Any) -> RetrieveRuntime:
        """Load both from a pack's part. Raises ModelMismatchError for another model's."""
        maps = {name.removeprefix(MAPS): one for name, one in part.tensors.items() if name.startswith(MAPS)}
        kept = LowRankMaps.of_part(PackPart(maps, part.settings["maps"], part.made))
        return cls(RetrieveRow.of_part(part), kept, model)

    def asks_for_recall(self, state: torch.Tensor, logits: torch.Tensor) -> bool:
        """Return whether it says <RETRIEVE>, by the last heard state [hidden size] and the other tokens' logits [V]."""
        odds = self.row(state.to(self.row.row.weight.device), logits.to(self.row.row.weight.device))
        return float(torch.sigmoid(odds)) >= self.row.settings.threshold

    @contextlib.contextmanager
    def recording_states(self) -> Iterator[list[torch.Tensor]]:
        """Attach the maps, and record what the output embeddings get, in this thread's forwards.

        The list that it yields holds one tensor [..., n, hidden size] a forward pass.
        """
        heard: list[torch.Tensor] = []

        def keep(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            if threading.get_ident() == thread:
                heard.append(args[0])

        thread = threading.get_ident()
        hook = register_hook(self._output.register_forward_pre_hook, keep)
        try:
            with self._attached.active():
                yield heard
        finally:
            hook.remove()
