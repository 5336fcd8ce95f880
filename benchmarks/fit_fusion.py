"""Fit the weights of the fusion (cpp/include/everlong/index/fusion.h) to what the index finds of the development set.

    python benchmarks/index_recall.py WORK --memory FOLDER --report niah.json --development
    python benchmarks/fit_fusion.py WORK/development.json [ANOTHER/development.json ...] [--weights 18 10 3.4 4 38.3]

A conditional logit: the evidence of a voice, which is what a part says of pages or of groups, is linear in the root of
the share, and exp of the sum over the voices is to the sum over all pages that they name as the probability of a page.
The weights are those of maximum likelihood with a small ridge, over all three parts and every two of them at once, so
that one set of weights serves whichever parts a memory has; --weights keeps those that are given. Then the least
evidence: beside the encoder, heads and words say nothing where their best page has less than so much for each of them,
which falls by a power of the pages that are searched; both numbers are those of greatest likelihood on a grid. Asked
behind memories of several lengths, a question counts at each. Printed: all of these, and how many questions have their
group first and among the first four, by cross-validation with five folds of questions.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from index_recall import groups_of, rank_of

Array = npt.NDArray[np.float64]
VOICES = ("heads", "heads group", "lexical", "lexical group", "embedding")
SUBSETS = ((0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 4), (2, 3, 4))
IN_SO_MANY_WORDS, BY_MEANING = (0, 1, 2, 3), 4
GROUPS = (1, 3)
FOLDS = 5
RIDGE = 0.01
LEAST_OVERLAP = 8  # tokens of a fact that make a page a right one
LEAST = np.arange(0, 4, 0.1)  # evidence of a part
FEWEST_PAGES = 3_600  # behind the shortest memory that was asked; what holds for fewer was not measured
FALLS = np.arange(0, 0.55, 0.05)  # powers of pages


class Constants(NamedTuple):
    weights: Array  # [voices]
    least: float  # evidence of a part, among the fewest pages
    falls: float


def parts_of(voices: Sequence[int]) -> list[str]:
    return list(dict.fromkeys(VOICES[voice].removesuffix(" group") for voice in voices))


class Asked:
    """A question: the pages that any voice names, and what each has to say of them."""

    def __init__(self, row: dict[str, Any], ordinals: dict[int, int], pages: Sequence[Any]) -> None:
        self.text: str = row["text"]
        self.paraphrase: bool = row["paraphrase"]
        self.span: tuple[int, int] = (row["span"][0], row["span"][1])
        self.all_pages = pages
        roots: list[dict[int, float]] = []
        for voice in VOICES:
            hits, whole = row["candidates"][voice], row["whole"][voice]
            root = {ordinals[begin]: (max(0.0, score) / whole) ** 0.5 for begin, score in reversed(hits)}
            unnamed = (max(0.0, row["unnamed"][voice]) / whole) ** 0.5
            roots.append({page: value - unnamed for page, value in root.items()})
        self.pages = sorted(set().union(*roots))
        self.evidence: Array = np.array([[root.get(page, 0.0) for root in roots] for page in self.pages])
        self.named = np.array([[page in root for root in roots] for page in self.pages])
        first, last = self.span
        wanted = min(LEAST_OVERLAP, last - first)
        self.right = np.array(
            [min(last, pages[page].end) - max(first, pages[page].begin) >= wanted for page in self.pages]
        )

    def thinned(self, falls: Array | float) -> Array:
        """How much of the least evidence is asked for among so many pages."""
        longer: float = max(1.0, len(self.all_pages) / FEWEST_PAGES)
        return np.power(longer, -np.asarray(falls, dtype=np.float64))

    def scores(self, constants: Constants, voices: Sequence[int]) -> tuple[Array, Array]:
        """[pages]: fused, by these voices; and what of it is of groups."""
        weighted = self.evidence * constants.weights
        words = [voice for voice in voices if voice in IN_SO_MANY_WORDS]
        groups = [voice for voice in words if voice in GROUPS]
        matched: Array = weighted[:, words].sum(axis=1)
        beside: Array = weighted[:, groups].sum(axis=1)
        if BY_MEANING not in voices:
            return matched, beside
        heard = matched.max() >= len(parts_of(words)) * constants.least * self.thinned(constants.falls)
        meant: Array = weighted[:, BY_MEANING]
        return (meant + matched, beside) if heard else (meant, 0 * beside)

    def rank(self, constants: Constants, voices: Sequence[int]) -> int:
        """Of the group that holds the fact."""
        score, beside = self.scores(constants, voices)
        named = self.named[:, voices].any(axis=1)
        order = sorted(np.flatnonzero(named), key=lambda i: (-score[i], self.pages[i]))
        ranking = [self.pages[i] for i in order]
        return rank_of(groups_of(self.all_pages, ranking, score[order].tolist(), beside[order].tolist()), self.span)


def fit_weights(questions: Sequence[Asked], steps: int = 30) -> Array:
    """Newton's method; a question whose right page no voice names says nothing."""
    weights: Array = np.ones(len(VOICES))
    sets = []
    for voices in SUBSETS:
        used = np.isin(np.arange(len(VOICES)), voices)
        for question in questions:
            named = question.named[:, used].any(axis=1)
            if (question.right & named).any():
                sets.append((question.evidence[named] * used, question.right[named]))
    # Evidence of one scale for the ridge, as for the start.
    scale = np.sqrt(np.mean(np.concatenate([evidence**2 for evidence, _ in sets]), axis=0))
    for _ in range(steps):
        gradient, hessian = 2 * RIDGE * weights, 2 * RIDGE * np.eye(len(VOICES))
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


def fit_least(questions: Sequence[Asked], weights: Array) -> tuple[float, float]:
    """The least evidence and by which power it falls, given the weights."""
    likelihood = np.zeros((len(LEAST), len(FALLS)))  # log
    for voices in (voices for voices in SUBSETS if BY_MEANING in voices):
        words = [voice for voice in voices if voice in IN_SO_MANY_WORDS]
        for question in questions:
            named = question.named[:, voices].any(axis=1)
            right = question.right[named]
            if not right.any():
                continue
            weighted = (question.evidence * weights)[named]
            matched, alone = weighted[:, words].sum(axis=1), weighted[:, BY_MEANING]
            heard, unheard = (np.logaddexp.reduce(s[right]) - np.logaddexp.reduce(s) for s in (alone + matched, alone))
            least = len(parts_of(words)) * LEAST[:, None] * question.thinned(FALLS)
            likelihood += np.where(matched.max() >= least, heard, unheard)
    best = np.unravel_index(likelihood.argmax(), likelihood.shape)
    return float(LEAST[best[0]]), float(FALLS[best[1]])


def fit(questions: Sequence[Asked], weights: Array | None) -> Constants:
    fitted = fit_weights(questions) if weights is None else weights
    return Constants(fitted, *fit_least(questions, fitted))


def asked_in(results: pathlib.Path) -> list[Asked]:
    (one,) = json.loads(results.read_text()).values()
    pages = [SimpleNamespace(begin=begin, end=end) for begin, end in one["pages"]]
    ordinals = {page.begin: ordinal for ordinal, page in enumerate(pages)}
    return [Asked(row, ordinals, pages) for row in one["questions"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="development.json of benchmarks/index_recall.py")
    parser.add_argument("--weights", type=float, nargs=len(VOICES), help=f"of {', '.join(VOICES)}: not fitted")
    options = parser.parse_args()
    archives = [asked_in(results) for results in options.results]
    questions = [question for archive in archives for question in archive]
    given = None if options.weights is None else np.array(options.weights)
    fitted = fit(questions, given)
    told = ", ".join(f"{voice} {weight:.3g}" for voice, weight in zip(VOICES, fitted.weights, strict=True))
    print(f"weights: {told}; least evidence: {fitted.least:.2g}, falling by pages to the power of -{fitted.falls:.2g}")
    texts = sorted({question.text for question in questions})
    # A question is in the same fold in every archive.
    folds = dict(zip(texts, np.random.default_rng(0).permutation(len(texts)) % FOLDS, strict=True))
    of_fold = [fit([question for question in questions if folds[question.text] != out], given) for out in range(FOLDS)]
    for archive in archives:
        print(f"{archive[0].all_pages[-1].end:,} tokens")
        for voices in SUBSETS:
            ranks = [question.rank(of_fold[folds[question.text]], voices) for question in archive]
            print("  " + " + ".join(parts_of(voices)), end=": ")
            for name, paraphrase in (("facts", False), ("paraphrases", True)):
                these = [rank for rank, q in zip(ranks, archive, strict=True) if q.paraphrase is paraphrase]
                first = sum(rank == 1 for rank in these)
                print(f"{name} {first} first, {sum(map(bool, these))} in four, of {len(these)}", end="; ")
            print()


if __name__ == "__main__":
    main()
