"""NeuralInvertedIndex beside hnswlib (extra `bench`) and exact search, in one run: recall@10 against queries a second.

    python benchmarks/dnii.py [--memory FOLDER | --text BOOKS --work FOLDER] [--vectors 100000] [--questions 2000]

With --text, the vectors are what page vectors of a memory are: passages of 32 tokens by the encoder `minilm`
(benchmarks/passage_vectors.py). --text is a folder of books or a .tar.xz of them, and may be given several times. The
questions of everlong/data/qa are the queries. The texts that are asked about come first. --work keeps the vectors, and
a run that was ended goes on.

With --memory, they are the vectors of meaning that a memory's blocks have (128 numbers for every 4 tokens). The queries
are the tokens of real questions by the same towers. In both cases the questions about the test stories of FairytaleQA
are measured, and other questions train the router.

With neither, they are clustered random vectors of 384 numbers, with queries of the same kind.

One thread asks, one query at a time. `centroid` probes the lists whose centroids are nearest; `learned` is trained on
other questions (parts/router).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong
from everlong.models.hardware import processor
from everlong.retrieval.index import FlatIndex, NeuralInvertedIndex, VectorIndex
from everlong_lab.parts.router.train import RouterTraining, train_router

K, MEASURED = 10, 400
PROBES, EFS = (1, 2, 4, 8, 16, 32, 64), (16, 32, 64, 128, 256)
Floats = npt.NDArray[np.float32]
Ones = tuple[Floats, Floats, Floats]


def random_ones(count: int) -> Ones:
    """Return vectors, queries to train on, and queries to measure with."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((max(8, count // 50), 384), dtype=np.float32)

    def around(number: int) -> Floats:
        of = topics[rng.integers(len(topics), size=number)]
        return of + 0.9 * rng.standard_normal(of.shape, dtype=np.float32)

    return around(count), around(20_000), around(MEASURED)


def real_ones(folder: pathlib.Path, most: int) -> Ones:
    """Return the same from a memory's vectors and from questions, token by token."""
    from everlong.models import load
    from everlong.models.early_exit import early_exit_states
    from everlong.models.pack import pack_for
    from everlong.parts.towers.runtime import TowersRuntime, query_vectors
    from everlong_lab.corpora.pairs import load_pairs

    model, tokenizer = load("smollm2")
    pack = pack_for(model)
    assert pack is not None
    meaning = TowersRuntime(pack, 64)
    with everlong.Memory.open(folder, read_only=True) as memory:
        name = f"meaning.{meaning.id}"
        blocks = [memory.core.blocks.tensors(block.id)[name] for block in memory.core.blocks.infos()]
    vectors = np.concatenate([block.reshape(-1, block.shape[-1]) for block in blocks]).astype(np.float32)
    pairs = load_pairs()

    def tokens_of(questions: list[int]) -> Floats:
        rows = []
        for at in questions:
            ids = torch.tensor(tokenizer(pairs.questions[at].words)["input_ids"], dtype=torch.int64)
            rows.append(query_vectors(meaning.towers, early_exit_states(model, ids, meaning.needs.question_layers)))
        return np.concatenate(rows)

    rng = np.random.default_rng(0)
    train = rng.permutation(pairs.of_split("train"))[:most].tolist()
    asked = tokens_of(rng.permutation(pairs.of_split("test"))[: MEASURED // 4].tolist())
    return vectors, tokens_of(train), asked[rng.permutation(len(asked))[:MEASURED]]


def passages(books: list[pathlib.Path], work: pathlib.Path, most: int, minutes: float, train: int) -> Ones:
    """Return the same from passages of texts and books, and from the questions that are asked about these texts."""
    from passage_vectors import Passages

    from everlong_lab.corpora.pairs import load_pairs

    pairs = load_pairs()
    made = Passages(work, pairs, books)
    rng = np.random.default_rng(0)
    trained = rng.permutation(pairs.of_split("train"))[:train].tolist()
    asked = rng.permutation(pairs.of_split("test"))[:MEASURED].tolist()
    questions = made.questions([*trained, *asked])
    made.encode(most, minutes)
    return made.vectors(most), questions[: len(trained)], questions[len(trained) :]


def measured(index: VectorIndex, queries: Floats, truth: npt.NDArray[np.int64], **how: Any) -> tuple[float, float]:
    """Return the share of the K nearest, and queries a second, one at a time; the best of three rounds."""
    found = np.concatenate([index.search(query[None], K, **how).ids for query in queries])
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        for query in queries:
            index.search(query[None], K, **how)
        seconds.append(time.perf_counter() - started)
    return share_found(found, truth), len(queries) / min(seconds)


def built(index: VectorIndex, vectors: Floats) -> float:
    started = time.perf_counter()
    index.add(np.arange(len(vectors)), vectors)
    return time.perf_counter() - started


def graph_of(vectors: Floats, queries: Floats, truth: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Measure hnswlib's own package, M 16, ef_construction 200."""
    import hnswlib

    graph = hnswlib.Index(space="cosine", dim=vectors.shape[1])
    graph.init_index(max_elements=len(vectors), M=16, ef_construction=200)
    graph.set_num_threads(1)
    started = time.perf_counter()
    graph.add_items(vectors, np.arange(len(vectors)))
    build = time.perf_counter() - started
    curve: list[list[float]] = []
    for ef in EFS:
        graph.set_ef(ef)
        found = np.concatenate([graph.knn_query(query[None], K)[0] for query in queries]).astype(np.int64)
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            for query in queries:
                graph.knn_query(query[None], K)
            seconds.append(time.perf_counter() - started)
        curve.append([ef, share_found(found, truth), len(queries) / min(seconds)])
    return {"build": build, "bytes": graph.index_file_size() / len(vectors), "curve": curve}


def share_found(found: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> float:
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


def measure(vectors: Floats, train: Floats, queries: Floats) -> dict[str, Any]:
    dimension = vectors.shape[1]
    flat = FlatIndex(dimension)
    report: dict[str, Any] = {"vectors": len(vectors), "dimension": dimension, "trained on": len(train)}
    report["flat"] = {"build": built(flat, vectors), "bytes": flat.nbytes / len(vectors)}
    truth = flat.search(queries, K).ids
    report["flat"]["curve"] = [["", *measured(flat, queries, truth)]]
    del flat

    lists = NeuralInvertedIndex(dimension)
    build = built(lists, vectors)
    row = {"build": build, "bytes": lists.nbytes / len(vectors), "lists": len(lists.lists.ids)}
    report["centroid"] = {**row, "curve": [[p, *measured(lists, queries, truth, probes=p)] for p in PROBES]}
    lists.router, learned = train_router(lists, train, RouterTraining())
    report["learned"] = {
        "minutes": learned.minutes,
        "log": list(learned.log),
        "curve": [[p, *measured(lists, queries, truth, probes=p)] for p in PROBES],
    }
    del lists

    report["hnsw"] = graph_of(vectors, queries, truth)
    return report


def print_report(report: dict[str, Any]) -> None:
    row = report["result"]
    print(f"{report['cpu']}, one thread; {report['of']}: {row['vectors']:,} vectors of {row['dimension']}\n")
    print(f"{'':10} {'probes, ef':>10} {'recall@10':>10} {'queries/s':>10} {'of flat':>8}")
    anchor = row["flat"]["curve"][0][2]
    for name in ("flat", "centroid", "learned", "hnsw"):
        for setting, recall, qps in row[name]["curve"]:
            print(f"{name:10} {setting:>10} {recall:10.4f} {qps:10,.0f} {qps / anchor:8.2f}")
    for name in ("flat", "centroid", "hnsw"):
        print(f"{name}: built in {row[name]['build']:.1f} s, {row[name]['bytes']:,.0f} bytes a vector")
    print(f"{row['centroid']['lists']:,} lists; router trained in {row['learned']['minutes']:.1f} minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=pathlib.Path, help="memory folder whose vectors of meaning to use")
    parser.add_argument(
        "--text", type=pathlib.Path, action="append", default=[], help="folder of books, or a .tar.xz of them"
    )
    parser.add_argument("--work", type=pathlib.Path, help="with --text: folder to keep the vectors in")
    parser.add_argument("--minutes", type=float, default=1e9, help="with --text: most minutes to encode")
    parser.add_argument("--questions", type=int, default=2_000, help="number of questions to train the router on")
    parser.add_argument("--vectors", type=int, default=100_000, help="without --memory: most vectors")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.text and options.work is None:
        parser.error("--text wants --work, a folder for its vectors")
    if options.memory:
        of, ones = f"vectors of meaning of {options.memory.name}", real_ones(options.memory, options.questions)
    elif options.text:
        of = "passages of texts and books"
        ones = passages(options.text, options.work, options.vectors, options.minutes, options.questions)
    else:
        of, ones = "clustered random numbers", random_ones(options.vectors)
    report = {
        "cpu": processor(),
        "of": of,
        "result": measure(*ones),
    }
    print(json.dumps(report, indent=2)) if options.json else print_report(report)


if __name__ == "__main__":
    main()
