"""Fit the weights of the fusion (cpp/index/include/everlong/index/fusion.h) to what the parts say of questions.

    everlong eval towers --fitting --keep WORK --lengths 128K
    everlong eval towers --fitting --keep WORK --lengths 128K --no-stories
        --set search.index=heads,lexical,meaning,encoder,embedding
    python benchmarks/fit_fusion.py WORK/*.json [--statements 0.5] --keep lexical embedding

--keep leaves the voices of these parts as they are: without rankings of theirs nothing can be fitted, and beside an
encoder the fit hardly hears words.

The model is a mixture of two conditional logits. An answer is a statement, which single pages show, or prose, which
pages with their neighbours show. In each, a ranking's evidence for a page is linear in its share or in the root of it,
above that of pages that it does not name. The probability of a page is exp of its sum over the rankings, divided by
that of all pages.

The weights are those of maximum likelihood with a small ridge, over every set of parts that a memory may have at once.
So one set of weights serves them all. A statement is looked for in rankings of single pages only. --statements is the
weight of questions about planted facts in the likelihood; the other questions are about stories. The benchmark prints
the weights, the chance of a statement, and how many questions have their group first and among the first four. It uses
cross-validation with five folds of questions.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from index_recall import groups_of

Array = npt.NDArray[np.float64]
VOICES = (
    *((part, unit) for part in ("heads", "lexical", "meaning", "encoder") for unit in ("page", "group")),
    ("embedding", "page"),
)
SETS = (
    ("lexical",),
    ("heads", "lexical"),
    ("heads", "lexical", "meaning"),
    ("lexical", "encoder"),
    ("heads", "lexical", "encoder"),
    ("heads", "encoder"),
    ("encoder",),
    ("heads", "lexical", "meaning", "encoder"),
    ("heads", "lexical", "embedding"),
    ("heads", "lexical", "meaning", "embedding"),
)
DEFAULT = ("heads", "lexical", "meaning", "encoder")  # counts as much as the other sets together
# Where the voices stand in the core, in the order of VOICES: weights, and that evidence grows with the share itself.
_INDEX = pathlib.Path(__file__).parent.parent / "cpp/index"
_SOURCES = ("heads_part.cc", "lexical_part.cc", "meaning_part.cc", "embedding_part.cc")
_TOLD = re.compile(r"Evidence\{([\d.]+), ([\d.]+)\}(, Voice::Grows::kAsShare)?")
FOLDS = 5
RIDGE = 0.001
LEAST_OVERLAP = 8  # tokens of a fact in a page that make it a right one; for a section it is half a page
PLANTED = ("fact", "paraphrase", "association")


class Question:
    """The pages that any part names, what each ranking says of them, and which of them are right."""

    def __init__(self, row: dict[str, Any], pages: Sequence[Any], ordinals: dict[int, int]) -> None:
        self.words: str = row["words"]
        self.kind: str = row["kind"]
        self.spans: list[tuple[int, int]] = [(first, last) for first, last in row["spans"]]
        self.all_pages = pages
        told = {(ranking["part"], ranking["granularity"]): ranking for ranking in row["rankings"]}
        self.parts = {part for part, _ in told}
        columns: list[dict[int, float]] = []
        for voice in VOICES:
            column: dict[int, float] = {}
            ranking = told.get(voice)
            if ranking is not None and ranking["whole"] > 0:
                unnamed = grown(voice, ranking["unnamed"] / ranking["whole"])
                for begin, score in zip(ranking["pages"], ranking["scores"], strict=True):
                    column[ordinals[begin]] = max(0.0, grown(voice, score / ranking["whole"]) - unnamed)
            columns.append(column)
        self.pages = sorted(set().union(*columns))
        self.evidence: Array = np.array([[column.get(page, 0.0) for column in columns] for page in self.pages])
        self.right = np.array([self._is_right(pages[page]) for page in self.pages])
        self.unnamed = len(pages) - len(self.pages)

    def _is_right(self, page: Any) -> bool:
        least = LEAST_OVERLAP if self.kind in PLANTED else (page.end - page.begin) // 2
        overlaps = [(min(last, page.end) - max(first, page.begin), last - first) for first, last in self.spans]
        return any(overlap >= min(least, length) for overlap, length in overlaps)

    def rank(self, scores: Array) -> int:
        """Return the rank of the first right group; 0 where none of the first four is right."""
        order = sorted(np.flatnonzero(scores > 0), key=lambda at: (-scores[at], self.pages[at]))
        groups = groups_of(self.all_pages, [self.pages[at] for at in order], [float(scores[at]) for at in order])
        for rank, group in enumerate(groups, 1):
            for first, last in self.spans:
                held = min(last, group[1]) - max(first, group[0])
                if held >= (last - first if self.kind in PLANTED else min(32, last - first)):
                    return rank
        return 0


@functools.cache
def in_core() -> dict[tuple[str, str], tuple[float, float, bool]]:
    """Return each voice's weights, of statements and of prose, and whether its evidence grows with the share itself."""
    told = [found for file in _SOURCES for found in _TOLD.findall((_INDEX / file).read_text("utf-8"))]
    return {
        voice: (float(statement), float(prose), share != "")
        for voice, (statement, prose, share) in zip(VOICES, told, strict=True)
    }


def grown(voice: tuple[str, str], share: float) -> float:
    """Return what the voice's evidence is linear in: the share, or its root."""
    *_, as_share = in_core()[voice]
    share = max(0.0, share)
    return share if as_share else share**0.5


class Fit:
    """Weights [2, voices], of statements and of prose, and the chance of a statement."""

    def __init__(self, weights: Array, chance: float) -> None:
        self.weights = weights
        self.chance = chance

    def scores(self, question: Question, parts: Sequence[str]) -> Array:
        """Return [pages]: by these parts, the log-odds of each page against a page that nobody names."""
        heard = np.array([part in parts for part, _ in VOICES])
        told = question.evidence @ (self.weights * heard).T  # [pages, 2]
        priors = np.log([self.chance, 1 - self.chance])
        ways = priors - np.array(
            [np.logaddexp.reduce([*told[:, way], np.log(max(question.unnamed, 1e-9))]) for way in range(2)]
        )
        scores: Array = np.logaddexp(*(ways[:, None] + told.T)) - np.logaddexp(*ways)
        return scores


def in_force() -> Fit:
    """Return the weights that the core has now, as its sources say them."""
    chance = re.search(r"kStatements = ([\d.]+)", (_INDEX / "logit_fusion.cc").read_text("utf-8"))
    assert chance is not None
    return Fit(np.array([weights for *weights, _ in in_core().values()]).T, float(chance[1]))


def fit(questions: Sequence[Question], statements: float, keep: Sequence[str] = ()) -> Fit:
    cases = [
        (question, parts)
        for question in questions
        for parts in SETS
        if set(parts) <= question.parts and question.right.any()
    ]
    planted = np.array([question.kind in PLANTED for question, _ in cases])
    often = np.array([len(SETS) - 1.0 if parts == DEFAULT else 1.0 for _, parts in cases])
    of_kind = [statements / max(1, often[planted].sum()), (1 - statements) / max(1, often[~planted].sum())]
    importance = often * np.where(planted, *of_kind)
    heard = np.concatenate(
        [
            question.evidence * np.array([part in parts for part, _ in VOICES], dtype=np.float64)
            for question, parts in cases
        ]
    )
    scale = np.sqrt(np.mean(heard**2, axis=0)) + 1e-9
    evidence = torch.from_numpy(heard / scale)
    right = torch.from_numpy(np.concatenate([question.right for question, _ in cases]))
    case = torch.from_numpy(np.repeat(np.arange(len(cases)), [len(question.pages) for question, _ in cases]))
    unnamed = torch.tensor([float(max(question.unnamed, 0)) for question, _ in cases], dtype=torch.float64)
    weight = torch.from_numpy(importance)
    alone = torch.tensor([unit == "page" for _, unit in VOICES], dtype=torch.float64)
    spoken = torch.stack([alone, torch.ones_like(alone)])  # a statement is looked for in single pages
    # Start on the right side: groups show prose.
    free = torch.stack([2 * alone - 1, 1 - 4 * alone]).requires_grad_()
    odds = torch.zeros((), dtype=torch.float64, requires_grad=True)
    now = in_force()
    stays = torch.tensor([part in keep for part, _ in VOICES])
    given = torch.from_numpy(now.weights * scale)

    def sums(values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        largest = torch.zeros(len(cases), dtype=torch.float64).scatter_reduce(0, case, values, "amax")
        total = torch.zeros(len(cases), dtype=torch.float64).index_add(0, case, torch.exp(values - largest[case]))
        return largest + torch.log(total + others * torch.exp(-largest))

    def loss() -> torch.Tensor:
        positive = torch.where(stays, given, torch.nn.functional.softplus(free) * spoken)
        ways = []
        for way, prior in enumerate((odds, -odds)):
            told = evidence @ positive[way]
            ways.append(torch.nn.functional.logsigmoid(prior) + told - sums(told, unnamed)[case])
        chance = torch.logaddexp(ways[0], ways[1])
        of_right = sums(chance.masked_fill(~right, -1e9), torch.zeros_like(unnamed))
        return -(of_right * weight).sum() + RIDGE * positive.pow(2).sum()

    optimizer = torch.optim.LBFGS([free, odds], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]  # torch's own
        return value

    optimizer.step(step)  # type: ignore[no-untyped-call]  # torch's own
    fitted = torch.where(stays, given, torch.nn.functional.softplus(free) * spoken)
    return Fit(fitted.detach().numpy() / scale, float(torch.sigmoid(odds.detach())))


class _Page:
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


def asked_in(report: pathlib.Path) -> list[Question]:
    kept = json.loads(report.read_text())
    pages = [_Page(begin, end) for begin, end in kept["pages"]]
    ordinals = {page.begin: ordinal for ordinal, page in enumerate(pages)}
    return [Question(row, pages, ordinals) for row in kept["questions"] if row["spans"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "reports", type=pathlib.Path, nargs="+", help="reports of everlong eval towers --fitting --keep"
    )
    parser.add_argument("--keep", nargs="*", default=[], help="parts that keep their voices")
    parser.add_argument("--statements", type=float, default=0.5, help="weight of questions about planted facts")
    options = parser.parse_args()
    questions = [question for report in options.reports for question in asked_in(report)]
    fitted = fit(questions, options.statements, options.keep)
    print(f"a statement: {fitted.chance:.2f}")
    for (part, unit), statement, prose in zip(VOICES, *fitted.weights, strict=True):
        print(f"{part}, {unit}: statement {statement:.3g}, prose {prose:.3g}")
    words = sorted({question.words for question in questions})
    folds = dict(zip(words, np.random.default_rng(0).permutation(len(words)) % FOLDS, strict=True))
    of_fold = [
        fit([q for q in questions if folds[q.words] != out], options.statements, options.keep) for out in range(FOLDS)
    ]
    for parts in SETS:
        print(" + ".join(parts), end=": ")
        for kind in sorted({question.kind for question in questions}):
            these = [q for q in questions if q.kind == kind and set(parts) <= q.parts]
            ranks = [q.rank(of_fold[folds[q.words]].scores(q, parts)) for q in these]
            if ranks:
                first, among = (
                    100 * np.mean([low <= rank <= high for rank in ranks]) for low, high in ((1, 1), (1, 4))
                )
                print(f"{len(ranks)} {kind} {first:.1f} / {among:.1f}", end="; ")
        print()


if __name__ == "__main__":
    main()
