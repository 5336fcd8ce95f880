"""<RETRIEVE>: what it learns from, that it is said as a row of the output embeddings would say it, and who listens."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

import everlong
from everlong.parts.retrieve import Retrieve
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.parts.retrieve import drawn_part


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
