"""How sure a memory is: what a search says, what an answer tells of it, and whether that is reported as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.generation.answer import UNSURE_BELOW
from support import REPOSITORY, TINY_MEMORY, byte_tokenizer, tiny_model
from support.two_keys import a_memory  # noqa: F401  # a fixture


def searches_of(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills with what the core answers."""
    results: list[Any] = []
    original = everlong.retrieval.search.search

    def noting(*arguments: Any, **named: Any) -> Any:
        found = original(*arguments, **named)
        results.append(found)
        return found

    monkeypatch.setattr(everlong.retrieval.searcher, "search", noting)
    return results


def test_an_answer_is_as_sure_as_its_search(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = searches_of(mm, monkeypatch)
    answers = [mm.generate(asked, max_new_tokens=1, remember=False, chat=False) for asked in ("Zq7#Kx9", "~~ ^^ ||")]
    for answer, found in zip(answers, searches, strict=True):
        assert answer.confidence is not None
        assert 0 <= answer.confidence <= 1
        assert answer.confidence == pytest.approx(sum(group.confidence for group in found.offers))
        assert [recall.confidence for recall in answer.recalled] == [group.confidence for group in found.offers]
        assert answer.unsure == (answer.confidence < UNSURE_BELOW)
    assert answers[0].confidence > answers[1].confidence
    assert answers[1].unsure
    list(mm.stream("Zq7#Kx9", max_new_tokens=1, chat=False))
    assert mm.last_confidence == pytest.approx(answers[0].confidence)


def test_the_group_that_comes_alone_has_its_own_confidence(mm: everlong.MemoryModel) -> None:
    mm.config = mm.config.changed(search={"neighbours": 0})
    together = mm.generate("Zq7#Kx9", max_new_tokens=1, remember=False, chat=False)
    mm.config = mm.config.changed(search={"decisive": 0.0})
    alone = mm.generate("Zq7#Kx9", max_new_tokens=1, remember=False, chat=False)
    assert len(alone.recalled) == 1 < len(together.recalled)
    assert alone.confidence == alone.recalled[0].confidence == together.recalled[0].confidence


def test_without_a_search_there_is_none(mm: everlong.MemoryModel) -> None:
    how: dict[str, Any] = {"max_new_tokens": 1, "remember": False, "chat": False}
    pages = mm.memory.core.blocks.pages()[:2]
    nowhere = everlong.Where(source="nowhere")
    for answer in (
        mm.generate("Zq7#Kx9", recall=False, **how),
        mm.generate("Zq7#Kx9", recall=pages, **how),
        mm.generate("Zq7#Kx9", where=nowhere, **how),
    ):
        assert answer.confidence is None
        assert not answer.unsure
    mm.config = mm.config.changed(search={"index": ("mean_pool",)})
    by_means = mm.generate("Zq7#Kx9", **how)
    assert by_means.recalled
    assert by_means.confidence is None


def test_an_empty_memory_says_zero() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        found = mm.memory.core.search.find(token_ids=np.array([5, 6], dtype=np.int32))
        assert found.groups == []
        assert found.confidence == 0


def test_what_the_core_says_is_the_sum_of_its_groups(mm: everlong.MemoryModel) -> None:
    ids = np.array(byte_tokenizer()("the fox has Zq7#Kx9", add_special_tokens=False)["input_ids"], dtype=np.int32)
    for groups in (1, 2, 4):
        found = mm.memory.core.search.find(token_ids=ids, kinds=["lexical"], max_groups=groups, neighbours=1)
        assert sum(group.confidence for group in found.groups) == pytest.approx(found.confidence, rel=1e-5)
        assert set(found.signs) == {"odds", "lexical, page", "lexical, group"}
        assert all(found.signs[f"lexical, {unit}"] >= 0 for unit in ("page", "group"))


def test_the_fit_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no weight would be negative and the ridge is as weak: two fits of one likelihood."""
    if not (REPOSITORY / "benchmarks").exists():
        pytest.skip("no benchmarks beside these tests")
    from sklearn.linear_model import LogisticRegression

    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import fit_confidence

    rng = np.random.default_rng(1)
    signs = rng.random((3000, len(fit_confidence.SIGNS)))
    signs[:, 6] = 0  # of a part that was not asked
    weights = np.array([1.0, 2, 0.5, 3, 1, 2, 0, 1.5, 2.5, 1, 2, 4])
    right = rng.random(3000) < 1 / (1 + np.exp(-(signs @ weights - 10)))
    count = rng.integers(1, 3, 3000)
    searches = [
        fit_confidence.Search("", tuple(one), bool(y), float(n)) for one, y, n in zip(signs, right, count, strict=True)
    ]
    monkeypatch.setattr(fit_confidence, "RIDGE", 1e-7)
    fitted = fit_confidence.fit(searches)
    plain = LogisticRegression(C=1e6, max_iter=5000, tol=1e-8).fit(signs, right, sample_weight=count)
    np.testing.assert_allclose(fitted.weights, plain.coef_[0], atol=0.02)
    assert fitted.base == pytest.approx(plain.intercept_[0], abs=0.02)
    flipped = [dataclasses.replace(one, right=not one.right) for one in searches]
    assert (fit_confidence.fit(flipped).weights == 0).all(), "less is never likelier"
