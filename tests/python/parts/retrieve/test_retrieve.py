"""<RETRIEVE>: what it learns from, that it is said as a row of the output embeddings would say it, and who listens."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch

import everlong
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import Pack
from everlong.parts.retrieve import Retrieve
from everlong.parts.retrieve.model import RETRIEVE, RetrieveRow, RetrieveSettings
from support import SMALL, byte_tokenizer, random_text, tiny_model


def drawn_part(model: Any, bias: float = 0.0, threshold: float = 0.5) -> Pack:
    """A row and maps of random numbers."""
    torch.manual_seed(3)
    row = RetrieveRow(RetrieveSettings(model.config.hidden_size, threshold))
    maps = LowRankMaps(MapSettings(2), mapped_layers(model))
    for up in maps.up:
        up.data.normal_(std=0.05)
    row.row.weight.data.normal_()
    row.row.bias.data.fill_(bias)
    return Pack(weights_fingerprint(model), "", {RETRIEVE: row.part_with(maps, {})})


@pytest.mark.parametrize("says", [True, False])
def test_a_question_brings_something_back_where_it_is_said(says: bool, tmp_path: pathlib.Path) -> None:
    model = tiny_model()
    drawn_part(model, threshold=0.0 if says else 1.0).save(tmp_path / "pack")
    config = SMALL.changed(search={"index": ("lexical",)}).with_part(Retrieve())
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=config, pack=tmp_path / "pack") as mm:
        mm.read(random_text(2000))
        rolling = mm.frame.os.rolling
        answer = mm.generate(random_text(40)[:24], max_new_tokens=4)
        assert (len(answer.recalled) > 0) == says
        restored = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0]
        assert (len(restored) > 0) == says
        assert (mm.frame.os.rolling[0] == rolling[0]) or says


def test_without_what_says_it_nothing_listens() -> None:
    config = SMALL.with_part(Retrieve())
    with pytest.raises(ValueError, match="train retrieve"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config)
    with pytest.raises(TypeError, match="prompt_recall"):
        dataclasses.replace(SMALL, prompt_recall="sometimes")
