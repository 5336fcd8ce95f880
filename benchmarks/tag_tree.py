"""The Time -> Tag tree over many blocks: how few blocks a question's times and tags leave, how fast, in how much RAM.

    python benchmarks/tag_tree.py [--blocks 1000000] [--questions 500] [--json]

Blocks lie evenly in five years, in 2,000 sessions. Each has four tags, drawn from 200,000 by Zipf's law without the
commonest hundred, which no tagger gives. A question is about one block, and names what its kind says of the block.
Times are CPU times. The anchor is a numpy scan of all blocks, over arrays of times and tags, in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.models.hardware import processor

TAGS, COMMONEST, A_BLOCK = 200_000, 100, 4
DAY, YEARS, SESSIONS = 86_400.0, 5, 2_000
FIRST = 1_577_836_800.0  # 2020-01-01
KINDS = ("day", "week", "month and tag", "tag", "two tags", "year and two tags")


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str
    left: float  # blocks, on average
    most: int
    inside: float  # share of questions whose block is among them
    milliseconds: float  # on average
    slowest: float
    scan_milliseconds: float


def drawn(blocks: int, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return times [blocks], ascending, and tags [blocks, A_BLOCK]."""
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(FIRST, FIRST + YEARS * 365.25 * DAY, blocks))
    shares = np.cumsum(1 / np.arange(COMMONEST + 1, TAGS + COMMONEST + 1))
    tags = np.searchsorted(shares / shares[-1], random.random((blocks, A_BLOCK)))
    return times, tags


def asked(kind: str, time: float, tags: npt.NDArray[np.int64]) -> tuple[list[tuple[float, float]], list[int]]:
    length = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY}.get(kind.split()[0])
    ranges = [] if length is None else [((time // length) * length, (time // length + 1) * length)]
    names = tags[: {"tag": 1, "month and tag": 1}.get(kind, 2)].tolist() if "tag" in kind else []
    return ranges, names


def measure(blocks: int, questions: int) -> dict[str, Any]:
    times, tags = drawn(blocks, 0)
    tree = _core.TagTree()
    started = time.process_time()
    for at in range(blocks):
        tree.add(at + 1, float(times[at]), at * SESSIONS // blocks, [f"tag {tag}" for tag in tags[at].tolist()])
    built = time.process_time() - started
    random = np.random.default_rng(1)
    rows = []
    for kind in KINDS:
        left: list[int] = []
        inside: list[bool] = []
        took: list[float] = []
        scanned: list[float] = []
        for at in random.integers(blocks, size=questions).tolist():
            ranges, names = asked(kind, float(times[at]), tags[at])
            words = [f"tag {name}" for name in names]
            started = time.process_time()
            _, ids = tree.narrow(ranges, words)
            took.append(time.process_time() - started)
            left.append(len(ids))
            inside.append(bool((ids == at + 1).any()))
            if len(scanned) < 20:
                started = time.process_time()
                allowed = np.ones(blocks, dtype=np.bool_)
                for since, before in ranges:
                    allowed &= (times >= since) & (times < before)
                for name in names:
                    allowed &= (tags == name).any(axis=1)
                found = np.flatnonzero(allowed)
                scanned.append(time.process_time() - started)
                assert len(found) > 10_000 or (found + 1).tolist() == ids.tolist()
        rows.append(
            Row(
                kind,
                float(np.mean(left)),
                max(left),
                float(np.mean(inside)),
                1e3 * float(np.mean(took)),
                1e3 * max(took),
                1e3 * float(np.mean(scanned)),
            )
        )
    return {
        "processor": processor(),
        "blocks": blocks,
        "bytes_a_block": tree.nbytes / blocks,
        "microseconds_a_block": 1e6 * built / blocks,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = measure(arguments.blocks, arguments.questions)
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    print(
        f"{report['processor']}; {report['blocks']:,} blocks, {report['bytes_a_block']:.1f} bytes and "
        f"{report['microseconds_a_block']:.1f} us to add each, Python's call among them"
    )
    print(f"{'question':>18} {'left':>8} {'most':>7} {'inside':>8} {'ms':>7} {'slowest':>8} {'scan':>8}")
    for row in report["rows"]:
        print(
            f"{row['kind']:>18} {row['left']:>8,.0f} {row['most']:>7,} {100 * row['inside']:>6.1f} % "
            f"{row['milliseconds']:>7.3f} {row['slowest']:>8.3f} {row['scan_milliseconds']:>8.2f}"
        )


if __name__ == "__main__":
    main()
