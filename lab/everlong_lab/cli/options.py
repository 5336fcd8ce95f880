"""Groups of options of the lab's commands, beside those of `everlong.cli.options`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong.cli.app import DEFAULT_MODEL, Model
from everlong.cli.options import ModelOptions

if TYPE_CHECKING:
    from everlong.config import MemoryConfig

Seed = Annotated[int, typer.Option(help="Seed of facts, places and orders; the same seed gives the same questions.")]
Corpus = Annotated[
    Path | None,
    typer.Option(help="More books, where the shipped ones are too short: a folder of .txt files or a .tar.xz."),
]


@dataclasses.dataclass(frozen=True)
class Evaluated(ModelOptions):
    """What is measured, and on what."""

    model: Model = DEFAULT_MODEL
    seed: Seed = 0
    corpus: Corpus = None

    def load_as_begun(self, folder: Path | None, file: str) -> tuple[tuple[Any, Any], MemoryConfig]:
        """Load in the dtype of --dtype, or else in the dtype in which a run with answers in that file began."""
        from everlong_lab.eval.answers import dtype_of

        return self.load_configured(self.model, dtype_of(folder, file))
