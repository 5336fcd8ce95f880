"""What `Walker(ahead_every=32)` reads ahead: how much of what comes back is in RAM by then, and how long reading takes.

    python benchmarks/prefetch.py FOLDER [--stories 6] [--questions 60] [--json]

SmolLM2 reads stories of FairytaleQA's val split into a memory in FOLDER, and goes on with what is there. It is asked
that set's questions about them. Each is asked with a cold cache: the memory is opened anew, and the system is told to
drop what it holds of its payload. Meanwhile there is nothing, a walk by the question's words, or a reading of as many
random pages. What comes back is the same in all three. `read` is the time until the pages that come back are in memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import time
from typing import Any, Literal

import numpy as np
import torch

import everlong
from everlong.bench.cold import drop_page_cache
from everlong.models import load
from everlong.models.hardware import processor
from everlong.parts.walker import Walker
from everlong.parts.walker.prefetch import Prefetch
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.pairs import load_pairs

How = Literal["nothing", "random", "walk"]
CONFIG = everlong.MemoryConfig(
    frame=everlong.FrameConfig(rolling_tokens=512, chunk_tokens=256),
    parts=(*everlong.MemoryConfig().parts, Walker(searches=False, ahead_every=32)),
)
HOWS: tuple[How, ...] = ("nothing", "random", "walk")


@dataclasses.dataclass(frozen=True)
class Row:
    in_ram: float  # share of the pages that came back
    read_ms: float
    ahead: int  # pages that were read ahead


def stories_and_questions(stories: int, questions: int) -> tuple[dict[str, str], list[str]]:
    """Return the last `stories` test stories, and `questions` drawn questions about them."""
    pairs = load_pairs()
    asked = pairs.of_split("test")
    chosen = list(dict.fromkeys(pairs.questions[at].text for at in asked))[-stories:]
    texts = {pairs.texts[at].name: "\n\n".join(pairs.texts[at].pieces) for at in chosen}
    of_these = [at for at in asked if pairs.questions[at].text in chosen]
    drawn = np.random.default_rng(0).permutation(of_these)[:questions]
    return texts, [pairs.questions[at].words for at in drawn]


def ask(mm: everlong.MemoryModel, question: str, how: How, seed: int, ahead: int) -> Row:
    """Ask one question; `ahead` is the number of pages to read at random."""
    core, searcher, frame = mm.memory.core, mm.searcher, mm.frame
    prefetcher = frame.parts.get("walker").prefetcher
    prompt = build_prompt(mm.tokenizer, question)
    if how == "walk":
        searcher.prefetch(prompt.ids[prompt.question].tolist(), 0)
    elif how == "random":
        pages = core.search.random_pages(frame.os.stream, frame.os.rolling[0], ahead, seed=seed)
        prefetcher.read_ahead(pages, Prefetch(0, None, 0))
    found = searcher.find(prompt)
    pages = [page for offer in found.offers for page in offer.pages]
    there = {(place.block_id, place.page) for told in prefetcher.told for place in told.pages}
    out = np.empty(sum(core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
    started = time.perf_counter()
    core.blocks.read_pages(pages, out)
    milliseconds = 1000 * (time.perf_counter() - started)
    prefetcher.settle()
    told = sum(len(told.pages) for told in prefetcher.told)
    in_ram = sum((page.block, page.page) in there for page in pages) / len(pages)
    return Row(in_ram, milliseconds, told)


def measure(folder: pathlib.Path, model: Any, tokenizer: Any, questions: list[str]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {how: [] for how in HOWS}
    for number, question in enumerate(questions):
        ahead = 0
        for how in ("walk", "nothing", "random"):  # as many random pages as the walk has read
            drop_page_cache(folder)
            with everlong.MemoryModel(model, tokenizer, folder, CONFIG) as mm:
                row = ask(mm, question, how, number, ahead)
            ahead = ahead or row.ahead
            rows[how].append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--stories", type=int, default=6)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load("smollm2")
    stories, questions = stories_and_questions(options.stories, options.questions)
    with everlong.MemoryModel(model, tokenizer, options.folder, CONFIG) as mm:
        for name, story in stories.items():
            mm.read(story, source=name)
        mm.generate(questions[0], max_new_tokens=1, remember=False)  # finds the retrieval heads
    rows = measure(options.folder, model, tokenizer, questions)
    report = {
        how: {
            "in RAM": statistics.mean(row.in_ram for row in of),
            "read, ms": statistics.median(row.read_ms for row in of),
            "pages ahead": statistics.mean(row.ahead for row in of),
        }
        for how, of in rows.items()
    }
    if options.json:
        print(json.dumps({"cpu": processor(), "questions": len(questions), "result": report}, indent=2))
        return
    print(f"{processor()}; {len(questions)} questions\n")
    print(f"{'read ahead':12} {'in RAM, %':>10} {'read, ms':>10} {'pages ahead':>12}")
    for how, row in report.items():
        print(f"{how:12} {100 * row['in RAM']:10.0f} {row['read, ms']:10.1f} {row['pages ahead']:12.1f}")


if __name__ == "__main__":
    main()
