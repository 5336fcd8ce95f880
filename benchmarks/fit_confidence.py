"""Fit the weights of confidence (cpp/index/include/everlong/index/confidence.h) to what searches had to show.

    everlong eval towers --fitting --keep FIT --lengths 128K --set search.index=heads,lexical,meaning,encoder,embedding
    everlong eval towers --keep TEST --lengths 128K                     # other stories, other facts
    python benchmarks/fit_confidence.py FIT/*.json --weights cpp/index/confidence_weights.inc [--test TEST/*.json]

For every set of the parts it fits a logistic regression of whether the right passage came back. Its weights are not
negative, so that more evidence for an answer never makes it less likely. It has a small ridge. Every question counts
twice, with the sources that answer it and without them. Questions to other stories, which nothing in the memory
answers, share the weight of those without. So half of the weight has an answer. Every report weighs the same.

--weights is written anew with the sets that the reports have searched by; with --only encoder just those with that part
are, and the other rows stay. Build the core again with it. The benchmark
prints the expected calibration error and the area under the ROC curve by reading and set. For the fitted questions it
uses five folds of them; for the reports of --test it takes what the memory itself said.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from everlong_lab.eval.calibration import calibration
from everlong_lab.parts.towers.measure import ELSEWHERE

Array = npt.NDArray[np.float64]
# In the order of kTellingRankings, and what comes after them.
SIGNS = (
    *(f"{part}, {unit}" for part in ("heads", "lexical", "meaning") for unit in ("page", "group")),
    "embedding, page",
    *(f"{part}, {unit}" for part in ("encoder", "words") for unit in ("page", "group")),
    "odds",
)
PARTS = {part: f"k{part.capitalize()}" for part in ("heads", "lexical", "words", "meaning", "embedding", "encoder")}
FOLDS = 5
RIDGE = 1e-3


@dataclasses.dataclass(frozen=True)
class Search:
    words: str
    signs: tuple[float, ...]  # by SIGNS
    right: bool
    weight: float
    elsewhere: bool = False  # a question to other stories


@dataclasses.dataclass(frozen=True)
class Fit:
    base: float
    weights: Array  # by SIGNS

    def __call__(self, searches: Sequence[Search]) -> Array:
        said: Array = 1 / (1 + np.exp(-(self.base + np.array([one.signs for one in searches]) @ self.weights)))
        return said


def searches_of(report: pathlib.Path) -> dict[str, list[Search]]:
    """Return the searches by set of parts. All of a report have the weight 1 together."""
    questions = json.loads(report.read_text("utf-8"))["questions"]
    told: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for question in questions:
        for search in question["searches"]:
            if set(search["kinds"].split(" + ")) <= set(PARTS):
                told.setdefault(search["kinds"], []).append((question["words"], question["kind"], search))
    found = {}
    for kinds, rows in told.items():
        groups = [_group(kind, search) for _, kind, search in rows]
        # Questions with an answer weigh as much as those without; left out and elsewhere share that half.
        shares = {"there": 0.5, "left out": 0.25, ELSEWHERE: 0.25} if ELSEWHERE in groups else {"there": 0.5}
        found[kinds] = [
            Search(
                words,
                tuple(search["signs"].get(sign, 0.0) for sign in SIGNS),
                search["rank"] > 0,
                shares.get(group, 0.5) / groups.count(group),
                group == ELSEWHERE,
            )
            for (words, _, search), group in zip(rows, groups, strict=True)
        ]
    return found


def _group(kind: str, search: dict[str, Any]) -> str:
    return ELSEWHERE if kind == ELSEWHERE else "left out" if search["left_out"] else "there"


def fit(searches: Sequence[Search]) -> Fit:
    signs = np.array([one.signs for one in searches])
    right = np.array([one.right for one in searches], dtype=np.float64)
    weight = np.array([one.weight for one in searches])
    weight /= weight.sum()
    scale = signs.std(axis=0)
    heard = scale > 0
    columns = signs[:, heard] / scale[heard]

    def loss(values: Array) -> tuple[float, Array]:
        sums = values[0] + columns @ values[1:]
        said = 1 / (1 + np.exp(-sums))
        wrong = weight * (said - right)
        value = float(weight @ (np.logaddexp(0, sums) - right * sums) + RIDGE * values[1:] @ values[1:])
        return value, np.concatenate([[wrong.sum()], wrong @ columns + 2 * RIDGE * values[1:]])

    start = np.zeros(1 + columns.shape[1])
    bounds = [(None, None)] + [(0, None)] * columns.shape[1]
    fitted = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 10_000})
    weights = np.zeros(len(SIGNS))
    weights[heard] = fitted.x[1:] / scale[heard]
    return Fit(float(fitted.x[0]), weights)


def by_folds(searches: Sequence[Search]) -> Array:
    """Return what is said of each question by a fit to the other folds."""
    words = sorted({one.words for one in searches})
    folds = dict(zip(words, np.random.default_rng(0).permutation(len(words)) % FOLDS, strict=True))
    said = np.zeros(len(searches))
    for out in range(FOLDS):
        at = [number for number, one in enumerate(searches) if folds[one.words] == out]
        if at and len(at) < len(searches):
            said[at] = fit([one for one in searches if folds[one.words] != out])([searches[number] for number in at])
    return said


def as_code(kinds: str, fitted: Fit) -> str:
    """Return a row of confidence_weights.inc."""
    parts = ", ".join(f"IndexPart::{PARTS[kind]}" for kind in kinds.split(" + "))
    *best, odds = (_short(weight) for weight in fitted.weights)
    return f"    {{{{{parts}}}, {_short(fitted.base)}, {{{{{', '.join(best)}}}}}, {odds}}},"


def _short(number: float) -> str:
    text = f"{number:.4g}"
    return text if any(mark in text for mark in ".en") else text + ".0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "reports", type=pathlib.Path, nargs="+", help="reports of everlong eval towers --fitting --keep"
    )
    parser.add_argument("--weights", type=pathlib.Path, help="confidence_weights.inc, to write")
    parser.add_argument("--only", default="", help="a part: rows of sets without it stay as they are")
    parser.add_argument("--test", type=pathlib.Path, nargs="*", default=[], help="reports of other stories and facts")
    options = parser.parse_args()

    readings = {report.stem: searches_of(report) for report in options.reports}
    rows = []
    every = {kinds for of in readings.values() for kinds in of if options.only in ("", *kinds.split(" + "))}
    for kinds in sorted(every, key=lambda kinds: (kinds.count("+"), kinds)):
        those = {name: of[kinds] for name, of in readings.items() if kinds in of}
        together = [one for of in those.values() for one in of]
        rows.append(as_code(kinds, fit(together)))
        said = by_folds(together)
        begin = 0
        for name, of in those.items():
            twice = [(p, one.right) for p, one in zip(said[begin:].tolist(), of, strict=False) if not one.elsewhere]
            begin += len(of)
            told = calibration([p for p, _ in twice], [right for _, right in twice])
            print(f"{kinds}; {name}, by folds: {_figures(told.ece, told.ece_by_mass, told.auc)}")
    if options.only and options.weights is not None:
        written = f"IndexPart::{PARTS[options.only]}"
        rows = [row for row in options.weights.read_text("utf-8").splitlines() if written not in row] + rows
    code = "\n".join(rows) + "\n"
    print(code)
    if options.weights is not None:
        options.weights.write_text(code, "utf-8")
    for report in options.test:
        for kinds, one in json.loads(report.read_text("utf-8"))["confidences"].items():
            among = one["among"]
            print(f"{kinds}; {report.stem}: {_figures(among['ece'], among['ece_by_mass'], among['auc'])}")


def _figures(ece: float, by_mass: float, auc: float | None) -> str:
    return f"ECE {ece:.3f}, {by_mass:.3f} in equal numbers; AUC {float('nan') if auc is None else auc:.3f}"


if __name__ == "__main__":
    main()
