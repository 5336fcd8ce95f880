"""Whether the sentence that is quoted before a question is the one that answers it, by the weights of its score.

    everlong eval towers --fitting --keep WORK --lengths 128K
    python benchmarks/quotes_recall.py WORK planted-131099 [--count 300] [--json]

It asks a memory that `everlong eval towers` kept: `count` questions of each kind. It prints how often the answer is in
the groups that come back. For each pair of weights, of words and of the whole sentence, it prints how often the answer
is in the first sentence, and among two (retrieval/quotes.py). Questions to stories say nothing here, as a whole section
answers them.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np
from rerank_recall import questions_of

import everlong
from everlong.models import DEFAULT_MODEL, load
from everlong.retrieval.quotes import nearest_sentences
from everlong.retrieval.recency import MOST_COMPARED
from everlong.text.prompt import build_prompt
from everlong_lab.parts.towers.measure import QuestionMeasured

WEIGHTS = ((0.2, 0.0), (0.2, 0.3), (0.2, 0.5), (0.2, 1.0), (0.0, 0.5), (0.5, 0.5))


def hits(mm: everlong.MemoryModel, question: QuestionMeasured) -> dict[str, bool]:
    """Return whether the answer is among the groups, and for all weights in the first sentence and in the first two."""
    searcher, core = mm.searcher, mm.memory.core
    tapped = searcher.tap(prompt := build_prompt(mm.tokenizer, question.words))
    found_by = searcher.find(prompt, tapped=tapped)
    groups, vectors, cosines = found_by.offers, found_by.vectors, found_by.cosines
    assert vectors is not None, "without a pack words alone decide"

    def answers(begin: int, end: int) -> bool:
        return any(begin < last and first < end for first, last in question.spans)

    found = {"groups": any(answers(group.begin, group.end) for group in groups)}
    for words, whole in WEIGHTS:
        weights = {"words_weight": words, "whole_weight": whole}
        best = nearest_sentences(
            core, mm.tokenizer, groups, tapped.token_ids, vectors, MOST_COMPARED, cosines, **weights
        )
        for count in (1, 2):
            found[f"{words:.1f}, {whole:.1f} @{count}"] = any(answers(one.begin, one.end) for one in best[:count])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("reading", help="name of the report, without .json")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--pack", default="auto")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.work / f"{arguments.reading.split('-')[0]}.everlong"
    table: dict[str, dict[str, list[bool]]] = {}
    with everlong.MemoryModel(*load(arguments.model), folder, pack=arguments.pack) as mm:
        mm.searcher.settle()
        for question in questions_of(arguments.work / f"{arguments.reading}.json", arguments.count):
            for name, hit in hits(mm, question).items():
                table.setdefault(question.kind, {}).setdefault(name, []).append(hit)
    shares = {kind: {name: float(np.mean(of)) for name, of in found.items()} for kind, found in table.items()}
    if arguments.json:
        print(json.dumps(shares))
        return
    for kind, found in shares.items():
        print(f"{len(table[kind]['groups'])} {kind}: " + ", ".join(f"{n} {100 * s:.1f} %" for n, s in found.items()))


if __name__ == "__main__":
    main()
