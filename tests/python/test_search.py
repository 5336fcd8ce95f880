"""What of a question is searched for."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.prompt import Prompt
from everlong.recall import MOST_QUERY_TOKENS, Group, head_queries, search
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
            tapped = mm._tap(Prompt(question, slice(0, length)))
            search(mm.frame, tapped, mm.config)
            idf = core.idf(tapped.token_ids)
            rows = sorted(sorted(range(length), key=lambda row: -idf[row])[:MOST_QUERY_TOKENS])
            assert asked[-1]["token_ids"].tolist() == tapped.token_ids[rows].tolist()
            assert mm.profile is not None
            expected = head_queries(mm.frame.served, tapped.queries, mm.profile)[rows]
            np.testing.assert_allclose(asked[-1]["head_queries"], expected, atol=1e-6)
    digits = {*tokenizer("0123456789")["input_ids"]}
    assert len(digits & {*asked[-1]["token_ids"].tolist()}) > 3


NOTHING = float("-inf")


@pytest.mark.parametrize(
    ("scores", "neighbours", "kept"),
    [
        # A line of a table: what else is named shares a digit or two with the question.
        ([0.5, 0.4, 0.6, 5.6, 0.7, NOTHING], 1, (2, 5)),
        ([0.5, 0.4, 0.6, 5.6, 0.7, NOTHING], 0, (3, 4)),
        ([0.5, 0.4, 0.6, 5.6, 0.7, NOTHING], 2, (1, 6)),
        # A statement that runs on beyond the neighbours of its first page.
        ([NOTHING, 13.5, NOTHING, 8.4, NOTHING], 1, (0, 5)),
        ([0.1, 0.2, NOTHING, 9.0, 0.3, 0.2, 8.0, 0.1, 0.4], 1, (2, 8)),
        # Nothing stands out.
        ([0.5, 0.6, 0.7, 0.4, 0.5], 1, (0, 5)),
        ([-0.2, -0.1, -0.3], 0, (1, 2)),
        ([0.0, 0.0], 0, (0, 2)),
    ],
)
def test_a_group_ends_where_nothing_speaks_for_it_any_more(
    scores: list[float], neighbours: int, kept: tuple[int, int]
) -> None:
    pages = [types.SimpleNamespace(begin=64 * number, end=64 * (number + 1)) for number in range(len(scores))]
    found: Any = types.SimpleNamespace(
        pages=pages, page_scores=scores, stream=0, source="table", score=max(scores), found_by=["lexical"]
    )
    group = Group.of(found, neighbours)
    assert list(group.pages) == pages[slice(*kept)]
    assert list(group.page_scores) == scores[slice(*kept)]
    assert (group.begin, group.end) == (64 * kept[0], 64 * kept[1])
    assert group.score == max(scores)


def test_of_a_table_the_line_that_was_asked_for_comes_back_and_not_its_half() -> None:
    """What came back is what is said to have come back."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    lines = [f"the number of {number:03d} is {(number * 7919) % 1000:03d}; " for number in range(60)]
    lines[30] = "the number of QXZ is JKV; "
    config = dataclasses.replace(TINY_MEMORY, index=("lexical",), groups=1, frame_tokens=1_536, recalled_tokens=640)
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read("".join(lines))
        mm.read("e " * 400)  # the table has left the window
        question = mm._encode("what is the number of QXZ?").numpy().astype(np.int32)
        (wide,) = mm.memory.core.search(token_ids=question, kinds=["lexical"], max_groups=1, token_budget=640).groups
        mm.generate("what is the number of QXZ?", max_new_tokens=1, remember=False)
        (recall,) = mm.last_recalled
    assert lines[30] in recall.text
    assert recall.span[1] - recall.span[0] <= 4 * config.page_tokens < wide.end - wide.begin
