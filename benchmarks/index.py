"""Searching an archive by attention heads and by words, beside the plainest other way, in one run.

    python benchmarks/index.py [--tokens 10000 100000 1000000] [--json] [--plot FILE.png]
    python benchmarks/index.py --beside [--tokens 1000000] [--rounds 3] [--json]

heads: the exact scan of a 16-token question by 5 heads over 2 KV heads of 64 (SmolLM2's). It stands beside a plain read
of the same bytes, and beside torch (a matmul a KV head, softmax, sums over pages). For an archive that is large enough
for two levels, `two levels` is what the heads then take. Above two million tokens the same keys come again and again,
and torch is left out, as its matrix of scores would not fit.

lexical: BM25 of the same question over token ids drawn by Zipf's law.

The payload lies in a temporary folder (512 bytes a token), the indexes in RAM (up to 330 bytes a token). Then come
exact scans of keys in bf16, int8 and e4m3. They show what the index takes in RAM, and how many of the 16 best pages in
bf16 are among the best there too. Keys are random, so no page is much better than the next. Figures are medians of the
rounds.

--beside: how long searches take while another thread adds the last three quarters of so many tokens. They are compared
with searches alone at every size on the way. At three quarters the heads go over to two levels. The benchmark prints
the longest and the median search of both, and the ratio of the longest. Every round fills two memories for each set of
parts; its medians are shown.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.models.hardware import processor

KV_HEADS, DIM, PAGE, BLOCK = 2, 64, 64, 4096
HEADS = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 4, 1)]  # (layer, query head, KV head)
QUESTION = 16
DISTINCT = 2_000_000  # tokens with keys of their own
VOCABULARY = 49_152
COARSE_FROM = 131_072  # pages (cpp/index/include/everlong/index/heads.h)
NEVER = 2**31 - 1
KEYS = ("bf16", "int8", "e4m3")  # how keys are kept; `heads` and `two levels` are timed with the first
BEST = 16  # pages that are compared
BESIDE = (["heads"], ["lexical"], ["heads", "lexical"])  # what is asked beside an appender
PAUSES, SEARCHES = 24, 20  # sizes at which searches are timed alone, and how many at each
HOST_BYTES = 1 << 30  # of the payload; nothing that is timed reads it


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median of `rounds` calls, after one that warms up."""
    work()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def new_memory(folder: str) -> _core.Memory:
    manifest = _core.Manifest(
        weights="", rope="", tokenizer="", layers=1, kv_heads=KV_HEADS, head_dim=DIM, page_tokens=PAGE, codec="bf16"
    )
    return _core.Memory.create(folder, manifest, HOST_BYTES)


def payload_of(keys: torch.Tensor) -> Any:
    """Return pages of keys [KV_HEADS, n, DIM] in bf16, with zeros as values."""
    pages = []
    for first in range(0, keys.shape[1], PAGE):
        page = keys[:, first : first + PAGE]
        pages += [page.contiguous().view(torch.uint8).reshape(-1), torch.zeros(page.numel() * 2, dtype=torch.uint8)]
    return torch.cat(pages).numpy()


def random_keys(count: int, rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal((KV_HEADS, count, DIM), dtype=np.float32)).bfloat16()


def random_ids(count: int, rng: np.random.Generator) -> Any:
    return (rng.zipf(1.1, count) % VOCABULARY).astype(np.int32)


def append(memory: _core.Memory, begin: int, token_ids: Any, payload: Any) -> None:
    memory.blocks.append(
        stream=0,
        begin=begin,
        end=begin + len(token_ids),
        sink_tokens=0,
        source="",
        created_at=0,
        tags=[],
        token_ids=token_ids,
        payload=payload,
    )


def memory_of(tokens: int, rng: np.random.Generator, folder: str) -> tuple[_core.Memory, torch.Tensor]:
    """Return a memory of random keys and Zipf's words, and its first keys [KV_HEADS, n, DIM] in bf16."""
    memory = new_memory(folder)
    all_keys = []
    for begin in range(0, tokens, BLOCK):
        count = min(BLOCK, tokens - begin)
        if begin < DISTINCT:
            keys = random_keys(count, rng)
            all_keys.append(keys)
        else:
            keys = all_keys[begin // BLOCK % len(all_keys)][:, :count]
        append(memory, begin, random_ids(count, rng), payload_of(keys))
    return memory, torch.cat(all_keys, dim=1)


def scan_by_torch(keys: torch.Tensor, q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return every page's mass by its definition, for keys [KV_HEADS, N, DIM] and q [T, heads, DIM]."""
    mass = torch.zeros(-(-keys.shape[1] // PAGE))
    for kv_head in range(KV_HEADS):
        of_head = q[:, [i for i, head in enumerate(HEADS) if head[2] == kv_head]]
        scores = of_head.reshape(-1, DIM).to(keys.dtype) @ keys[kv_head].T / DIM**0.5
        shares = torch.softmax(scores.float(), dim=-1)
        rows = weights.repeat_interleave(of_head.shape[1])
        mass = mass + torch.nn.functional.pad(rows @ shares, (0, -keys.shape[1] % PAGE)).view(-1, PAGE).sum(1)
    return mass


def measure_keys(memory: _core.Memory, search: Callable[[int], _core.SearchResult], rounds: int) -> dict[str, Any]:
    """Return what every kind of keys takes and finds, by one level; search(groups) asks by the heads."""
    tokens = sum(page.end - page.begin for page in memory.blocks.pages())
    best: set[int] = set()
    measured = {}
    for keys in KEYS:
        memory.index.set_retrieval_heads([])  # the old index goes before the new one comes
        without = memory.upkeep.stats().index_bytes
        memory.index.set_retrieval_heads(HEADS, NEVER, keys)
        found = {page.begin for group in search(BEST).groups for page in group.pages}
        best = best or found
        measured[keys] = {
            "token_bytes": (memory.upkeep.stats().index_bytes - without) / tokens,
            "seconds": seconds(lambda: search(1), rounds),
            "same": len(found & best) / len(best),
        }
    return measured


def read_seconds(key_bytes: int, rounds: int) -> float:
    words = torch.ones(key_bytes // 8, dtype=torch.int64)
    return seconds(lambda: words.sum(), rounds)


def measure_archive(memory: _core.Memory, keys: torch.Tensor, rng: np.random.Generator, rounds: int) -> dict[str, Any]:
    tokens = memory.upkeep.stats().tokens
    ids = random_ids(QUESTION, rng)
    q = rng.standard_normal((QUESTION, len(HEADS), DIM)).astype(np.float32)
    weights = torch.from_numpy(memory.search.idf(ids))
    result: dict[str, Any] = {"tokens": tokens, "key_bytes": tokens * KV_HEADS * DIM * 2}

    def by_heads(groups: int = 1) -> _core.SearchResult:
        return memory.search.find(
            token_ids=ids, head_queries=q, kinds=["heads"], max_groups=groups, neighbours=0, token_budget=1 << 30
        )

    result["lexical"] = seconds(lambda: memory.search.find(token_ids=ids, kinds=["lexical"], max_groups=4), rounds)
    if len(memory.blocks.pages()) >= COARSE_FROM:
        memory.index.set_retrieval_heads(HEADS)
        result["two levels"] = seconds(by_heads, rounds)
    result["keys"] = measure_keys(memory, by_heads, rounds)
    result["heads"] = result["keys"][KEYS[0]]["seconds"]
    if keys.shape[1] == tokens:
        memory.index.set_retrieval_heads(HEADS)
        best = int(scan_by_torch(keys.float(), torch.from_numpy(q), weights).argmax())
        assert by_heads().groups[0].begin == best * PAGE, "the scan and torch in fp32 find different pages"
        with torch.inference_mode():
            result["torch"] = seconds(lambda: scan_by_torch(keys, torch.from_numpy(q), weights), rounds)
    memory.index.set_retrieval_heads([])
    result["read"] = read_seconds(result["key_bytes"], rounds)
    return result


def measure_tokens(tokens: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        memory, keys = memory_of(tokens, rng, folder)
        try:
            return measure_archive(memory, keys, rng, rounds)
        finally:
            memory.close()


Blocks = list[tuple[int, Any, Any]]  # first token, token ids, payload


def time_searches(memory: _core.Memory, kinds: list[str], blocks: Blocks, beside: bool) -> list[float]:
    """Return seconds of searches while the last three quarters of `blocks` are added, by another
    thread or in between.
    """
    rng = np.random.default_rng(1)
    ids = random_ids(QUESTION, rng)
    q = rng.standard_normal((QUESTION, len(HEADS), DIM)).astype(np.float32)
    taken: list[float] = []

    def search() -> None:
        started = time.perf_counter()
        memory.search.find(token_ids=ids, head_queries=q, kinds=kinds, max_groups=4)
        taken.append(time.perf_counter() - started)

    first = len(blocks) // 4
    for block in blocks[:first]:
        append(memory, *block)
    blocks = blocks[first:]
    if not beside:
        step = max(1, len(blocks) // PAUSES)
        for at in range(0, len(blocks), step):
            for block in blocks[at : at + step]:
                append(memory, *block)
            for _ in range(SEARCHES):
                search()
        return taken
    added = threading.Event()

    def add() -> None:
        try:
            for block in blocks:
                append(memory, *block)
        finally:
            added.set()

    appender = threading.Thread(target=add)
    appender.start()
    while not added.is_set():
        search()
    appender.join()
    return taken


def measure_beside(tokens: int, rounds: int) -> dict[str, Any]:
    """Return by parts the longest and the median search alone and beside an appender, as medians of the rounds."""
    rng = np.random.default_rng(0)
    blocks: Blocks = []
    for begin in range(0, tokens, BLOCK):
        count = min(BLOCK, tokens - begin)
        blocks.append((begin, random_ids(count, rng), payload_of(random_keys(count, rng))))
    coarse_from = tokens // PAGE * 3 // 4
    measured: dict[str, dict[str, Any]] = {}
    for kinds in BESIDE:
        rows: dict[str, list[float]] = {}
        for _ in range(rounds):
            longest = {}
            for beside in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    memory = new_memory(folder)
                    memory.index.set_retrieval_heads(HEADS, coarse_from)
                    taken = time_searches(memory, kinds, blocks, beside)
                    memory.close()
                name = "beside" if beside else "alone"
                longest[name] = max(taken)
                rows.setdefault(f"longest {name}", []).append(max(taken))
                rows.setdefault(f"median {name}", []).append(statistics.median(taken))
                rows.setdefault(f"searches {name}", []).append(len(taken))
            rows.setdefault("ratio", []).append(longest["beside"] / longest["alone"])
        measured["+".join(kinds)] = {name: statistics.median(values) for name, values in rows.items()}
        measured["+".join(kinds)]["ratios"] = rows["ratio"]
    return {"tokens": tokens, "two levels from": coarse_from * PAGE, "rounds": rounds, "parts": measured}


def print_beside(report: dict[str, Any]) -> None:
    print(f"{report['cpu']}, torch {report['torch']}, {report['threads']} threads")
    for row in report["beside"]:
        way = f"two levels from {row['two levels from']:,} on, medians of {row['rounds']} rounds"
        print(f"\n{row['tokens']:,} tokens, {way}")
        print(f"{'':>14} {'longest alone':>14} {'beside':>10} {'ratio':>6} {'median alone':>13} {'beside':>10}  ratios")
        for name, of in row["parts"].items():
            ratios = " ".join(f"{ratio:.2f}" for ratio in of["ratios"])
            longest = f"{of['longest alone'] * 1e3:11.1f} ms {of['longest beside'] * 1e3:7.1f} ms {of['ratio']:6.2f}"
            median = f"{of['median alone'] * 1e3:10.1f} ms {of['median beside'] * 1e3:7.1f} ms"
            print(f"{name:>14} {longest} {median}  {ratios}")


def plot_archives(report: dict[str, Any], file: pathlib.Path) -> None:
    """Plot time over tokens, both in powers of ten."""
    from matplotlib.figure import Figure

    shown = {
        "heads": "heads: exact scan",
        "two levels": "heads by two levels",
        "torch": "the same by torch",
        "read": "a plain read of its bytes",
        "lexical": "lexical: BM25",
    }
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for (name, label), marker in zip(shown.items(), "oDsv^", strict=True):
        rows = [row for row in report["archives"] if name in row]
        if not rows:
            continue
        axes.plot([row["tokens"] for row in rows], [row[name] * 1e3 for row in rows], marker=marker, label=label)
    axes.set(xscale="log", yscale="log", xlabel="archive (tokens)", ylabel="a question (ms)")
    axes.set_title(f"A question of {QUESTION} tokens, {report['threads']} threads", fontsize=11)
    axes.grid(which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['cpu']}, torch {report['torch']}, {report['threads']} threads")
    widths = {"tokens": 11, "heads": 9, "read": 9, "ratio": 6, "torch": 9, "faster": 7, "lexical": 9, "two levels": 11}
    print("\n" + " ".join(f"{name:>{width}}" for name, width in widths.items()))
    for row in report["archives"]:
        times = {name: f"{row[name] * 1e3:.2f} ms" for name in row if name not in ("tokens", "key_bytes", "keys")}
        faster = f"{row['torch'] / row['heads']:.2f}x" if "torch" in row else ""
        print(
            f"{row['tokens']:11,} {times['heads']:>9} {times['read']:>9} {row['heads'] / row['read']:6.2f} "
            f"{times.get('torch', ''):>9} {faster:>7} {times['lexical']:>9} {times.get('two levels', ''):>11}"
        )
    print(f"\n{'tokens':>11} {'keys':>5} {'bytes a token':>14} {'scan':>10} {f'same best {BEST}':>13}")
    for row in report["archives"]:
        for keys, of in row["keys"].items():
            print(
                f"{row['tokens']:11,} {keys:>5} {of['token_bytes']:14.1f} {of['seconds'] * 1e3:7.2f} ms "
                f"{of['same']:12.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        help="sizes in tokens; by default 10,000, 100,000 and 1,000,000, with --beside the last",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each measurement; by default 7, with --beside 3")
    parser.add_argument("--beside", action="store_true", help="time searches while another thread adds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the scans' times over tokens (extra `plot`)")
    options = parser.parse_args()
    report: dict[str, Any] = {"cpu": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.beside:
        report["beside"] = [measure_beside(tokens, options.rounds or 3) for tokens in options.tokens or [1_000_000]]
        print(json.dumps(report, indent=2)) if options.json else print_beside(report)
        return
    sizes = options.tokens or [10_000, 100_000, 1_000_000]
    report["archives"] = [measure_tokens(tokens, options.rounds or 7) for tokens in sizes]
    if options.plot is not None:
        plot_archives(report, options.plot)
    print(json.dumps(report, indent=2)) if options.json else print_report(report)


if __name__ == "__main__":
    main()
