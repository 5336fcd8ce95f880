"""What the heads find where their keys are kept in a byte: the same questions over keys in bf16, int8 and e4m3.

    python benchmarks/heads_keys.py MEMORY [--questions 120] [--json]

MEMORY and the questions are those of benchmarks/two_levels.py, with one level, so that nothing else is left out. `best`
and `first` are the shares of the pages in the 16 and in the 4 best groups in bf16 that are there too. `mass` is how far
a question's best page is from its mass in bf16, relatively. Times of a search are medians.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from typing import Any

from two_levels import BEST, FIRST, NEVER, Asked, asked_memory, parse_options, rank

from everlong.models.hardware import processor

KEYS = ("bf16", "int8", "e4m3")


def masses(asked: Asked) -> list[float]:
    """Return the share of attention mass of every question's best page."""
    return [
        asked.core.search.find(
            token_ids=ids, head_queries=queries, kinds=["heads"], neighbours=0, max_groups=1
        ).top_mass
        for ids, queries in asked.questions
    ]


def measure(folder: pathlib.Path, count: int) -> dict[str, Any]:
    ranked, mass, index_bytes = {}, {}, {}
    with asked_memory(folder, count) as asked:
        tokens = sum(page.end - page.begin for page in asked.core.blocks.pages())
        for keys in KEYS:
            asked.core.index.set_retrieval_heads([])
            without = asked.core.upkeep.stats().index_bytes
            asked.core.index.set_retrieval_heads(asked.heads, NEVER, keys)
            index_bytes[keys] = asked.core.upkeep.stats().index_bytes - without
            ranked[keys] = [rank(asked.core, asked.pages, *question) for question in asked.questions]
            mass[keys] = masses(asked)
    report: dict[str, Any] = {"cpu": processor(), "pages": asked.pages, "questions": len(asked.questions), "keys": {}}
    for keys in KEYS:
        both = list(zip(ranked[KEYS[0]], ranked[keys], strict=True))
        report["keys"][keys] = {
            "token_bytes": index_bytes[keys] / tokens,
            "best": statistics.fmean(len(one.best & other.best) / len(one.best) for one, other in both),
            "first": statistics.fmean(len(one.first & other.first) / len(one.first) for one, other in both),
            "mass": statistics.fmean(
                abs(of / exact - 1) for exact, of in zip(mass[KEYS[0]], mass[keys], strict=True) if exact > 0
            ),
            "ms": statistics.median(one.ms for one in ranked[keys]),
        }
    return report


def main() -> None:
    options = parse_options(__doc__)
    report = measure(options.memory, options.questions)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['cpu']}; {report['questions']} questions over {report['pages']:,} pages")
    print(f"{'keys':>5} {'bytes a token':>14} {f'best {BEST}':>8} {f'first {FIRST}':>8} {'mass':>8} {'a search':>10}")
    for keys, of in report["keys"].items():
        print(
            f"{keys:>5} {of['token_bytes']:14.1f} {of['best']:8.2%} {of['first']:8.2%} {of['mass']:8.3%} "
            f"{of['ms']:7.1f} ms"
        )


if __name__ == "__main__":
    main()
