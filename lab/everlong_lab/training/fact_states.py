"""States of the blocks that a writer decides about, computed once and kept in a folder."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from everlong.frame.taps import side_by_side
from everlong.models.early_exit import early_exit_states
from everlong_lab.corpora.blocks import SINK_TOKENS
from everlong_lab.corpora.record import Record
from everlong_lab.training.states import KeptRows, as_floats, digest_of, require_same_reading


def fact_states(
    model: Any,
    blocks: Sequence[Record],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[torch.Tensor]:
    """Return states [BLOCK_TOKENS, width] bf16 of each block, read behind its sinks; `folder` keeps them.

    A run that was cut short goes on. Raises EverlongError for a folder of other blocks, another model or other layers.
    """
    require_same_reading(folder, model, layers, blocks=digest_of(block.ids.numpy().tobytes() for block in blocks))
    width = len(layers) * model.config.get_text_config(decoder=True).hidden_size
    with KeptRows(folder / "told", width) as kept:
        for done, block in enumerate(blocks):
            if done == len(kept.marks):
                kept.add(side_by_side(early_exit_states(model, block.ids, layers), layers)[SINK_TOKENS:])
                if progress is not None:
                    progress("blocks with questions", done + 1, len(blocks))
        rows, marks = kept.all_rows(), list(kept.marks)
    return [as_floats(rows[slice(*mark)]) for mark in marks[: len(blocks)]]
