"""What of a question is searched for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.prompt import Prompt
from everlong.recall import MOST_QUERY_TOKENS, head_queries, search
from tiny_models import TINY_MEMORY, byte_tokenizer, tiny_model


def test_of_a_long_question_the_rarest_tokens_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, by heads and words alike; a shorter one is searched for as it is."""
    asked: list[dict[str, Any]] = []
    model, tokenizer = tiny_model(), byte_tokenizer()
    text = "".join(f"{number:04d} and so on, and so on. " for number in range(400))
    config = dataclasses.replace(TINY_MEMORY, index=("heads", "lexical"))
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read(text)
        mm.calibrate()
        core = mm.memory.core

        class Spy:
            def search(self, **request: Any) -> Any:
                asked.append(request)
                return core.search(**request)

            def __getattr__(self, name: str) -> Any:
                return getattr(core, name)

        monkeypatch.setattr(mm.memory, "core", Spy())
        for length in (MOST_QUERY_TOKENS, 3 * MOST_QUERY_TOKENS):
            question = mm._encode(text[100 : 100 + length])
            tapped = mm.searcher.tap(Prompt(question, slice(0, length)))
            search(mm.frame, tapped, mm.config)
            idf = core.idf(tapped.token_ids)
            rows = sorted(sorted(range(length), key=lambda row: -idf[row])[:MOST_QUERY_TOKENS])
            assert asked[-1]["token_ids"].tolist() == tapped.token_ids[rows].tolist()
            assert mm.profile is not None
            expected = head_queries(mm.frame.served, tapped.queries, mm.profile)[rows]
            np.testing.assert_allclose(asked[-1]["head_queries"], expected, atol=1e-6)
    digits = {*tokenizer("0123456789")["input_ids"]}
    assert len(digits & {*asked[-1]["token_ids"].tolist()}) > 3


def test_of_a_table_the_line_that_was_asked_for_comes_back_and_not_its_half() -> None:
    """What came back is what is said to have come back."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    lines = [f"the number of {number:03d} is {(number * 7919) % 1000:03d}; " for number in range(60)]
    lines[30] = "the number of QXZ is JKV; "
    config = dataclasses.replace(TINY_MEMORY, index=("lexical",), groups=1, frame_tokens=1_536, recalled_tokens=640)
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read("".join(lines))
        mm.read("e " * 400)  # the table has left the window
        mm.generate("what is the number of QXZ?", max_new_tokens=1, remember=False)
        (recall,) = mm.last_recalled
    assert lines[30] in recall.text
    assert recall.span[1] - recall.span[0] <= 4 * config.page_tokens < config.recalled_tokens < len("".join(lines))
