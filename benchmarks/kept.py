"""What the zone "kept" costs: reading and decoding with it against the same frame without it, in one run.

    python benchmarks/kept.py [--model smollm2] [--kept 512 1024] [--trimmer learned] [--writer] [--rounds 8] [--json]

All memories are in RAM and read the same text until the largest zone is full. Then they take turns. A round is
--round-tokens of reading in each, or --tokens of decoding. The ratio is the median speed with the zone over the median
speed without it. --writer adds the same zones as the KV writer writes them (with --trimmer learned).

Every token attends to the N more slots of a zone. So the row "more slots" is a frame without the zone, but with as many
slots more in rolling, so that both costs can be told apart.

With --clock cpu, the CPU time of this process counts, for a machine that others use meanwhile. With one thread that is
the time that it would take alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import torch

import everlong
from everlong.bench.grown_memory import book_ids
from everlong.frame.read_request import Origin
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.parts.kv_writer import KvWriter
from everlong.parts.trimmer import Choice, Trimmer


@dataclasses.dataclass(frozen=True)
class Row:
    frame: str
    resident_tokens: int
    spans_tokens: int  # from the oldest kept token to the newest of the stream
    reading_tokens_per_second: float
    reading_ratio: float
    decoding_tokens_per_second: float
    decoding_ratio: float


def configs(
    model: Any, kept: list[int], trimmer: Choice | None, *, writer: bool = False
) -> dict[str, everlong.MemoryConfig]:
    base = everlong.MemoryConfig.fitting(model.config.get_text_config().max_position_embeddings)
    frames = {"without": base}
    for tokens in kept:
        zone = base.changed(frame={"kept_tokens": tokens})
        frames[f"{tokens} kept"] = zone = zone if trimmer is None else zone.with_part(Trimmer(trimmer))
        if writer:
            frames[f"{tokens} written"] = zone.with_part(KvWriter(kept=True))
        frames[f"{tokens} more slots"] = base.changed(frame={"rolling_tokens": base.frame.rolling_tokens + tokens})
    return frames


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(mm: everlong.MemoryModel, ids: torch.Tensor, origin: Origin, chunk: int, clock: Callable[[], float]) -> float:
    started = clock()
    for first in range(0, len(ids), chunk):
        mm.frame.extend(ids[first : first + chunk], origin)
    return clock() - started


def measure(
    memories: dict[str, everlong.MemoryModel],
    ids: torch.Tensor,
    warm_up: int,
    rounds: int,
    read: int,
    decoded: int,
    clock: Callable[[], float],
) -> list[Row]:
    """Measure all memories; `ids` are [warm_up + rounds * read + decoded] or more."""
    chunk = next(iter(memories.values())).config.frame.chunk_tokens
    for name, mm in memories.items():
        seconds = timed(mm, ids[:warm_up], "read", chunk, clock)
        print(f"{name}: {warm_up:,} tokens in {seconds:.0f} s", file=sys.stderr, flush=True)
    reading: dict[str, list[float]] = {name: [] for name in memories}
    decoding: dict[str, list[float]] = {name: [] for name in memories}
    for at in range(rounds):
        own = ids[warm_up + at * read : warm_up + (at + 1) * read]
        names = list(memories) if at % 2 == 0 else list(reversed(memories))
        for name in names:
            reading[name].append(len(own) / timed(memories[name], own, "read", chunk, clock))
    for at in range(rounds):
        own = ids[-decoded:]
        for name in list(memories) if at % 2 == 0 else list(reversed(memories)):
            mm = memories[name]
            with mm.frame.branch(traced=False):
                timed(mm, own[:2], "generated", 1, clock)
                decoding[name].append((decoded - 2) / timed(mm, own[2:], "generated", 1, clock))
    rows = []
    first = next(iter(memories))
    for name, mm in memories.items():
        read_speed, decode_speed = (statistics.median(speeds[name]) for speeds in (reading, decoding))
        held = mm.frame.os.kept_held
        rows.append(
            Row(
                name,
                mm.frame.zones.resident_tokens,
                mm.stream_tokens - held[0] if held else 0,
                read_speed,
                read_speed / statistics.median(reading[first]),
                decode_speed,
                decode_speed / statistics.median(decoding[first]),
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--kept", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--trimmer", choices=get_args(Choice), help="how to choose tokens; by default the newest stay")
    parser.add_argument("--writer", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--round-tokens", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=34, help="tokens to decode a round, the first two untimed")
    parser.add_argument("--warm-up", type=int, help="tokens to read before; by default until the largest zone is full")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    with contextlib.ExitStack() as opened:
        memories = {
            name: opened.enter_context(everlong.MemoryModel(model, tokenizer, None, config))
            for name, config in configs(model, options.kept, options.trimmer, writer=options.writer).items()
        }
        config = next(iter(memories.values())).config
        # No zone is trimmed again before it is full.
        full = max(options.kept) * config.frame.kept_share + 2 * config.archive.block_tokens
        warm_up = options.warm_up or full + config.frame.rolling_tokens + config.frame.evict_tokens
        count = warm_up + options.rounds * options.round_tokens + options.tokens
        ids = book_ids(next(iter(memories.values())), count)
        rows = measure(
            memories, ids, warm_up, options.rounds, options.round_tokens, options.tokens, CLOCKS[options.clock]
        )
    if options.json:
        about = {"cpu": processor(), "torch": torch.__version__, "clock": options.clock}
        print(json.dumps({**about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
        return
    threads = f"{torch.get_num_threads()} threads, {options.clock} time"
    print(f"{processor()}, {threads}, torch {torch.__version__}, {str(model.dtype).removeprefix('torch.')}")
    print(f"{'frame':>18} {'resident':>9} {'spans':>8} {'reading':>14} {'ratio':>6} {'decoding':>14} {'ratio':>6}")
    for row in rows:
        print(
            f"{row.frame:>18} {row.resident_tokens:9,} {row.spans_tokens:8,}"
            f" {row.reading_tokens_per_second:8.1f} tok/s {row.reading_ratio:6.2f}"
            f" {row.decoding_tokens_per_second:8.1f} tok/s {row.decoding_ratio:6.2f}"
        )


if __name__ == "__main__":
    main()
