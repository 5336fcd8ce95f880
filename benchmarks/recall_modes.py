"""Answers by what comes back for a question: Detail Tokens, archived KV, both, or text, in the same slots.

    everlong eval meaning --lengths 128K --keep FOLDER            # memories and their questions, once
    python benchmarks/recall_modes.py FOLDER [--modes kv text detail both] [--count 10] [--details 32] [--set quotes=0]

Every question is asked of the same memory in each mode, one after the other; the recalled zone has `recalled_tokens`
slots in all of them. Planted facts are right or not; a question to a story scores the F1 of the words that reply and
answer share. The memories are forked: what is in FOLDER stays as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from typing import Any, get_args

import everlong
from everlong.config import RecallMode
from everlong.eval.decoding import AS_MEASURED
from everlong.eval.meaning import Asked, to_answer
from everlong.eval.meaning_answers import ToAnswer, drawn_evenly
from everlong.eval.statistics import mean_interval
from everlong.models import DEFAULT_MODEL, load
from everlong.models.machine import processor
from everlong.training.data import load_pairs

_STORY_TOKENS = 32


def questions_of(report: pathlib.Path, count: int, *, development: bool) -> list[ToAnswer]:
    """Of a report that `everlong eval meaning --keep` left."""
    answers = {question.words: question.answers for question in load_pairs(("fairytale",)).questions}
    asked = []
    for one in json.loads(report.read_text("utf-8"))["questions"]:
        known = one.get("answers") or (answers.get(one["words"], ()) if one["kind"] in ("explicit", "implicit") else ())
        asked.append(Asked(one["words"], one["kind"], tuple(map(tuple, one["spans"])), tuple(known)))
    return drawn_evenly(to_answer(asked, development=development), count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--modes", nargs="+", choices=get_args(RecallMode), default=["kv", "text", "detail", "both"])
    parser.add_argument("--count", type=int, default=10, help="questions of each kind")
    parser.add_argument("--kinds", nargs="+", default=["fact", "paraphrase", "explicit", "implicit"])
    parser.add_argument("--fitting", action="store_true", help="what --keep left was made with --fitting")
    parser.add_argument("--details", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], help="name=value of MemoryConfig, again for more")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    config = everlong.MemoryConfig().with_settings([*options.set, f"details={options.details}"])
    scores: dict[str, dict[str, list[float]]] = {mode: {} for mode in options.modes}
    slots: dict[str, list[int]] = {mode: [] for mode in options.modes}
    for report in sorted(options.folder.glob("*.json")):
        name = report.stem.split("-")[0]
        drawn = questions_of(report, options.count, development=options.fitting)
        questions = [one for one in drawn if one.kind in options.kinds]
        with tempfile.TemporaryDirectory() as place:
            with everlong.Memory.open(options.folder / f"{name}.everlong", read_only=True) as kept:
                kept.fork(f"{place}/fork").close()
            with everlong.MemoryModel(model, tokenizer, f"{place}/fork", config) as mm:
                mm.searcher.settle()
                for at, question in enumerate(questions):
                    for mode in options.modes:
                        answer_in(mm, config, mode, question, scores[mode], slots[mode])
                    print(report.stem, at + 1, len(questions), file=sys.stderr, flush=True)
    print_report(scores, slots, as_json=options.json)


def answer_in(
    mm: everlong.MemoryModel,
    config: everlong.MemoryConfig,
    mode: Any,
    question: ToAnswer,
    scores: dict[str, list[float]],
    slots: list[int],
) -> None:
    """One question in one mode: how well it was answered, and how many slots what came back took."""
    mm.frame.config = mm.searcher.config = dataclasses.replace(config, recall_mode=mode)
    most = _STORY_TOKENS if question.fact is None else question.fact.max_new_tokens
    answer = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED)
    scores.setdefault(question.kind, []).append(question.score(answer.text))
    slots.append([event["tokens"] for event in mm.trace() if event["what"] == "restore"][-1])


def print_report(scores: dict[str, dict[str, list[float]]], slots: dict[str, list[int]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"cpu": processor(), "scores": scores, "slots": slots}, indent=2))
        return
    kinds = list(dict.fromkeys(kind for by_kind in scores.values() for kind in by_kind))
    counts = {kind: len(next(iter(scores.values()))[kind]) for kind in kinds}
    print("| recall_mode | slots | " + " | ".join(f"{kind} ({counts[kind]})" for kind in kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for mode, by_kind in scores.items():
        cells = []
        for kind in kinds:
            low, high = mean_interval(by_kind[kind])
            cells.append(f"{sum(by_kind[kind]) / len(by_kind[kind]):.2f} ({low:.2f} to {high:.2f})")
        print(f"| {mode} | {sum(slots[mode]) / len(slots[mode]):.0f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
