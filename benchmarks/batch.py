"""Several rows at once against one after another: tokens a second of decoding, and of whole questions.

    python benchmarks/batch.py [--model smollm2] [--dtype float32] [--rows 8] [--context 1500] [--new-tokens 32]
                               [--chunks 16 64 128] [--questions 32] [--threads 1] [--json]

Decoding: a memory reads so many tokens. Forks of its frame each go on with a token of their own, greedily, all of them
together and each alone. The anchor is plain transformers with a growing cache over as many tokens: a batch of as many
rows over a batch of one. Chunks: each row reads so many tokens at once, as whoever reads questions or texts does.
Questions: `answer_many` with `answer.at_once` = rows, and with 1. Ratios are of CPU time, in which other work on the
machine counts little. Every row's tokens must be those that it has alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import torch

import everlong
from everlong.frame.frame import Frame
from everlong.frame.kv_frame import KvFrame
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.kv_cache.batching import run_batched
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.models.releases import cache_argument
from everlong_lab.corpora.facts import make_facts
from everlong_lab.corpora.haystack import build_haystack
from everlong_lab.data.books import all_books

_CHUNKS = 3  # that a row reads


def read(frame: Frame, length: int, first: int) -> list[int]:
    """Read some chunks of `length` tokens. Return which token follows each."""
    with frame.branch(traced=False):
        chunks = [torch.arange(first + at, first + at + length) % 1000 + 100 for at in range(_CHUNKS)]
        return [int(frame.extend(chunk, "prompt").argmax()) for chunk in chunks]


def decoded(frame: Frame, count: int, first: int) -> list[int]:
    """Return what follows a token greedily."""
    ids = [first]
    with frame.branch(traced=False):
        for _ in range(count):
            ids.append(int(frame.extend(torch.tensor(ids[-1:]), "generated").argmax()))
    return ids[1:]


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    begun = clock()
    made = work()
    return clock() - begun, made


def of_decoding(
    mm: everlong.MemoryModel,
    rows: int,
    count: int,
    clock: Callable[[], float] = time.process_time,
    work: Callable[[Frame, int, int], list[int]] = decoded,
) -> dict[str, Any]:
    """Return seconds for one row after another, and for all rows together, each of work(frame, count, a token)."""
    assert isinstance(mm.frame, KvFrame)
    firsts = [100 + 4 * row for row in range(rows)]
    with contextlib.ExitStack() as undo:
        forks = mm.frame.forks(rows)
        for fork in forks:
            undo.callback(fork.detach)
        workers = [functools.partial(work, fork, count) for fork in forks]
        list(run_batched([functools.partial(work, fork, 1) for fork in forks], firsts))  # warms up
        together, made = timed(lambda: dict(run_batched(workers, firsts)), clock)
        alone, expected = timed(lambda: [work(forks[0], count, first) for first in firsts], clock)
    same = sum(made[row] == expected[row] for row in range(rows))
    return {"together": together, "alone": alone, "ratio": alone / together, "same": same}


@torch.no_grad()
def of_transformers(model: Any, ids: torch.Tensor, rows: int, count: int) -> dict[str, Any]:
    """Return the same of plain transformers, each row over the same tokens."""

    def generated(batch: int) -> None:
        given = ids[None].repeat(batch, 1)
        out = model(input_ids=given, use_cache=True, logits_to_keep=1)
        cache, token = out[cache_argument(model)], out.logits[:, -1:].argmax(-1)
        begun.append(time.process_time())
        for _ in range(count):
            out = model(input_ids=token, **{cache_argument(model): cache}, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)

    seconds = []
    for batch in (1, rows):
        begun: list[float] = []
        generated(batch)
        seconds.append(time.process_time() - begun[0])
    return {"together": seconds[1], "alone": rows * seconds[0], "ratio": rows * seconds[0] / seconds[1]}


def of_questions(mm: everlong.MemoryModel, questions: list[str], rows: int) -> dict[str, Any]:
    """Return seconds for all questions, and how many answers are the same."""

    def answers(at_once: int) -> Callable[[], list[str]]:
        def ask() -> list[str]:
            answer = dataclasses.replace(mm.config.answer, at_once=at_once)
            mm.config = dataclasses.replace(mm.config, answer=answer)
            return [one.text for one in mm.answer_many(questions, **AS_MEASURED)]

        return ask

    together, made = timed(answers(rows))
    alone, expected = timed(answers(1))
    same = sum(one == other for one, other in zip(made, expected, strict=True))
    return {"together": together, "alone": alone, "ratio": alone / together, "same": same, "of": len(questions)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=1500, help="tokens in every row")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--chunks", type=int, nargs="*", default=[], help="tokens that a row reads at once")
    parser.add_argument("--questions", type=int, default=32, help="for what is planted in 8,192 tokens; 0: none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model, dtype=options.dtype)
    text = "".join(book.text for book in all_books(None))[: 12 * options.context]
    ids = torch.tensor(tokenizer(text)["input_ids"][: options.context])
    found: dict[str, Any] = {}
    with contextlib.closing(everlong.MemoryModel(model, tokenizer)) as mm:
        mm.frame.extend(ids, "read")
        found["decoding"] = of_decoding(mm, options.rows, options.new_tokens)
        for length in options.chunks:
            found[f"chunks of {length}"] = of_decoding(mm, options.rows, length, work=read)
    found["transformers"] = of_transformers(model, ids, options.rows, options.new_tokens)
    if options.questions:
        facts = make_facts(("uuid", "quote", "pass-key", "name"), options.questions // 4, seed=3)
        places = [round((at + 0.5) / len(facts) * 8192 * 0.9) for at in range(len(facts))]
        with contextlib.closing(everlong.MemoryModel(model, tokenizer)) as mm:
            haystack = build_haystack(all_books(None), tokenizer, [8192], facts, places, seed=3)
            for part in haystack.parts:
                mm.read(part.text, source=part.source)
            found["questions"] = of_questions(mm, [fact.question for fact in facts], options.rows)
    if options.json:
        print(json.dumps({"cpu": processor(), "rows": options.rows, **found}, indent=2))
        return
    print(f"{processor()}, {options.threads} threads, CPU time, {options.rows} rows, {str(model.dtype)[6:]}")
    for name, one in found.items():
        same = f", {one['same']} of {one.get('of', options.rows)} texts are the same" if "same" in one else ""
        print(f"{name}: {one['alone']:.1f} s alone, {one['together']:.1f} s together: {one['ratio']:.2f}{same}")


if __name__ == "__main__":
    main()
