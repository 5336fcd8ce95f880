"""The RAM of forks of a frame: what 8 of them take when they are made, when each has decoded, and has answered.

    python benchmarks/forks.py [--model smollm2] [--dtype float32] [--forks 8] [--context 1500] [--tokens 24] [--json]

A memory reads so many tokens of a book. Forks of its frame share what none of them has written yet
(kv_cache/copy_on_write.py). The same is done with forks that are whole copies. Counted is RAM that belongs to no file
on disk, of which shared pages count once. A question brings pages back, so it writes the recalled zone of its fork.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

import everlong
from everlong.frame.kv_frame import KvFrame
from everlong.generation.answer_generator import AnswerGenerator
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.memory.where import EVERYWHERE
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong_lab.data.books import all_books


def bytes_held() -> int:
    """Return bytes of RAM that belong to no file on disk; a page that is mapped several times counts once."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    held = {name: 1024 * int(rest[0]) for name, *rest in rows}
    return held["Pss_Anon:"] + held["Pss_Shmem:"]


@contextlib.contextmanager
def forks_of(mm: everlong.MemoryModel, count: int) -> Iterator[list[KvFrame]]:
    assert isinstance(mm.frame, KvFrame)
    forks = mm.frame.forks(count)
    try:
        yield forks
    finally:
        for fork in forks:
            fork.detach()


def decode(fork: KvFrame, tokens: int) -> None:
    token = torch.tensor([100])
    for _ in range(tokens):
        token = fork.extend(token, "generated").argmax()[None]


def ask(mm: everlong.MemoryModel, fork: KvFrame) -> None:
    answering = AnswerGenerator(fork, mm.searcher.over(fork), mm.tokenizer)
    prompt = answering.prompt("Who is it that speaks first?", chat=True, variables=None)
    for _ in answering.answer(prompt, 8, True, EVERYWHERE, None, AS_MEASURED):
        pass


def measured(mm: everlong.MemoryModel, count: int, tokens: int) -> list[int]:
    """Return bytes that the forks take when made, when all have decoded, and when all have answered a question."""
    gc.collect()
    before, held = bytes_held(), []
    with forks_of(mm, count) as forks:
        works: list[Callable[[KvFrame], object]] = [
            lambda fork: fork.cache.k.sum(),
            lambda fork: decode(fork, tokens),
            lambda fork: ask(mm, fork),
        ]
        for work in works:
            for fork in forks:
                work(fork)
            gc.collect()
            held.append(bytes_held() - before)
    return held


def whole_copies(x: torch.Tensor, used: slice, count: int) -> list[torch.Tensor]:
    copies = [torch.zeros_like(x) for _ in range(count)]
    for copy in copies:
        copy[..., used, :] = x[..., used, :]
    return copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype")
    parser.add_argument("--forks", type=int, default=8)
    parser.add_argument("--context", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(options.model, dtype=options.dtype)
    text = "".join(book.text for book in all_books(None))[: 12 * options.context]
    with torch.no_grad(), contextlib.closing(everlong.MemoryModel(model, tokenizer)) as mm:
        mm.read(tokenizer.decode(tokenizer(text)["input_ids"][: options.context]))
        measured(mm, 1, options.tokens)  # torch keeps what it needs for such forwards
        frame = mm.frame.zones.bytes.slots
        shared = measured(mm, options.forks, options.tokens)
        with mock.patch("everlong.kv_cache.buffers.copy_on_write", whole_copies):
            copied = measured(mm, options.forks, options.tokens)
    if options.json:
        found = {"cpu": processor(), "frame_bytes": frame, "shared": shared, "copied": copied}
        print(json.dumps(found, indent=2))
        return
    print(f"{processor()}, {options.model}, {str(model.dtype)[6:]}; a frame's slots take {frame / 1e6:.1f} MB")
    print(f"{options.forks} forks, MB{'made':>12}{'decoded':>10}{'answered':>10}")
    for name, held in (("shared", shared), ("copied", copied)):
        print(f"{name:12}{held[0] / 1e6:9.1f}{held[1] / 1e6:10.1f}{held[2] / 1e6:10.1f}")


if __name__ == "__main__":
    main()
