"""HnswIndex beside the Python packages hnswlib (extra `bench`) and usearch, and beside exact search, in one run.

    pip install usearch    # its row is left out without it
    python benchmarks/hnsw.py [--vectors 100000] [--memory FOLDER] [--links 16] [--ef EF] [--json]

The vectors are 128 random numbers each. With --memory they are as many un-rotated keys of the model that read it, layer
by layer. The queries are vectors of the same kind that are not in the index. `ef` is doubled until hnswlib finds
--recall of the five nearest, and HnswIndex then searches with it: same parameters, threads, vectors and queries. So it
is for usearch, with an `ef` of its own. numpy in fp64 says what is nearest.

Then HnswIndex is measured alone, with 50, 10 and 1 % of the vectors allowed (up to 10,000 are scanned exactly), and
again when half of them are gone. Figures are the best of the rounds. With --ef the packages are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong
from everlong.models.hardware import processor
from everlong.retrieval.index import HnswIndex

K, QUERIES, ROUNDS = 5, 200, 3
GRAPHS = ("hnswlib", "usearch", "everlong")
DIMENSION = 128
MOST_EF = 16_384
Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Graph:
    """How a graph did: seconds to build, queries a second, share of the K nearest that it found."""

    build: float
    qps: float
    recall: float


def best_seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def random_vectors(count: int) -> Vectors:
    return np.random.default_rng(1).standard_normal((count, DIMENSION), dtype=np.float32)


def keys_of(folder: pathlib.Path, count: int) -> Vectors:
    """Return keys [count, D] of a memory, from its middle layer on, all KV heads of a layer in turn."""
    parts: list[Vectors] = []
    have = 0
    with everlong.Memory.open(folder, read_only=True) as memory:
        core = memory.core
        pages = [page for page in core.blocks.pages() if page.begin > 0]  # no sinks
        layers = core.manifest().layers
        # The first layers' keys depend on little but their token, so the same key comes again and again.
        for layer in range(layers // 2, layers):
            for page in pages:
                keys = core.blocks.read_keys(page, layer)
                parts.append(keys.reshape(-1, keys.shape[-1]))
                have += len(parts[-1])
                if have >= count:
                    return np.concatenate(parts)[:count]
    raise SystemExit(f"{folder} has {have:,} keys, {count:,} are asked for: name a larger memory or fewer --vectors")


def nearest(vectors: Vectors, queries: Vectors, allowed: Mask | None = None) -> Ids:
    """Return ids [queries, K] of the nearest by squared distance, in fp64."""
    wide = queries.astype(np.float64)
    best = np.full((len(queries), K), np.inf)
    ids = np.full((len(queries), K), -1)
    for first in range(0, len(vectors), 65_536):
        some = vectors[first : first + 65_536].astype(np.float64)
        squares = (some**2).sum(1) - 2 * wide @ some.T  # the query's own square orders nothing
        if allowed is not None:
            squares[:, ~allowed[first : first + len(some)]] = np.inf
        both = np.concatenate([best, squares], axis=1)
        named = np.concatenate([ids, np.broadcast_to(np.arange(first, first + len(some)), squares.shape)], axis=1)
        order = np.argsort(both, axis=1)[:, :K]
        best, ids = np.take_along_axis(both, order, 1), np.take_along_axis(named, order, 1)
    return ids


def recall(found: Ids, truth: Ids, vectors: Vectors, queries: Vectors) -> float:
    """Return the share of `found` [queries, K] that is as near as the farthest of `truth`: any of
    equals may be found.
    """

    def distances(ids: Ids) -> npt.NDArray[np.float64]:
        difference = vectors[ids].astype(np.float64) - queries[:, None]
        squared: npt.NDArray[np.float64] = (difference**2).sum(-1)
        return squared

    return float(np.mean(distances(found) <= distances(truth).max(axis=1, keepdims=True)))


def package(vectors: Vectors, queries: Vectors, truth: Ids, options: argparse.Namespace) -> tuple[Graph, int]:
    """Return the package's graph, and the ef that it needs."""
    import hnswlib

    graph = hnswlib.Index(space="l2", dim=vectors.shape[1])
    graph.init_index(max_elements=len(vectors), M=options.links, ef_construction=options.ef_construction)
    graph.set_num_threads(torch.get_num_threads())
    started = time.perf_counter()
    graph.add_items(vectors, np.arange(len(vectors)))
    build = time.perf_counter() - started
    ef = 64
    while True:
        graph.set_ef(ef)
        found = recall(graph.knn_query(queries, K)[0].astype(np.int64), truth, vectors, queries)
        if found >= options.recall or ef >= MOST_EF:
            break
        ef *= 2
    return Graph(build, len(queries) / best_seconds(lambda: graph.knn_query(queries, K)), found), ef


def usearch_graph(vectors: Vectors, queries: Vectors, truth: Ids, options: argparse.Namespace) -> Graph | None:
    """Return the graph of usearch, where that package is installed."""
    try:
        usearch: Any = importlib.import_module("usearch.index")
    except ImportError:
        return None
    threads = torch.get_num_threads()
    settings = {"connectivity": options.links, "expansion_add": options.ef_construction}
    graph = usearch.Index(ndim=vectors.shape[1], metric="l2sq", dtype="f32", **settings)
    started = time.perf_counter()
    graph.add(np.arange(len(vectors)), vectors, threads=threads)
    build = time.perf_counter() - started
    ef = 64
    while True:
        graph.expansion_search = ef
        keys = graph.search(queries, K, threads=threads).keys.astype(np.int64)
        found = recall(keys, truth, vectors, queries)
        if found >= options.recall or ef >= MOST_EF:
            break
        ef *= 2
    return Graph(build, len(queries) / best_seconds(lambda: graph.search(queries, K, threads=threads)), found)


def measure(vectors: Vectors, options: argparse.Namespace) -> dict[str, Any]:
    asking = np.zeros(len(vectors), dtype=np.bool_)
    asking[np.random.default_rng(4).permutation(len(vectors))[:QUERIES]] = True
    vectors, queries = vectors[~asking], vectors[asking]
    truth = nearest(vectors, queries)
    result: dict[str, Any] = {"vectors": len(vectors), "dimension": vectors.shape[1]}
    ef = options.ef
    if ef is None:
        anchor, ef = package(vectors, queries, truth, options)
        result["hnswlib"] = dataclasses.asdict(anchor)
        if other := usearch_graph(vectors, queries, truth, options):
            result["usearch"] = dataclasses.asdict(other)
    result["ef"] = ef

    graph = HnswIndex(
        vectors.shape[1], "l2", links=options.links, ef_construction=options.ef_construction, ef=ef, exact_below=10_000
    )
    started = time.perf_counter()
    graph.add(np.arange(len(vectors)), vectors)
    build = time.perf_counter() - started

    def asked(allowed: Mask | None, truth: Ids) -> Graph:
        seconds = best_seconds(lambda: graph.search(queries, K, allowed))
        found = graph.search(queries, K, allowed).ids
        return Graph(build, len(queries) / seconds, recall(found, truth, vectors, queries))

    result["everlong"] = dataclasses.asdict(asked(None, truth))
    for share in (0.5, 0.1, 0.01):
        allowed = np.random.default_rng(2).random(len(vectors)) < share
        result[f"allowed {share:.0%}"] = dataclasses.asdict(asked(allowed, nearest(vectors, queries, allowed)))
    gone = np.random.default_rng(3).permutation(len(vectors))[: len(vectors) // 2]
    graph.remove(gone)
    left = np.ones(len(vectors), dtype=np.bool_)
    left[gone] = False
    result["half gone"] = dataclasses.asdict(asked(None, nearest(vectors, queries, left)))
    return result


def print_report(report: dict[str, Any]) -> None:
    row = report["result"]
    print(f"{report['cpu']}, {report['threads']} threads; {report['of']}")
    print(
        f"{row['vectors']:,} vectors of {row['dimension']}, M {report['links']}, ef_construction "
        f"{report['ef_construction']}, ef {row['ef']}\n"
    )
    print(f"{'':14} {'build':>9} {'queries/s':>10} {'recall@' + str(K):>9}")
    for name in (*GRAPHS, "allowed 50%", "allowed 10%", "allowed 1%", "half gone"):
        if name not in row:
            continue
        one = row[name]
        built = f"{one['build']:.1f} s" if name in GRAPHS else ""
        print(f"{name:14} {built:>9} {one['qps']:10,.0f} {one['recall']:9.4f}")
    ours = row["everlong"]
    for name in GRAPHS[:-1]:
        if theirs := row.get(name):
            build, search = theirs["build"] / ours["build"], ours["qps"] / theirs["qps"]
            print(f"everlong's speed over that of {name}: build {build:.2f}, search {search:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--memory", type=pathlib.Path, help="memory folder whose keys to use instead of random numbers")
    parser.add_argument("--links", type=int, default=16)
    parser.add_argument("--ef-construction", type=int, default=200)
    parser.add_argument("--recall", type=float, default=0.99, help=f"recall of the {K} nearest that decides ef")
    parser.add_argument("--ef", type=int, help="ef to use, instead of one that the package needs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.vectors + QUERIES
    vectors = keys_of(options.memory, wanted) if options.memory else random_vectors(wanted)
    vectors = vectors[np.random.default_rng(4).permutation(wanted)]
    report = {
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "of": f"keys of {options.memory.name}" if options.memory else "random numbers",
        "links": options.links,
        "ef_construction": options.ef_construction,
        "result": measure(vectors, options),
    }
    print(json.dumps(report, indent=2)) if options.json else print_report(report)


if __name__ == "__main__":
    main()
