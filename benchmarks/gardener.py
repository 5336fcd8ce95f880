"""The Gardener beside scikit-learn's Birch and MiniBatchKMeans: microseconds a block, and how good the topics are.

    python benchmarks/gardener.py [speed] [--centres 1000 10000 100000] [--dimension 128] [--json]
    python benchmarks/gardener.py quality [--blocks 200000] [--topics 200] [--json]
    python benchmarks/gardener.py books --books FOLDER [--blocks 200000] [--block-tokens 128] [--share 0.4 0.5] [--json]
    python benchmarks/gardener.py reading [--rounds 3] [--json]
    python benchmarks/gardener.py memory --memory FOLDER [--json]

It runs the first two parts, or those that are named, all in one run. Times are CPU times of all threads.

speed: there are --centres centres, each of one block. --blocks-timed more blocks come, each near one of them.
MiniBatchKMeans is told the centres, and takes 1,024 blocks at a time. It is left out above 10,000 centres, as its first
call compares all of them with one another. The others take blocks one after the other. Birch has the same radius.

quality: Gaussians whose means drift by. They come one after the other and overlap in time; then the same shuffled. It
prints normalised mutual information with the truth (NMI), and the adjusted one (AMI). scikit-learn's two are told how
many topics there are. Birch has the radius that the Gardener has in the end, 0.4 of the spread of all. Then half of the
blocks are forgotten, to check that all sums are those of the blocks that are left.

books: blocks of a folder's texts, as many of each. A block's vector is the mean of the model's embeddings of its
tokens, of unit length. The truth is its text. Texts come one after the other; then blocks shuffled. scikit-learn's two
are told how many texts there are, the Gardener its share. Birch has the Gardener's final radius.

reading: a book is read into two memories in turns. One has a graph, which has all of the text at the end of each turn.

memory: topics of a memory with a graph, from its blocks' vectors in their order, for several shares.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import Birch, MiniBatchKMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

import everlong
import everlong._core as _core
from everlong.data import shipped_books
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor

PARTS = ("speed", "quality", "books", "reading", "memory")
TURN = 1024  # tokens of a book read at once
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCH = 1024
MOST_K_MEANS = 10_000
NEAR, RADIUS = 0.3, 0.5  # distance of a block from its centre, and radius of a centre; centres are about 1.4 apart
Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Speed:
    """Microseconds for a block that comes to one of the centres, and for a block that becomes a centre."""

    centres: int
    gardener: float
    birch: float
    mini_batch_k_means: float | None
    gardener_new: float
    birch_new: float
    gardener_found: float  # share of the blocks that came to the centre near which they were made
    gardener_bytes: int  # host memory of a centre, without the vectors of the blocks


@dataclasses.dataclass(frozen=True)
class Quality:
    """By method: mutual information with the truth, normalised and adjusted, number of topics, seconds of one pass."""

    order: str
    nmi: dict[str, float]
    ami: dict[str, float]
    topics: dict[str, int]
    seconds: dict[str, float]
    exact: bool  # whether the Gardener's sums are right after half was forgotten


def unit(rows: npt.NDArray[np.float64]) -> Vectors:
    scaled: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def speed(centres: int, dimension: int, timed: int) -> Speed:
    random = np.random.default_rng(centres)
    means = unit(random.normal(size=(centres, dimension)))
    near = random.normal(0, NEAR / np.sqrt(dimension), (timed, dimension))
    near_to = random.integers(0, centres, timed)
    blocks = (means[near_to] + near).astype(np.float32)

    gardener = _core.Gardener(dimension, radius=RADIUS)
    started = time.process_time()
    gardener.add(np.arange(1, centres + 1), means)
    gardener_new = time.process_time() - started
    assert gardener.size() >= 0.99 * centres, gardener.size()
    started = time.process_time()
    gardener.add(np.arange(centres + 1, centres + timed + 1), blocks)
    gardener_old = time.process_time() - started
    found = [
        gardener.centre_of(centres + 1 + block) == gardener.centre_of(int(centre) + 1)
        for block, centre in enumerate(near_to)
    ]

    birch = Birch(threshold=RADIUS, n_clusters=None)
    started = time.process_time()
    birch.partial_fit(means)
    birch_new = time.process_time() - started
    started = time.process_time()
    birch.partial_fit(blocks)
    birch_old = time.process_time() - started

    k_means_old = None
    if centres <= MOST_K_MEANS:
        k_means = MiniBatchKMeans(centres, init=means, n_init=1, batch_size=BATCH, reassignment_ratio=0)
        k_means.partial_fit(means)  # its first call takes no fewer blocks than there are centres
        few = blocks[: 4 * BATCH]
        started = time.process_time()
        for first in range(0, len(few), BATCH):
            k_means.partial_fit(few[first : first + BATCH])
        k_means_old = (time.process_time() - started) / len(few)
    return Speed(
        centres,
        gardener=1e6 * gardener_old / timed,
        birch=1e6 * birch_old / timed,
        mini_batch_k_means=None if k_means_old is None else 1e6 * k_means_old,
        gardener_new=1e6 * gardener_new / centres,
        birch_new=1e6 * birch_new / centres,
        gardener_found=sum(found) / timed,
        gardener_bytes=gardener.nbytes // gardener.size(),
    )


def drifting(blocks: int, topics: int, dimension: int) -> tuple[Vectors, Labels]:
    random = np.random.default_rng(topics)
    means = random.normal(0, 2.5, (topics, dimension))
    when = np.sort(random.uniform(0, topics, blocks))
    truth = np.clip(np.floor(when + random.normal(0, 0.7, blocks)), 0, topics - 1).astype(np.int64)
    points = means[truth] + random.normal(0, 1, (blocks, dimension))
    return (points / np.sqrt((points**2).sum(1).mean())).astype(np.float32), truth


def of_books(folder: str, most: int, tokens: int, model: str) -> tuple[Vectors, Labels]:
    """Return as many blocks of each text, in their order."""
    loaded, tokenizer = load(model, torch.float32)
    embeddings = loaded.get_input_embeddings().weight.detach().numpy()
    files = sorted(pathlib.Path(folder).glob("*.txt"))
    vectors, truth = [], []
    for label, file in enumerate(files):
        text = file.read_text()[: 6 * tokens * most // len(files)]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        count = min(len(ids) // tokens, most // len(files))
        for first in range(0, count * tokens, tokens):
            vectors.append(embeddings[ids[first : first + tokens]].mean(0))
            truth.append(label)
    return unit(np.array(vectors, dtype=np.float64)), np.array(truth)


def quality(order: str, points: Vectors, truth: Labels, topics: int, share: float = 0.4) -> Quality:
    dimension, count = points.shape[1], len(points)
    seconds = {}

    def clocked(name: str, started: float) -> None:
        seconds[name] = time.process_time() - started

    gardener = _core.Gardener(dimension, share=share)
    started = time.process_time()
    gardener.add(np.arange(1, count + 1), points)
    clocked("gardener", started)
    ours = [gardener.centre_of(block) for block in range(1, count + 1)]
    birch = Birch(threshold=gardener.radius(), n_clusters=topics)
    k_means = MiniBatchKMeans(topics, random_state=0, n_init=1, batch_size=BATCH)
    for name, other in (("birch", birch), ("mini_batch_k_means", k_means)):
        started = time.process_time()
        for first in range(0, count - BATCH + 1, BATCH):
            other.partial_fit(points[first : first + BATCH])
        clocked(name, started)

    for block in range(1, count + 1, 2):
        gardener.forget(block)
    kept = np.arange(2, count + 1, 2)
    whole = np.rint(points.astype(np.float64) * 2.0**22)  # what the sums are made of
    exact = sum(centre.count for centre in gardener.centres() if centre.level == 0) == len(kept)
    for centre in gardener.centres():
        if centre.level == 0:
            exact &= bool((whole[np.array(centre.members) - 1].sum(0) == centre.linear * 2.0**22).all())
    labels = {"gardener": np.array(ours), "birch": birch.predict(points), "mini_batch_k_means": k_means.predict(points)}
    return Quality(
        order,
        {name: float(normalized_mutual_info_score(truth, of)) for name, of in labels.items()},
        {name: float(adjusted_mutual_info_score(truth, of)) for name, of in labels.items()},
        {name: len(np.unique(of)) for name, of in labels.items()},
        seconds,
        exact,
    )


@dataclasses.dataclass(frozen=True)
class Reading:
    """CPU milliseconds for a token, as medians of the turns."""

    without: float
    with_graph: float
    blocks: int
    topics: int


def reading(rounds: int, model: str) -> Reading:
    loaded, tokenizer = load(model)
    plain = everlong.MemoryConfig.fitting(loaded.config.get_text_config().max_position_embeddings)
    ids = torch.tensor(tokenizer(shipped_books()[0].text, add_special_tokens=False, verbose=False)["input_ids"])
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        memories = {
            graph: stack.enter_context(
                everlong.MemoryModel(
                    loaded, tokenizer, pathlib.Path(folder) / str(graph), plain.changed(archive={"graph": graph})
                )
            )
            for graph in (False, True)
        }
        for turn in range(rounds + 1):
            for graph, mm in memories.items():
                started = time.process_time()
                mm.frame.extend(ids[turn * TURN : (turn + 1) * TURN], "read")
                mm.searcher.settle()
                if turn > 0:  # the first one warms up
                    seconds[graph].append(time.process_time() - started)
        found = memories[True].memory.graph
        blocks, topics = len(found.nodes("block")), len(found.nodes("topic"))
    without, with_graph = (1e3 * float(np.median(of)) / TURN for of in seconds.values())
    return Reading(without, with_graph, blocks, topics)


@dataclasses.dataclass(frozen=True)
class Topics:
    """A memory's topics on either level, blocks of the largest on level 0, topics of a single block."""

    share: float
    topics: list[int]
    largest: int
    single: int


def topics_of(folder: str) -> tuple[int, list[Topics]]:
    with everlong.Memory.open(folder, read_only=True) as memory:
        vectors = np.array([node.vector for node in memory.graph.nodes("block") if node.vector.size])
    if not len(vectors):
        raise SystemExit(f"{folder} has no graph with vectors: everlong read --set archive.graph=true grows one")
    rows = []
    for share in SHARES:
        gardener = _core.Gardener(vectors.shape[1], share=share)
        gardener.add(np.arange(1, len(vectors) + 1), vectors)
        counts = [centre.count for centre in gardener.centres() if centre.level == 0]
        rows.append(Topics(share, [gardener.size(0), gardener.size(1)], max(counts), counts.count(1)))
    return len(vectors), rows


def both_orders(points: Vectors, truth: Labels, share: float, quietly: bool) -> list[dict[str, Any]]:
    shuffled = np.random.default_rng(1).permutation(len(points))
    topics, rows = len(np.unique(truth)), []
    for order, in_order in (("drifting", np.arange(len(points))), ("shuffled", shuffled)):
        found = quality(order, points[in_order], truth[in_order], topics, share)
        rows.append(dataclasses.asdict(found))
        if not quietly:
            for name, seconds in found.seconds.items():
                print(
                    f"{len(points):,} blocks of {topics} topics, share {share}, {order}: {name} NMI "
                    f"{found.nmi[name]:.3f}, AMI {found.ami[name]:.3f}, {found.topics[name]:,} topics; {seconds:.1f} s"
                )
            print(f"sums after half is forgotten: {'exact' if found.exact else 'WRONG'}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--centres", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--blocks-timed", type=int, default=20_000)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--block-tokens", type=int, default=128, help="tokens in a block of a book")
    parser.add_argument("--books", help="folder of texts, each on a topic of its own")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="model that reads, or whose embeddings make the vectors of books' blocks"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of reading to time")
    parser.add_argument("--share", type=float, nargs="+", default=[0.4], help="the Gardener's share, for books")
    parser.add_argument("--memory", help="folder of a memory with a graph")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Number of subclusters")  # in Birch's first batches
    report: dict[str, Any] = {"processor": processor(), "dimension": arguments.dimension}
    parts = arguments.parts or ("speed", "quality")
    if "memory" in parts:
        if not arguments.memory:
            parser.error("memory: expected --memory FOLDER")
        blocks, rows = topics_of(arguments.memory)
        report["memory"] = [dataclasses.asdict(of) for of in rows]
        for of in rows if not arguments.json else ():
            print(
                f"{blocks:,} blocks, share {of.share}: {of.topics[0]:,} topics, {of.single:,} of one block, the "
                f"largest of {of.largest:,}; {of.topics[1]:,} above"
            )
    if "reading" in parts:
        cost = reading(arguments.rounds, arguments.model)
        report["reading"] = dataclasses.asdict(cost)
        if not arguments.json:
            print(
                f"reading: {cost.without:.2f} ms a token, with a graph {cost.with_graph:.2f} ms: "
                f"{100 * (cost.with_graph / cost.without - 1):+.1f} %; {cost.blocks} blocks, {cost.topics} topics"
            )
    if "speed" in parts:
        report["speed"] = []
        if not arguments.json:
            print(f"{processor()}; {arguments.dimension} numbers a vector")
            print(f"{'centres':>9} {'Gardener':>10} {'Birch':>10} {'k-means':>10} {'new: Gardener':>14} {'Birch':>10}")
        for centres in arguments.centres:
            row = speed(centres, arguments.dimension, arguments.blocks_timed)
            report["speed"].append(dataclasses.asdict(row))
            if not arguments.json:
                k_means = "-" if row.mini_batch_k_means is None else f"{row.mini_batch_k_means:.1f} us"
                print(
                    f"{row.centres:>9,} {row.gardener:>7.1f} us {row.birch:>7.1f} us {k_means:>10} "
                    f"{row.gardener_new:>11.1f} us {row.birch_new:>7.1f} us; {row.gardener_bytes:,} bytes a centre; "
                    f"{100 * row.gardener_found:.1f} % found their centre",
                    flush=True,
                )
    if "quality" in parts:
        points, truth = drifting(arguments.blocks, arguments.topics, 64)
        report["quality"] = both_orders(points, truth, 0.4, arguments.json)
    if "books" in parts:
        if not arguments.books:
            parser.error("books: expected --books FOLDER")
        points, truth = of_books(arguments.books, arguments.blocks, arguments.block_tokens, arguments.model)
        for share in arguments.share:
            report[f"books {share}"] = both_orders(points, truth, share, arguments.json)
    if arguments.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
