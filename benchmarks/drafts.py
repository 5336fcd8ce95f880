"""Decoding with drafts from the memory against decoding without: tokens a second of the same answers.

    python benchmarks/drafts.py [--model smollm2] [--tokens 8192] [--facts 6] [--new-tokens 96] [--threads 1] [--json]

A memory reads books with planted facts. Questions of two sorts are answered greedily: for what was planted, mostly in
the planted words, and for something free, where little is repeated. Each is answered with `answer.draft_tokens` as it
is by default and with 0, in turns. The ratio is the CPU time of the second over that of the first, from the first
token of an answer to its last; other work on the machine counts little in CPU time. Answers must be the same.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from typing import Any

import torch

import everlong
from everlong.config.answer import AnswerConfig
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong_lab.corpora.facts import make_facts
from everlong_lab.corpora.haystack import build_haystack
from everlong_lab.data.books import all_books

_FREE = (
    "Write a short poem about the sea.",
    "Tell me about a day in your life.",
    "What is a good way to learn to draw?",
    "Describe a town in the mountains in winter.",
    "Why do people keep animals?",
    "Write a letter to an old friend.",
)


class Clock:
    """A streamer that notes the CPU time at each token of an answer."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.process_time())

    def end(self) -> None:
        """Do nothing."""

    @property
    def seconds(self) -> float:
        """From the answer's first token to its last; the prompt comes before."""
        return self.at[-1] - self.at[1]


def answered(mm: everlong.MemoryModel, question: str, draft_tokens: int, **generation: Any) -> tuple[float, int, str]:
    """Return seconds, tokens that were timed, and the answer."""
    mm.config = dataclasses.replace(mm.config, answer=dataclasses.replace(mm.config.answer, draft_tokens=draft_tokens))
    clock = Clock()
    answer = mm.generate(question, remember=False, streamer=clock, **generation)
    return clock.seconds, max(0, answer.tokens - 1), answer.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--facts", type=int, default=6, help="planted facts of each kind")
    parser.add_argument("--new-tokens", type=int, default=96, help="of an answer at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = make_facts(("uuid", "quote", "pass-key"), options.facts, seed=3)
    rows: list[dict[str, Any]] = []
    with contextlib.closing(everlong.MemoryModel(*load(options.model, dtype=options.dtype))) as mm:
        places = [round((at + 0.5) / len(facts) * options.tokens * 0.9) for at in range(len(facts))]
        haystack = build_haystack(all_books(None), mm.tokenizer, [options.tokens], facts, places, seed=3)
        for part in haystack.parts:
            mm.read(part.text, source=part.source)
        asked = [("quotes", fact.question) for fact in facts] + [("free", question) for question in _FREE]
        for sort, question in asked:
            generation = {**AS_MEASURED, "max_new_tokens": options.new_tokens}
            with_drafts = answered(mm, question, AnswerConfig().draft_tokens, **generation)
            without = answered(mm, question, 0, **generation)
            rows.append(
                {"sort": sort, "question": question, "tokens": with_drafts[1], "same": with_drafts[2] == without[2]}
                | {"seconds": with_drafts[0], "seconds_without": without[0]}
            )
    if options.json:
        print(json.dumps({"cpu": processor(), "rows": rows}, indent=2))
        return
    print(f"{processor()}, {options.threads} threads, CPU time")
    for sort in dict.fromkeys(row["sort"] for row in rows):
        some = [row for row in rows if row["sort"] == sort]
        seconds, without = (sum(row[name] for row in some) for name in ("seconds", "seconds_without"))
        tokens, ratios = sum(row["tokens"] for row in some), [row["seconds_without"] / row["seconds"] for row in some]
        print(
            f"{sort}: {len(some)} answers, {tokens} tokens, {tokens / seconds:.1f} tok/s with drafts, "
            f"{tokens / without:.1f} without: {without / seconds:.2f} in all, median {statistics.median(ratios):.2f}, "
            f"least {min(ratios):.2f}; {sum(row['same'] for row in some)} answers are the same"
        )


if __name__ == "__main__":
    main()
