"""How sure a memory is: what a search says, what an answer tells of it, and whether that is reported as it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

import everlong
from everlong.pictures import draw_report
from everlong_lab.eval.calibration import area_under_curve, calibration
from everlong_lab.eval.tables import print_report, store_report
from everlong_lab.parts.towers.measure import ELSEWHERE, QuestionMeasured, ask_all
from support import REPOSITORY, byte_tokenizer
from support.two_keys import a_memory  # noqa: F401  # a fixture


@pytest.fixture(name="report")
def a_report(mm: everlong.MemoryModel) -> Any:
    """Of a memory of two sources: a question to each, and one to neither."""
    core = mm.memory.core
    pages = core.blocks.pages()
    begin, end = pages[0].begin, pages[-1].end
    ids = core.blocks.token_ids(0, begin, end).tolist()
    questions = []
    for words in ("Zq7#Kx9", "Vw4%Jy8"):
        asked = byte_tokenizer()(words, add_special_tokens=False)["input_ids"]
        first = begin + next(at for at in range(len(ids)) if ids[at : at + len(asked)] == asked)
        questions.append(QuestionMeasured(words, "fact", ((first, first + len(asked)),)))
    return ask_all(mm, [*questions, QuestionMeasured("~~ ^^ ||", ELSEWHERE, ())], keep_rankings=True)


def test_every_question_is_asked_with_and_without_its_answer(report: Any) -> None:
    first, second, neither = report.questions
    for question in (first, second):
        there, left_out = question["searches"]
        assert (there["left_out"], left_out["left_out"]) == (False, True)
        assert there["rank"] == 1
        assert left_out["rank"] == 0
        assert there["confidence"] > left_out["confidence"]
        assert there["signs"].keys() == left_out["signs"].keys() == {"odds", "lexical, page", "lexical, group"}
    assert [search["left_out"] for search in neither["searches"]] == [False]
    told = report.confidences()["lexical"]
    assert told.among.n == 4
    assert told.among.true == 0.5
    assert told.among.auc == told.auc_left_out == told.auc_elsewhere == 1


def plain_error(said: list[float], true: list[bool]) -> float:
    """The expected calibration error, counted by hand."""
    error = 0.0
    for number in range(10):
        here = [at for at, p in enumerate(said) if number / 10 <= p < (number + 1) / 10 or (number == 9 and p == 1)]
        if here:
            gap = sum(said[at] for at in here) / len(here) - sum(true[at] for at in here) / len(here)
            error += abs(gap) * len(here) / len(said)
    return error


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for round_ in range(20):
        said = np.round(rng.beta(0.6, 0.8, 400), 2 if round_ % 2 else 9)  # with ties, and without
        said[:2] = 0.0, 1.0
        true = rng.random(400) < said**1.5
        told = calibration(said.tolist(), true.tolist())
        assert told.n == 400
        assert told.auc == pytest.approx(roc_auc_score(true, said))
        np.testing.assert_allclose(told.true, true.mean())
        bins_true, bins_said = calibration_curve(true, said, n_bins=10)
        if round_ % 2 == 0:  # with ties a probability may stand on the edge of two bins
            np.testing.assert_allclose([one.true for one in told.bins], bins_true)
            np.testing.assert_allclose([one.said for one in told.bins], bins_said)
            assert told.ece == pytest.approx(plain_error(said.tolist(), true.tolist()))
            bins_true, bins_said = calibration_curve(true, said, n_bins=10, strategy="quantile")
            assert told.ece_by_mass == pytest.approx(np.abs(bins_true - bins_said).mean(), abs=0.01)
    assert area_under_curve([0.5], []) is None
    assert calibration([0.2, 0.3], [False, False]).auc is None
    with pytest.raises(ValueError, match="no probabilities"):
        calibration([], [])


def test_a_kept_report_is_drawn_and_fitted(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    print_report(report, Console(width=200))
    assert "1.000" in capsys.readouterr().out
    file = tmp_path / "two.json"
    store_report(report.whole(), file)
    drawn = draw_report(json.loads(file.read_text("utf-8")), tmp_path)
    assert {path.name for path in drawn} == {"reliability.png", "reliability.svg"}
    assert draw_report({"confidences": {}}, tmp_path) == []

    if not (REPOSITORY / "benchmarks").exists():
        pytest.skip("no benchmarks beside these tests")
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import fit_confidence

    weights = tmp_path / "weights.inc"
    monkeypatch.setattr(sys, "argv", ["fit_confidence", str(file), "--weights", str(weights), "--test", str(file)])
    fit_confidence.main()
    (row,) = weights.read_text().splitlines()
    assert row.startswith("    {{IndexPart::kLexical}, ")
    assert f"lexical; {file.stem}: ECE" in capsys.readouterr().out
