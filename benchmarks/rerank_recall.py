"""What re-ranking finds, by the model or by what a writer decides from Detail Tokens, and by its weight.

    everlong eval towers --fitting --keep WORK --lengths 128K
    python benchmarks/rerank_recall.py WORK stories planted-131099 [--count 60] [--candidates 32] [--json]
    python benchmarks/rerank_recall.py FOLDER stories planted --by details [--details 32] [--pack PACK]

It asks the memories that `everlong eval towers` or benchmarks/recall_modes.py kept: `count` questions of each kind, the
same for every weight. Two things can re-rank, and are computed once a question: the lifts of the first `candidates`
places (retrieval/rerank.py), or the decisions on the blocks of all that the search named (parts/writer). A weight of 0
is the search without them. It prints how many questions have their right group first, and among the first four.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np

import everlong
from everlong.frame.kv_frame import KvFrame
from everlong.models import DEFAULT_MODEL, load
from everlong.parts.writer import Writer
from everlong.retrieval.rerank import MOST_CANDIDATES, Reranker, candidates, score_bonus
from everlong.text.prompt import build_prompt, start_ids
from everlong_lab.parts.towers.measure import ELSEWHERE, QuestionMeasured

WEIGHTS = (0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
NO_BUDGET = 1 << 40


def questions_of(report: pathlib.Path, count: int) -> list[QuestionMeasured]:
    """Return at most `count` questions of each kind, drawn by a fixed seed."""
    kept = json.loads(report.read_text())
    rows = [row for row in (kept["questions"] if isinstance(kept, dict) else kept) if row["kind"] != ELSEWHERE]
    asked = [
        QuestionMeasured(row["words"], row["kind"], tuple((first, last) for first, last in row["spans"]))
        for row in rows
    ]
    chosen: list[QuestionMeasured] = []
    for kind in sorted({question.kind for question in asked}):
        of_kind = [question for question in asked if question.kind == kind]
        drawn = np.random.default_rng(0).choice(len(of_kind), min(count, len(of_kind)), replace=False)
        chosen += [of_kind[at] for at in sorted(drawn)]
    return chosen


def ranks(
    mm: everlong.MemoryModel, question: QuestionMeasured, most: int, *, by_details: bool
) -> tuple[dict[float, int], float]:
    """Return the rank of the first right group by weight, 0 where none of four is right, and the
    seconds of re-ranking.
    """
    frame, core, config = mm.frame, mm.memory.core, mm.config
    assert isinstance(frame, KvFrame), "a memory of text alone has no archive"
    prompt = build_prompt(mm.tokenizer, question.words)
    request: dict[str, Any] = {
        **mm.searcher.inputs(prompt),
        "neighbours": config.search.neighbours,
        "stream": frame.os.stream,
        "resident_from": frame.os.rolling[0],
    }
    wide = core.search.find(**request, max_groups=MOST_CANDIDATES, token_budget=NO_BUDGET, least_share=0)
    started = time.perf_counter()
    gains: list[tuple[Any, float]]  # of pages, for a weight of 1
    if not by_details:
        places = candidates(wide, config.search.neighbours, config.archive.page_tokens)[:most]
        gains = score_bonus(Reranker(frame, start_ids(mm.tokenizer)).lifts(prompt, places, seconds=float("inf")), 1.0)
    else:
        gains = frame.parts.get("writer").added_scores(prompt.ids[prompt.question], wide)
    seconds = time.perf_counter() - started
    found: dict[float, int] = {}
    for weight in WEIGHTS:
        groups = core.search.find(
            **request,
            max_groups=config.search.groups,
            token_budget=config.frame.recalled_tokens,
            added=[(page, weight * gain) for page, gain in gains] if weight else (),
        ).groups
        right = [question.is_right((group.begin, group.end), config.archive.page_tokens) for group in groups]
        found[weight] = right.index(True) + 1 if True in right else 0
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("readings", nargs="+", help="names of the reports, without .json")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--pack", default="auto")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--candidates", type=int, default=32)
    parser.add_argument("--by", choices=["model", "details"], default="model")
    parser.add_argument("--details", type=int, default=32, help="Detail Tokens of a block, with --by details")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    loaded = load(arguments.model)
    config, by_details = everlong.MemoryConfig(), arguments.by == "details"
    if by_details:
        config = config.with_part(Writer(arguments.details, rerank=1.0))
    table: dict[str, dict[float, list[int]]] = {}
    taken: list[float] = []
    for reading in arguments.readings:
        folder = arguments.work / f"{reading.split('-')[0]}.everlong"
        with everlong.MemoryModel(*loaded, folder, config, pack=arguments.pack) as mm:
            mm.searcher.settle()
            for question in questions_of(arguments.work / f"{reading}.json", arguments.count):
                found, seconds = ranks(mm, question, arguments.candidates, by_details=by_details)
                taken.append(seconds)
                for weight, rank in found.items():
                    table.setdefault(question.kind, {}).setdefault(weight, []).append(rank)
    shares = {
        kind: {
            weight: (float(np.mean([rank == 1 for rank in of])), float(np.mean([rank > 0 for rank in of])), len(of))
            for weight, of in by_weight.items()
        }
        for kind, by_weight in table.items()
    }
    if arguments.json:
        print(json.dumps({"shares": shares, "seconds": float(np.median(taken))}))
        return
    what = f"{arguments.candidates} candidates" if not by_details else "the blocks of all that a search named"
    print(f"{what} re-ranked in {np.median(taken):.2f} s (median)")
    print("weight " + "".join(f"{of[0.0][2]:>8} {kind:12}" for kind, of in shares.items()))
    for weight in WEIGHTS:
        cells = [f"{100 * of[weight][0]:8.1f} / {100 * of[weight][1]:5.1f}     " for of in shares.values()]
        print(f"{weight:6.2f} " + "".join(cells))


if __name__ == "__main__":
    main()
