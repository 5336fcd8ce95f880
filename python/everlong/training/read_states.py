"""The states of texts as they are read, every token's, computed once and kept in a folder."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.corpora.boundaries import CutText
from everlong.models.shallow import shallow_states
from everlong.training.states import KeptRows, Rows, as_floats, digest_of, require_same_reading

_RUN_TOKENS = 4096  # that are read at once; a longer text goes on as a text of its own


@dataclasses.dataclass(frozen=True)
class ReadText:
    """A text's tokens, and where it may be cut: `cuts` are tokens before each of the places of `text.cuts`."""

    text: CutText
    ids: torch.Tensor  # int64 [n]
    cuts: tuple[int, ...]
    rows: Rows  # of ReadStates.states


@dataclasses.dataclass(frozen=True)
class ReadStates:
    """Rows of states, each the layers' side by side: width = layers * hidden size."""

    layers: tuple[int, ...]
    states: npt.NDArray[np.uint16]  # [n, width] the bits of bf16
    texts: tuple[ReadText, ...]

    def floats(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """States [len(rows), width] bf16 of some rows."""
        return as_floats(self.states[rows])

    def of(self, text: ReadText) -> torch.Tensor:
        """States [tokens, width] bf16 of one text."""
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
    """The states of all texts, from `folder` as far as they are there, the rest computed and kept there.

    One process at a time. A run that was cut short goes on where it stopped. EverlongError for a folder of other texts,
    another model or other layers. `progress(what, done, of)` is called after each text.
    """
    layers = tuple(layers)
    require_same_reading(folder, model, layers, texts=digest_of(text.text.encode() for text in texts))
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    read = []
    with KeptRows(folder / "texts", width) as kept:
        for done, text in enumerate(texts):
            ids, cuts = tokens_of(tokenizer, text)
            if done == len(kept.marks):
                runs = [shallow_states(model, run, layers) for run in torch.split(ids, _RUN_TOKENS)]
                kept.add(torch.cat([torch.cat([run[layer] for layer in layers], dim=-1) for run in runs]))
                if progress is not None:
                    progress("texts", done + 1, len(texts))
            read.append(ReadText(text, ids, cuts, kept.marks[done]))
        states = kept.all_rows()
    return ReadStates(layers, states, tuple(read))


def tokens_of(tokenizer: Any, text: CutText) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A text's ids [n] int64, and how many of them stand before each of its cuts: whole ones, so that white space which
    is one token with the next word is behind the cut.
    """
    encoded = tokenizer(text.text, add_special_tokens=False, return_offsets_mapping=True)
    ends = np.asarray([end for _, end in encoded["offset_mapping"]], dtype=np.int64)
    cuts = np.searchsorted(ends, [cut.at for cut in text.cuts], side="right")
    return torch.tensor(encoded["input_ids"], dtype=torch.int64), tuple(int(at) for at in cuts)
