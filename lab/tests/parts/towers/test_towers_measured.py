"""`everlong eval towers`: what counts as found and as answered, and a whole run on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import everlong_lab.parts.towers.measure as meaning
from everlong_lab.corpora.pairs import Pairs, Question, Text
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.towers.measure import ELSEWHERE, Measuring, QuestionMeasured, measure
from everlong_lab.parts.towers.measure_answers import GOLD, MEMORY, ToAnswer, drawn_evenly, words_f1
from support import TINY_MEMORY, byte_tokenizer, tiny_model

SECTIONS = tuple(f"In the {number} house there lived a {number} old woman with her cat." for number in range(60))
PAIRS = Pairs(
    (Text("a story", SECTIONS, "test", "fairytale"), Text("another", ("Quite other things.",), "fit", "fairytale")),
    (
        Question("Who lived in the 7 house?", 0, (7,), "explicit", ("an old woman", "a woman")),
        Question("What purred in the 31 house?", 0, (31,), "implicit", ("a cat",)),
        Question("What is otherwise?", 1, (0,), "explicit", ("all",)),
    ),
)


def test_half_a_page_of_a_section_is_right_and_all_of_a_fact() -> None:
    story = QuestionMeasured("?", "explicit", ((100, 200),))
    assert story.is_right((0, 132), 64)
    assert not story.is_right((0, 131), 64)
    fact = QuestionMeasured("?", "association", ((100, 120),))
    assert fact.is_right((64, 120), 64)
    assert not fact.is_right((64, 119), 64)


@pytest.mark.parametrize(
    ("reply", "answer", "f1"),
    [
        ("The old woman.", "an old woman", 1.0),
        ("a cat", "the dog", 0.0),
        ("the", "a", 0.0),
        ("old old woman", "old woman and cat", 4 / 7),  # two of three words, two of four
    ],
)
def test_f1_counts_shared_words(reply: str, answer: str, f1: float) -> None:
    assert words_f1(reply, answer) == pytest.approx(f1)


def test_the_best_of_the_answers_counts() -> None:
    assert ToAnswer("?", "explicit", (), ("a dog", "a cat")).score("The cat") == 1.0


def test_as_many_of_each_kind_are_answered() -> None:
    asked = [ToAnswer(str(number), kind, ()) for number in range(20) for kind in ("fact", "paraphrase")][:-15]
    chosen = drawn_evenly(asked, 11)
    assert [question.kind for question in chosen].count("fact") == 11
    assert len({(question.words, question.kind) for question in chosen}) == len(chosen)
    assert chosen == drawn_evenly(asked, 11)


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meaning, "load_pairs", lambda names: PAIRS)
    loaded = tiny_model(), byte_tokenizer()
    keep = tmp_path / "kept"

    def run(answers: int) -> meaning.MeaningReport:
        reports = measure(loaded, Measuring(keep=keep, answers=answers), pack=None, config=TINY_MEMORY)
        (report,) = reports.named.values()
        assert isinstance(report, meaning.MeaningReport)
        return report

    report = run(answers=5)
    kinds = [question["kind"] for question in report.questions]
    assert kinds == ["explicit", "implicit", ELSEWHERE]
    text = "".join(piece + "\n\n" for piece in SECTIONS).encode()
    for question, section in zip(report.questions, (7, 31), strict=False):
        ((first, last),) = question["spans"]
        begin = report.tokens - len(text)
        assert text[first - begin : last - begin].decode().strip() == SECTIONS[section]
    assert [answered.words for answered in report.answered] == [PAIRS.questions[0].words, PAIRS.questions[1].words]
    for answered in report.answered:
        assert set(answered.replies) == {MEMORY, GOLD}
        assert all(0 <= score <= 1 for score in answered.scores.values())
    again = run(answers=0)  # asks the memory that is kept
    assert [question["ranks"] for question in again.questions] == [question["ranks"] for question in report.questions]
    assert json.loads((keep / "stories.json").read_text())["shares"] == json.loads(json.dumps(again.shares()))
    told = io.StringIO()
    print_report(report, Console(file=told, width=200))
    assert "right passage alone" in told.getvalue()
    assert "1 implicit" in told.getvalue()
