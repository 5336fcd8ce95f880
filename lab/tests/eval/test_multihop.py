"""Questions over several passages: files are read whole, and every rival answers from its own passages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from everlong_lab.eval.published.example import Text
from everlong_lab.eval.published.formats import examples_in
from everlong_lab.eval.published.passage_rivals import PASSAGE_RIVALS, PassageSearch
from everlong_lab.eval.published.run import RIVALS, evidence_rows, run_published
from everlong_lab.eval.statistics import mcnemar
from support import TINY_MEMORY, byte_tokenizer, tiny_model

HOTPOTQA = [
    {
        "_id": "5a7",
        "question": "Where was the builder of the Red Mill born?",
        "answer": "Turku",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [["Red Mill", 1], ["Aino Salo", 0]],
        "context": [
            ["Blue Mill", ["The Blue Mill grinds rye.", " Nobody knows who built it."]],
            ["Red Mill", ["The Red Mill grinds wheat.", " Aino Salo built it."]],
            ["Aino Salo", ["Aino Salo was born in Turku."]],
        ],
    }
]
MUSIQUE = [
    {
        "id": "2hop__1_2",
        "question": "Who leads the town of the mill?",
        "answer": "Eero Lind",
        "answer_aliases": ["Lind"],
        "answerable": True,
        "question_decomposition": [],
        "paragraphs": [
            {"idx": 0, "title": "Mill", "paragraph_text": "The mill stands in Salo.", "is_supporting": True},
            {"idx": 1, "title": "Mill", "paragraph_text": "A mill grinds.", "is_supporting": False},
            {"idx": 2, "title": "Salo", "paragraph_text": "Eero Lind leads Salo.", "is_supporting": True},
        ],
    }
]


def write(file: Path, value: Any) -> Path:
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


def test_a_question_names_the_passages_that_answer_it(tmp_path: Path) -> None:
    (hotpot,) = examples_in(write(tmp_path / "hotpotqa.json", HOTPOTQA), 0)
    assert [text.source for text in hotpot.texts] == ["Blue Mill", "Red Mill", "Aino Salo"]
    assert hotpot.texts[1].text == "Red Mill\nThe Red Mill grinds wheat. Aino Salo built it.\n"
    assert hotpot.evidence == ("Red Mill", "Aino Salo")
    assert (hotpot.is_right("In Turku."), hotpot.is_right("Turkuu")) == (True, False)
    (musique,) = examples_in(write(tmp_path / "musique.json", MUSIQUE), 0)
    assert [text.source for text in musique.texts] == ["Mill", "Mill (2)", "Salo"]
    assert musique.evidence == ("Mill", "Salo")
    assert musique.answers == ("Eero Lind", "Lind")


def test_a_corpus_beside_the_questions_is_the_text_of_all(tmp_path: Path) -> None:
    write(
        tmp_path / "musique_corpus.json",
        [{"title": "Other", "text": "Else."}]
        + [
            {"title": one["title"], "text": one["paragraph_text"]}
            for one in reversed(MUSIQUE[0]["paragraphs"])  # type: ignore[arg-type,attr-defined]
        ],
    )
    write(tmp_path / "hotpotqa_corpus.json", dict(HOTPOTQA[0]["context"]))  # type: ignore[arg-type]
    write(tmp_path / "musique.json", MUSIQUE * 2)
    write(tmp_path / "hotpotqa.json", HOTPOTQA)
    hotpot, first, second = examples_in(tmp_path, 0)
    assert [text.source for text in first.texts] == ["Other", "Salo", "Mill", "Mill (2)"]
    assert first.texts[3].text == "Mill\nThe mill stands in Salo.\n"
    assert first.evidence == ("Mill (2)", "Salo")
    assert first.texts is second.texts
    assert len(hotpot.texts) == 3


def test_text_retrieval_takes_what_fits_and_at_least_one() -> None:
    texts = [Text("red boat " * 3, "a"), Text("green house", "b"), Text("a red boat on the lake", "c")]
    search = PassageSearch(texts, byte_tokenizer())
    assert search.find("red boat", 1).sources in (("a",), ("c",))
    found = search.find("red boat", len(texts[0].text) + len(texts[2].text))
    assert set(found.sources) == {"a", "c"}
    assert found.tokens == len(texts[0].text) + len(texts[2].text)
    assert len(search.find("red boat", 10_000).sources) == 3


def test_every_rival_answers_and_a_run_goes_on(tmp_path: Path) -> None:
    data, out = write(tmp_path / "hotpotqa.json", HOTPOTQA), tmp_path / "out"
    model = (tiny_model(), byte_tokenizer())
    report = run_published(model, data, out=out, memory_config=TINY_MEMORY)
    (question,) = report["questions"]
    assert list(question["replies"]) == [*RIVALS, *PASSAGE_RIVALS]
    rows = report["evidence"]["hotpotqa"]
    assert rows["gold"]["all_evidence"] == rows["gold"]["evidence"] == 1
    assert (rows["window"]["tokens"], rows["window"]["evidence"]) == (0, 1)  # all of it stands in the frame
    assert rows["same text"]["tokens"] == rows["everlong"]["tokens"]
    assert rows["same text"]["evidence"] <= rows["everlong"]["evidence"]  # which has what stands in the frame, too
    lines = (out / "answers.jsonl").read_bytes().split(b"\n")
    (out / "answers.jsonl").write_bytes(b"\n".join(lines[:-3]) + b"\n")
    again = run_published(model, data, out=out, memory_config=TINY_MEMORY)
    assert again["questions"] == report["questions"]


def test_evidence_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "hotpotqa.json", HOTPOTQA)
    write(tmp_path / "musique.json", MUSIQUE)
    examples = list(examples_in(tmp_path, 0))
    row = {"reply": "no", "recalled": [], "recalled_tokens": 10, "seconds": 1.0}
    rows = {(one.id, rival): row for one in examples for rival in (*RIVALS, *PASSAGE_RIVALS)}
    hotpot, musique = (one.id for one in examples)
    rows[hotpot, "everlong"] = row | {"reply": "Turku", "recalled": ["Aino Salo", "Blue Mill", "Red Mill"]}
    rows[musique, "everlong"] = row | {"recalled": ["Mill", "Mill (2)"]}
    counted = evidence_rows(examples, rows)["everlong"]
    assert counted == {
        "questions": 2,
        "all_evidence": 0.5,
        "evidence": 0.75,
        "right": 0.5,
        "f1": 0.5,
        "right_of_found": 1.0,
        "tokens": 10,
        "seconds": 1,
        "p": None,
    }
    assert evidence_rows(examples, rows)["window"]["right_of_found"] is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_mcnemar_is_the_binomial_test_of_what_differs(pairs: list[tuple[bool, bool]]) -> None:
    gained, lost = (sum(pair == one for pair in pairs) for one in ((True, False), (False, True)))
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar([one for one, _ in pairs], [other for _, other in pairs]) == pytest.approx(expected)
