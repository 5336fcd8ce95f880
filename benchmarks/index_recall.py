"""Whether the index finds the group that holds the answer: every part of it and their fusion, on the same questions.

    python benchmarks/index_recall.py WORK [--tokens 131072 196608] [--corpus BOOKS] [--set GROUP.NAME=VALUE]
    python benchmarks/index_recall.py WORK --memory FOLDER --report niah.json     # a memory that is there already

It plants 200 drawn facts of five kinds and the 48 paraphrases (everlong_lab.corpora.paraphrases) in the first
--tokens of a haystack of books. It reads on to the other lengths, and asks at each. A question counts where the first
four groups (a page and its neighbours) hold the whole fact. Retrieval heads come from a book that is not in the
haystack. Only the question is computed, no answer. WORK keeps memory and results: a run that was cut short goes on
when it is called again. The shipped books without that one come to 247,988 tokens of SmolLM2's tokenizer; longer
haystacks need --corpus.

`mean hidden` compares the mean of a page's hidden states of one layer with that of the question's, by cosine.
`random` draws pages at random.

With --memory, the questions are those of the report of `everlong eval niah --keep FOLDER --json`, which has the
facts' spans. The paraphrases stand in 16,384 tokens of a book that are read behind it, in a branch in WORK. The heads
are those of the memory, and there are no hidden states.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

import everlong
from everlong.data import Book, shipped_books
from everlong.models import load
from everlong.models.attach import AttachedModel
from everlong.retrieval.question_states import head_queries, mean_query, tap_question
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.facts import PARAPHRASES, Kind, make_facts
from everlong_lab.corpora.haystack import build_haystack
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, all_books

FACTS: tuple[tuple[tuple[Kind, ...], int], ...] = ((("pass-key", "uuid", "name", "quote"), 42), (("best-thing",), 32))
GROUPS, NEIGHBOURS, BUDGET = 4, 1, 1024
LEAST_SHARE = 1 / 3  # share of a group's best score that widens it (cpp/index/include/everlong/index/fusion.h)
CANDIDATES = 256  # pages of every ranking to keep in the results for a closer look: as many as are fused
CALIBRATION_TOKENS = 36_000
SPARE_TOKENS = 300_000
PARAPHRASES_SOURCE, PARAPHRASE_TOKENS = "paraphrases", 16_384
MEMORY_HOST_BYTES = 1 << 30
PARTS = ("heads", "lexical", "mean_pool", "embedding")
FUSIONS = {"heads + lexical": ("heads", "lexical"), "all three": ("heads", "lexical", "embedding")}
METHODS = (*FUSIONS, "heads", "lexical", "embedding", "mean_pool", "mean hidden", "random")
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Question:
    text: str
    paraphrase: bool
    span: Span  # tokens of the stream that state the answer


class HiddenStates:
    """Keeps the hidden states [tokens, width] of one layer in a file while a text is read."""

    def __init__(self, model: Any, file: pathlib.Path, tokens: int) -> None:
        layers = model.model.layers
        self.reading: everlong.MemoryModel | None = None  # the memory that is reading now
        self._question: list[torch.Tensor] = []
        shape = (tokens, model.config.hidden_size)
        whole = file.exists() and file.stat().st_size == shape[0] * shape[1] * 2
        self._kept = np.memmap(file, dtype=np.float16, mode="r+" if whole else "w+", shape=shape)
        layers[len(layers) * 2 // 5].register_forward_hook(self._keep)

    def _keep(self, module: object, args: object, output: Any) -> None:
        hidden = (output[0] if isinstance(output, tuple) else output).detach().reshape(-1, self._kept.shape[1])
        if self.reading is None:
            self._question = [hidden.float()]
            return
        first = self.reading.frame.os.stream_end
        self._kept[first : first + len(hidden)] = hidden.half().numpy()

    def pages(self, pages: Sequence[Any]) -> torch.Tensor:
        """Return unit vectors [pages, width]."""
        means = [np.asarray(self._kept[page.begin : page.end], dtype=np.float32).mean(0) for page in pages]
        return torch.nn.functional.normalize(torch.from_numpy(np.stack(means)), dim=-1)

    def question(self, tokens: slice) -> torch.Tensor:
        """Return the unit vector [width] of the prompt that was computed last."""
        return torch.nn.functional.normalize(self._question[0][tokens].mean(0), dim=-1)


def groups_of(pages: Sequence[Any], ranking: Sequence[int], scores: Sequence[float] | None = None) -> list[Span]:
    """Return the first four groups of a ranking of pages in stream order, as the index makes them.

    Without scores, all pages count as equal.
    """
    groups: list[list[int]] = []
    best: list[float] = []  # of the groups
    full = False
    for page, score in zip(ranking, scores if scores is not None else [1.0] * len(ranking), strict=True):
        if full and not groups[0][0] <= page <= groups[0][1]:
            continue
        first, last = max(0, page - NEIGHBOURS), min(len(pages) - 1, page + NEIGHBOURS)
        touching = [number for number, group in enumerate(groups) if first <= group[1] + 1 and last >= group[0] - 1]
        if touching:
            into, *others = touching
            if score >= min(best[into], LEAST_SHARE * best[into]):
                first = min(first, *(groups[number][0] for number in touching))
                last = max(last, *(groups[number][1] for number in touching))
                groups[into] = [first, last]
                for number in reversed(others):
                    del groups[number], best[number]
        elif len(groups) == GROUPS:
            full = True
        else:
            groups.append([first, last])
            best.append(score)
    return [(pages[first].begin, pages[last].end) for first, last in groups]


def rank_of(groups: Sequence[Span], span: Span) -> int:
    """Return the rank of the first group that holds the whole span, from 1; 0 where none does."""
    return next((rank for rank, group in enumerate(groups, 1) if group[0] <= span[0] and span[1] <= group[1]), 0)


def ask(mm: everlong.MemoryModel, questions: Sequence[Question], hidden: HiddenStates | None) -> list[dict[str, Any]]:
    """Return ranks of every method for every question, and the first pages of each part of the index."""
    assert mm.profile is not None
    parts: tuple[str, ...] = PARTS
    fusions: dict[str, tuple[str, ...]] = dict(FUSIONS)
    if mm.searcher.embedder is None:
        parts = tuple(part for part in PARTS if part != "embedding")
        fusions = {name: kinds for name, kinds in FUSIONS.items() if "embedding" not in kinds}
    else:
        mm.searcher.embedder.settle()
    core, frame, served = mm.memory.core, mm.frame, mm.frame.served
    assert isinstance(served, AttachedModel)
    pages = core.blocks.pages()
    vectors = hidden.pages(pages) if hidden is not None else None
    layers = sorted({layer for layer, _, _ in mm.profile.heads} | {served.layers - 1})
    rows = []
    for number, question in enumerate(questions):
        prompt = build_prompt(mm.tokenizer, question.text)
        queries = tap_question(frame, prompt.ids, prompt.question, layers).queries
        ids = prompt.ids[prompt.question]
        inputs: dict[str, Any] = {
            "token_ids": ids.numpy().astype(np.int32),
            "head_queries": head_queries(served, queries, mm.profile),
            "mean_query": mean_query(served, queries),
        }
        if mm.searcher.embedder is not None:
            inputs["page_query"] = mm.searcher.embedder.query(mm.tokenizer.decode(ids, skip_special_tokens=True))

        def search(kinds: Sequence[str], inputs: dict[str, Any] = inputs, **limits: Any) -> Any:
            return core.search.find(**inputs, kinds=kinds, **limits)

        def spans(kinds: Sequence[str]) -> list[Span]:
            found = search(kinds, max_groups=GROUPS, neighbours=NEIGHBOURS, token_budget=BUDGET)
            return [(group.begin, group.end) for group in found.groups]

        groups = {name: spans(kinds) for name, kinds in fusions.items()} | {part: spans([part]) for part in parts}
        drawn = [pages.index(page) for page in core.search.random_pages(0, 1 << 62, 2 * GROUPS, number)]
        groups["random"] = groups_of(pages, drawn)
        if hidden is not None and vectors is not None:
            order = (vectors @ hidden.question(prompt.question)).topk(min(len(pages), 4 * GROUPS)).indices
            groups["mean hidden"] = groups_of(pages, order.tolist())
        candidates, whole, unnamed = {}, {}, {}
        for ranking in core.search.rankings(CANDIDATES, **inputs, kinds=max(fusions.values(), key=len)):
            name = voice_of(ranking.part, ranking.granularity)
            candidates[name] = [(page.begin, score) for page, score in zip(ranking.pages, ranking.scores, strict=True)]
            whole[name], unnamed[name] = ranking.whole, ranking.unnamed
        ranks = {name: rank_of(found, question.span) for name, found in groups.items()}
        said = {"ranks": ranks, "candidates": candidates, "whole": whole, "unnamed": unnamed}
        rows.append(dataclasses.asdict(question) | said)
    return rows


def voice_of(part: str, granularity: str) -> str:
    """Return the name of a ranking in the results: "heads", "heads group" ..."""
    return part if granularity == "page" else f"{part} {granularity}"


def calibrated(model: Any, tokenizer: Any, book: Book) -> everlong.IndexProfile:
    """Return retrieval heads found on the beginning of a book that is in no haystack."""
    ids = tokenizer(book.text, add_special_tokens=False, verbose=False)["input_ids"][:CALIBRATION_TOKENS]
    with everlong.MemoryModel(model, tokenizer) as mm:
        mm.read(tokenizer.decode(ids), source=book.name)
        return mm.calibrate()


def at_every_length(
    work: pathlib.Path,
    lengths: Sequence[int],
    corpus: pathlib.Path | None,
    settings: Sequence[str],
    embedding_to: int,
    done: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Read, and ask at every length that is not done."""
    model, tokenizer = load("smollm2")
    os.environ["EVERLONG_CACHE"] = str(work / "cache")  # heads of this run alone, whatever else the machine knows
    kept = shipped_books()[-1]
    # More of a corpus than is needed: build_haystack says when the books are too short.
    characters = int((lengths[-1] + SPARE_TOKENS) * CHARACTERS_PER_TOKEN)
    books = [book for book in all_books(corpus, characters) if book != kept]
    # The same seed, so that no two of them share a key.
    facts = [fact for kinds, count in FACTS for fact in make_facts(kinds, count, seed=21)] + list(PARAPHRASES)
    order = np.random.default_rng(21).permutation(len(facts))
    positions = [int((place + 0.5) / len(facts) * lengths[0] * 0.98) for place in range(len(facts))]
    haystack = build_haystack(books, tokenizer, lengths, [facts[i] for i in order], positions, seed=21)
    if not (work / "cache").exists():
        calibrated(model, tokenizer, kept)
    config = everlong.MemoryConfig().with_settings(settings)
    hidden = HiddenStates(model, work / "hidden.f16", haystack.tokens + 4096)
    folder, begins = work / "haystack.everlong", work / "begins.json"
    starts: list[int] = json.loads(begins.read_text()) if begins.exists() else []  # where every part was begun
    for length, parts in zip(lengths, haystack.checkpoints, strict=True):
        if str(length) in done:
            continue
        with everlong.MemoryModel(model, tokenizer, folder, config) as mm:
            for number in range(max(0, len(starts) - 1), parts):
                if number == len(starts):
                    starts.append(mm.frame.text_begin)
                    begins.write_text(json.dumps(starts))
                part = haystack.parts[number]
                if mm.stream_tokens - starts[number] >= part.end - part.begin:
                    continue  # read before
                hidden.reading = mm
                report = mm.read(part.text, source=f"{number} {part.source}")
                hidden.reading = None
                speed = report.tokens / report.seconds
                print(f"{part.source}: {mm.stream_tokens:,} tokens, {speed:.0f} a second", file=sys.stderr, flush=True)
        of_stream = [starts[needle.part] - haystack.parts[needle.part].begin for needle in haystack.needles]
        questions = [
            Question(n.fact.question, n.fact.kind == "paraphrase", (n.begin + shift, n.end + shift))
            for n, shift in zip(haystack.needles, of_stream, strict=True)
        ]
        # The encoder works after the reading: beside it, on as many cores, both would take longer.
        if length <= embedding_to:
            config = config.changed(search={"index": ("heads", "lexical", "embedding")})
        with everlong.MemoryModel(model, tokenizer, folder, config) as mm:
            yield result(mm, length, questions, hidden)
        config = config.changed(search={"index": ("heads", "lexical")})


def of_memory(work: pathlib.Path, folder: pathlib.Path, report: pathlib.Path) -> dict[str, Any]:
    """Ask the questions of a NIAH report about the memory that it read, and the paraphrases, in a branch that reads
    them.
    """
    model, tokenizer = load("smollm2")
    asked = json.loads(report.read_text())["questions"]
    branch = work / folder.name
    if not branch.exists():
        with everlong.Memory.open(folder, read_only=True) as memory:
            memory.fork(branch).close()
    config = everlong.MemoryConfig().changed(
        archive={"host_bytes": MEMORY_HOST_BYTES}, search={"index": ("heads", "lexical", "embedding")}
    )
    with everlong.MemoryModel(model, tokenizer, branch, config) as mm:
        facts, tokens = list(PARAPHRASES), PARAPHRASE_TOKENS
        positions = [int((place + 0.5) / len(facts) * tokens) for place in range(len(facts))]
        further = build_haystack(shipped_books()[-1:], tokenizer, [tokens], facts, positions)
        begins = [read_once(mm, part.text, f"{PARAPHRASES_SOURCE} {n}") for n, part in enumerate(further.parts)]
        questions = [
            Question(row["question"], False, (row["span"][0], row["span"][1]))
            for row in asked
            if row["span"][1] <= begins[0]
        ]
        for needle in further.needles:
            shift = begins[needle.part] - further.parts[needle.part].begin
            span = (needle.begin + shift, needle.end + shift)
            questions.append(Question(needle.fact.question, needle.fact.kind == "paraphrase", span))
        return result(mm, begins[0], questions, None)


def read_once(mm: everlong.MemoryModel, text: str, source: str) -> int:
    """Return where a source begins in the stream; read it where it is not there yet."""
    read = mm.memory.blocks(source=source)
    if read:
        return read[0].span[0]
    begin = mm.frame.text_begin
    mm.read(text, source=source)
    return begin


def result(
    mm: everlong.MemoryModel, length: int, questions: Sequence[Question], hidden: HiddenStates | None
) -> dict[str, Any]:
    started = time.perf_counter()
    rows = ask(mm, questions, hidden)
    return {
        "tokens": mm.memory.stats().tokens,
        "length": length,
        "profile": json.loads(mm.profile.to_json()) if mm.profile else None,
        "seconds": time.perf_counter() - started,
        "pages": [(page.begin, page.end) for page in mm.memory.core.blocks.pages()],
        "questions": rows,
    }


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Print a row for each method and two columns for each length: drawn facts and paraphrases, in percent."""
    columns: list[tuple[str, list[dict[str, Any]]]] = []
    for one in results:
        for name, wanted in (("facts", False), ("paraphrases", True)):
            rows = [row for row in one["questions"] if row["paraphrase"] is wanted]
            if rows:
                columns.append((f"{one['tokens']:,} tokens, {len(rows)} {name}", rows))
    print("| the answer in the first four groups, % | " + " | ".join(name for name, _ in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for method in METHODS:
        cells = []
        for _, rows in columns:
            ranks = [row["ranks"].get(method) for row in rows]
            share = sum(rank > 0 for rank in ranks if rank is not None) / len(rows)
            cells.append("–" if None in ranks else f"{100 * share:.1f}")
        print(f"| {method} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path, help="folder for memory and results")
    parser.add_argument("--tokens", type=int, nargs="+", default=[131_072, 196_608])
    parser.add_argument("--corpus", type=pathlib.Path, help="more books: a folder of .txt files or a .tar.xz of them")
    parser.add_argument(
        "--set", action="append", default=[], help="setting of MemoryConfig to read with: group.name=value"
    )
    parser.add_argument("--embedding-to", type=int, default=1 << 62, help="longest haystack that the encoder reads too")
    parser.add_argument("--memory", type=pathlib.Path, help="a memory that was read before")
    parser.add_argument("--report", type=pathlib.Path, help="with --memory: the report of the NIAH run that read it")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    file = options.work / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def keep(one: dict[str, Any]) -> None:
        results[str(one["length"])] = one
        file.write_text(json.dumps(results))

    if options.memory is not None:
        keep(of_memory(options.work, options.memory, options.report))
    else:
        for one in at_every_length(
            options.work, options.tokens, options.corpus, options.set, options.embedding_to, results
        ):
            keep(one)
    print_table([results[key] for key in sorted(results, key=int)])


if __name__ == "__main__":
    main()
