"""The states of every token of texts as they are read, computed once and kept in a folder."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.models.early_exit import early_exit_states
from everlong_lab.corpora.boundaries import CutText
from everlong_lab.training.states import KeptRows, Rows, as_floats, digest_of, require_same_reading

_RUN_TOKENS = 4096  # tokens read at once; a longer text goes on as a new text


@dataclasses.dataclass(frozen=True)
class ReadText:
    """A text's tokens, and where it may be cut: `cuts` are the tokens before each of the places of `text.cuts`."""

    text: CutText
    ids: torch.Tensor  # int64 [n]
    cuts: tuple[int, ...]
    rows: Rows  # of ReadStates.states


@dataclasses.dataclass(frozen=True)
class ReadStates:
    """Rows of states, each with the layers side by side: width = layers * hidden size."""

    layers: tuple[int, ...]
    states: npt.NDArray[np.uint16]  # [n, width] the bits of bf16
    texts: tuple[ReadText, ...]

    def floats(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return states [len(rows), width] bf16 of some rows."""
        return as_floats(self.states[rows])

    def of(self, text: ReadText) -> torch.Tensor:
        """Return states [tokens, width] bf16 of one text."""
        return as_floats(self.states[slice(*text.rows)])


def read_states(
    model: Any,
    tokenizer: Any,
    texts: Sequence[CutText],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> ReadStates:
    """Return the states of all texts. What `folder` lacks is computed and kept there.

    Only one process at a time may use the folder. A run that was cut short goes on where it stopped. Raises
    EverlongError for a folder of other texts, another model or other layers. `progress(what, done, of)` is called after
    each text.
    """
    layers = tuple(layers)
    require_same_reading(folder, model, layers, texts=digest_of(text.text.encode() for text in texts))
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    read = []
    with KeptRows(folder / "texts", width) as kept:
        for done, text in enumerate(texts):
            ids, cuts = tokens_of(tokenizer, text)
            if done == len(kept.marks):
                runs = [early_exit_states(model, run, layers) for run in torch.split(ids, _RUN_TOKENS)]
                kept.add(torch.cat([torch.cat([run[layer] for layer in layers], dim=-1) for run in runs]))
                if progress is not None:
                    progress("texts", done + 1, len(texts))
            read.append(ReadText(text, ids, cuts, kept.marks[done]))
        states = kept.all_rows()
    return ReadStates(layers, states, tuple(read))


def tokens_of(tokenizer: Any, text: CutText) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return a text's ids [n] int64, and how many whole tokens stand before each of its cuts.

    White space that is one token with the next word stands behind the cut.
    """
    encoded = tokenizer(text.text, add_special_tokens=False, return_offsets_mapping=True)
    ends = np.asarray([end for _, end in encoded["offset_mapping"]], dtype=np.int64)
    cuts = np.searchsorted(ends, [cut.at for cut in text.cuts], side="right")
    return torch.tensor(encoded["input_ids"], dtype=torch.int64), tuple(int(at) for at in cuts)
