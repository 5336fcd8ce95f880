"""Fit the weights of the fusion (cpp/src/index/logit_fusion.cc) to what the index finds of the development set.

    python benchmarks/index_recall.py WORK --memory FOLDER --report niah.json --development
    python benchmarks/fit_fusion.py WORK/development.json [ANOTHER/development.json ...]

A conditional logit: a part's evidence for a page is linear in the root of its share, and exp of the sum over the parts
is to the sum over all pages that they name as the probability of the page. The weights are those of maximum likelihood
with a small ridge, over all three parts and every two of them at once, so that one set of weights serves whichever
parts a memory has. Asked behind memories of several lengths, a question counts at each. Printed: the weights, and how
many questions have their group first and among the first four, by cross-validation with five folds of questions.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from index_recall import CANDIDATES, groups_of, rank_of

Array = npt.NDArray[np.float64]
PARTS = ("heads", "lexical", "embedding")
SUBSETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2))
FOLDS = 5
RIDGE = 0.01
LEAST_OVERLAP = 8  # tokens of a fact that make a page a right one


class Asked:
    """A question: the pages that any part names, and what each part has to say of them."""

    def __init__(self, row: dict[str, Any], ordinals: dict[int, int], pages: Sequence[Any]) -> None:
        self.text: str = row["text"]
        self.paraphrase: bool = row["paraphrase"]
        self.span: tuple[int, int] = (row["span"][0], row["span"][1])
        self.all_pages = pages
        roots: list[dict[int, float]] = []
        for part in PARTS:
            hits, whole = row["candidates"][part], row["whole"][part]
            root = {ordinals[begin]: (max(0.0, score) / whole) ** 0.5 for begin, score in reversed(hits)}
            unnamed = min(root.values()) if len(hits) >= CANDIDATES else 0.0
            roots.append({page: value - unnamed for page, value in root.items()})
        self.pages = sorted(set().union(*roots))
        self.evidence: Array = np.array([[root.get(page, 0.0) for root in roots] for page in self.pages])
        self.named = np.array([[page in root for root in roots] for page in self.pages])
        first, last = self.span
        wanted = min(LEAST_OVERLAP, last - first)
        self.right = np.array(
            [min(last, pages[page].end) - max(first, pages[page].begin) >= wanted for page in self.pages]
        )

    def rank(self, weights: Array, parts: Sequence[int]) -> int:
        """Of the group that holds the fact."""
        score = self.evidence[:, parts] @ weights[list(parts)]
        named = self.named[:, parts].any(axis=1)
        order = sorted(np.flatnonzero(named), key=lambda i: (-score[i], self.pages[i]))
        return rank_of(groups_of(self.all_pages, [self.pages[i] for i in order]), self.span)


def fit(questions: Sequence[Asked], steps: int = 30) -> Array:
    """Newton's method; a question whose right page no part names says nothing."""
    weights: Array = np.ones(len(PARTS))
    sets = []
    for parts in SUBSETS:
        used = np.isin(np.arange(len(PARTS)), parts)
        for question in questions:
            named = question.named[:, used].any(axis=1)
            if (question.right & named).any():
                sets.append((question.evidence[named] * used, question.right[named]))
    # Evidence of one scale for the ridge, as for the start.
    scale = np.sqrt(np.mean(np.concatenate([evidence**2 for evidence, _ in sets]), axis=0))
    for _ in range(steps):
        gradient, hessian = 2 * RIDGE * weights, 2 * RIDGE * np.eye(len(PARTS))
        for unscaled, right in sets:
            evidence = unscaled / scale
            odds = np.exp(evidence @ weights - (evidence @ weights).max())
            chance, target = odds / odds.sum(), odds * right / odds[right].sum()
            mean = chance @ evidence
            gradient += mean - target @ evidence
            hessian += (evidence * chance[:, None]).T @ evidence - np.outer(mean, mean)
        step = np.linalg.solve(hessian, gradient)
        weights = np.maximum(weights - step, 0)
        if np.abs(step).max() < 1e-6:
            break
    fitted: Array = weights / scale
    return fitted


def asked_in(results: pathlib.Path) -> list[Asked]:
    (one,) = json.loads(results.read_text()).values()
    pages = [SimpleNamespace(begin=begin, end=end) for begin, end in one["pages"]]
    ordinals = {page.begin: ordinal for ordinal, page in enumerate(pages)}
    return [Asked(row, ordinals, pages) for row in one["questions"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="development.json of benchmarks/index_recall.py")
    archives = [asked_in(results) for results in parser.parse_args().results]
    questions = [question for archive in archives for question in archive]
    print("weights:", ", ".join(f"{part} {weight:.3g}" for part, weight in zip(PARTS, fit(questions), strict=True)))
    texts = sorted({question.text for question in questions})
    # A question is in the same fold in every archive.
    folds = dict(zip(texts, np.random.default_rng(0).permutation(len(texts)) % FOLDS, strict=True))
    of_fold = [fit([question for question in questions if folds[question.text] != out]) for out in range(FOLDS)]
    for archive in archives:
        print(f"{archive[0].all_pages[-1].end:,} tokens")
        for parts in SUBSETS:
            ranks = [question.rank(of_fold[folds[question.text]], parts) for question in archive]
            print("  " + " + ".join(PARTS[part] for part in parts), end=": ")
            for name, paraphrase in (("facts", False), ("paraphrases", True)):
                these = [rank for rank, q in zip(ranks, archive, strict=True) if q.paraphrase is paraphrase]
                first = sum(rank == 1 for rank in these)
                print(f"{name} {first} first, {sum(map(bool, these))} in four, of {len(these)}", end="; ")
            print()


if __name__ == "__main__":
    main()
