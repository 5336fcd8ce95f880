"""Whether the zone behind the sinks helps: local anchors and tombstones against none, on the same text.

    python benchmarks/anchors.py [--model smollm2] [--zones off "8 tombstones"] [--json]
    python benchmarks/anchors.py perplexity [--places 12] [--prefix 3072] [--scored 512]
    python benchmarks/anchors.py questions [--tokens 32768] [--facts 10]

It runs both parts, or the one that is named.

perplexity: places spread over the shipped books. What stands before a place is read as texts of 512 tokens, each a
topic of its own. The tokens behind it are scored by the window alone, so that only the zone differs. It prints
perplexity, and the mean difference in nats a token to no zone with its standard error over the places.

questions: facts of three kinds are planted in the books and asked with recall as it is by default.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from typing import Any

import everlong
from everlong.data import shipped_books
from everlong.models import DEFAULT_MODEL, load
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, gather_books
from everlong_lab.eval.niah import NiahConfig, plan_haystack
from everlong_lab.eval.statistics import mean_and_stderr, wilson_interval

PARTS = ("perplexity", "questions")
TOPIC_TOKENS = 512
ZONES: dict[str, dict[str, int]] = {
    "off": {},
    "8 tombstones": {"tombstones": 8},
    "8 anchors of 8": {"anchor_tokens": 8, "anchors": 8},
    "8 anchors of 32": {"anchor_tokens": 32, "anchors": 8},
}


def config_of(zone: str, model: Any) -> everlong.MemoryConfig:
    fitting = everlong.MemoryConfig.fitting(model.config.get_text_config().max_position_embeddings)
    return fitting.changed(frame=ZONES[zone])


@dataclasses.dataclass(frozen=True)
class Scored:
    """A zone over all places: perplexity, and how many nats a token more than without a zone."""

    zone: str
    perplexity: float
    difference: float
    standard_error: float
    better_places: int
    differences: list[float]  # by place


def perplexities(
    model: Any, tokenizer: Any, zones: list[str], places: range, prefix: int, scored: int, seed: int
) -> list[Scored]:
    books = [tokenizer(book.text, add_special_tokens=False, verbose=False)["input_ids"] for book in shipped_books()]
    books = [ids for ids in books if len(ids) >= prefix + scored]
    nll: dict[str, list[float]] = {zone: [] for zone in zones}
    for place in places:
        ids = books[place % len(books)]
        first = random.Random(f"{seed} {place}").randint(prefix, len(ids) - scored)
        for zone in zones:
            with everlong.MemoryModel(model, tokenizer, None, config_of(zone, model)) as mm:
                for begin in range(first - prefix, first, TOPIC_TOKENS):
                    mm.read(tokenizer.decode(ids[begin : min(begin + TOPIC_TOKENS, first)]))
                nll[zone].append(mm.perplexity(tokenizer.decode(ids[first : first + scored]), policy="window").nll)
        print(place, {zone: round(values[-1], 4) for zone, values in nll.items()}, file=sys.stderr, flush=True)
    out = []
    for zone, values in nll.items():
        more = [mine - without for mine, without in zip(values, nll[zones[0]], strict=True)]
        mean, error = mean_and_stderr(more)
        out.append(
            Scored(zone, math.exp(mean_and_stderr(values)[0]), mean, error, sum(each < 0 for each in more), more)
        )
    return out


@dataclasses.dataclass(frozen=True)
class Answered:
    """A zone over all questions: right answers, with the 95 % Wilson interval of their share."""

    zone: str
    right: int
    asked: int
    low: float
    high: float


def answers(model: Any, tokenizer: Any, zones: list[str], tokens: int, facts: int, seed: int) -> list[Answered]:
    config = NiahConfig(tokens=tokens, lengths=(tokens,), facts_per_kind=facts, seed=seed)
    haystack = plan_haystack(gather_books(int(tokens * CHARACTERS_PER_TOKEN)), tokenizer, config)
    out = []
    for zone in zones:
        with everlong.MemoryModel(model, tokenizer, None, config_of(zone, model)) as mm:
            for part in haystack.parts:
                mm.read(part.text, source=part.source)
            right = 0
            for needle in haystack.needles:
                fact = needle.fact
                answer = mm.generate(fact.question, max_new_tokens=fact.max_new_tokens, do_sample=False, remember=False)
                right += fact.accept(answer.text)
        asked = len(haystack.needles)
        out.append(Answered(zone, right, asked, *wilson_interval(right, asked)))
        print(out[-1], file=sys.stderr, flush=True)
    return out


def print_table(part: str, rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name != "differences"]
    print(f"{part}\n\n| " + " | ".join(name.replace("_", " ") for name in names) + " |")
    print("|" + "---|" * len(names))
    for row in rows:
        cells = (row[name] for name in names)
        print("| " + " | ".join(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="part to run; by default both")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--zones", nargs="+", choices=list(ZONES), default=list(ZONES), help="zones to compare with the first one"
    )
    parser.add_argument("--places", type=int, default=12)
    parser.add_argument("--first-place", type=int, default=0, help="first place, to go on where an earlier run stopped")
    parser.add_argument("--prefix", type=int, default=3072)
    parser.add_argument("--scored", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--facts", type=int, default=10, help="facts of each of three kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    model, tokenizer = load(asked.model)
    report: dict[str, list[dict[str, Any]]] = {}
    for part in PARTS if asked.part is None else (asked.part,):
        rows: list[Scored] | list[Answered]
        if part == "perplexity":
            places = range(asked.first_place, asked.first_place + asked.places)
            rows = perplexities(model, tokenizer, asked.zones, places, asked.prefix, asked.scored, asked.seed)
        else:
            rows = answers(model, tokenizer, asked.zones, asked.tokens, asked.facts, asked.seed)
        report[part] = [dataclasses.asdict(row) for row in rows]
        if not asked.json:
            print_table(part, report[part])
    if asked.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
