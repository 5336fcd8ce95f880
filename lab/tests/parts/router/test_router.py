"""The router of learned lists: what it learns, that it never ends worse, and its way into a memory."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

import everlong
from everlong.cli.app import app
from everlong.retrieval import embedding
from everlong.retrieval.index import FlatIndex, NeuralInvertedIndex
from everlong_lab.parts.router.train import RouterTraining, train_router, train_router_of
from everlong_lab.training.loop import TrainingResult
from support import byte_tokenizer, tiny_model
from support.encoder import CountingEncoder
from support.settings import EMBEDDING

Floats = npt.NDArray[np.float32]
TRAINING = RouterTraining(steps=150, batch=64, probes=2, check_every=25, learning_rate=3e-3, nearest=5)


def turned(count: int, seed: int) -> tuple[Floats, Floats]:
    """Vectors around topics, and questions that stand elsewhere: a fixed turn away from what is nearest to them."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((30, 16))
    turn = np.linalg.qr(np.eye(16) + 0.5 * rng.standard_normal((16, 16)))[0]
    rng = np.random.default_rng(seed)
    vectors = topics[rng.integers(30, size=count)] + 0.6 * rng.standard_normal((count, 16))
    questions = (topics[rng.integers(30, size=4_000)] + 0.6 * rng.standard_normal((4_000, 16))) @ turn
    return vectors.astype(np.float32), questions.astype(np.float32)


def lists_over(vectors: Floats) -> NeuralInvertedIndex:
    index = NeuralInvertedIndex(vectors.shape[1], list_vectors=24, probes=2, exact_below=0)
    index.add(np.arange(len(vectors)), vectors)
    return index


def recall(index: NeuralInvertedIndex, vectors: Floats, questions: Floats) -> float:
    exact = FlatIndex(vectors.shape[1])
    exact.add(np.arange(len(vectors)), vectors)
    best, found = exact.search(questions, 5).ids, index.search(questions, 5).ids
    return float(np.mean([len(set(a) & set(b)) / 5 for a, b in zip(best, found, strict=True)]))


def untimed(learned: TrainingResult) -> list[dict[str, float]]:
    return [{name: found for name, found in entry.items() if name != "minutes"} for entry in learned.log]


def test_it_finds_more_of_the_nearest_than_nearest_centroids() -> None:
    vectors, questions = turned(3_000, seed=1)
    index = lists_over(vectors)
    unseen = turned(3_000, seed=2)[1]
    before = recall(index, vectors, unseen)
    router, learned = train_router(index, questions, TRAINING)
    assert recall(index, vectors, unseen) == before, "the index stays as it is until it is told"
    assert max(learned.held_out) > learned.held_out[0]
    index.router = router
    assert recall(index, vectors, unseen) > before
    again, relearned = train_router(lists_over(vectors), questions, TRAINING)
    assert untimed(relearned) == untimed(learned)
    assert np.array_equal(again.vectors, router.vectors)


def test_what_helps_nobody_is_not_kept() -> None:
    vectors, questions = turned(2_000, seed=3)
    index = lists_over(vectors)
    wild = dataclasses.replace(TRAINING, learning_rate=50.0, steps=20, check_every=5)
    router, learned = train_router(index, questions, wild)
    assert max(learned.held_out[1:]) <= learned.held_out[0]
    assert np.array_equal(router.vectors, index.router.vectors)


def test_too_little_is_refused() -> None:
    vectors, questions = turned(2_000, seed=3)
    with pytest.raises(ValueError, match="19 questions are too few"):
        train_router(lists_over(vectors), questions[:19], TRAINING)
    with pytest.raises(ValueError, match="nothing to learn"):
        train_router(lists_over(vectors[:20]), questions, TRAINING)


@pytest.mark.slow
def test_a_memory_s_lists_learn_from_a_command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"word{n % 97} thing{n % 31} place{n % 13}" for n in range(900)]
    model = tiny_model(), byte_tokenizer()
    config = EMBEDDING.changed(search={"encoder": CountingEncoder(), "embedding_index": "dnii"})
    folder = tmp_path / "m.everlong"
    with everlong.MemoryModel(*model, folder, config) as mm:
        mm.read(". ".join(words))
        mm.searcher.settle()
        lists = mm.memory.core.index.page_lists()
        assert lists is not None
        assert lists.size > 400
    questions = tmp_path / "questions.txt"
    questions.write_text("\n".join(f"where is word{n % 97} of thing{n % 31}" for n in range(120)))
    monkeypatch.setattr(embedding, "load_encoder", lambda name: CountingEncoder())
    arguments = [
        "train",
        "router",
        str(folder),
        "--questions",
        str(questions),
        "--steps",
        "50",
        "--probes",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["questions"] == 120
    with everlong.MemoryModel(*model, folder, config) as mm:
        again = mm.memory.core.index.page_lists()
        assert again is not None
        ids, vectors, biases = again.router()
        if said["log"][-1]["held out"] > said["log"][0]["held out"]:
            assert not np.array_equal(vectors, again.lists()[1])
        assert len(ids) == said["lists"]
        # What is written into it is kept with the memory.
        mm.memory.core.index.set_page_router(ids, vectors, biases + 1)
    with everlong.Memory.open(folder, read_only=True) as memory:
        memory.core.index.set_page_vectors(embedding.encoder_name(CountingEncoder()), vectors.shape[1], "dnii")
        kept = memory.core.index.page_lists()
        assert kept is not None
        np.testing.assert_array_equal(kept.router()[2], biases + 1)

    flat = tmp_path / "flat.everlong"
    with everlong.MemoryModel(*model, flat, config.changed(search={"embedding_index": "flat"})) as mm:
        mm.read("Some words. " * 60)
    with pytest.raises(ValueError, match=r"search\.embedding_index=dnii"):
        train_router_of(flat, CountingEncoder(), ["a question"] * 30)
    with everlong.MemoryModel(*model, flat, config.changed(search={"embedding_index": "flat"})) as mm:
        assert mm.memory.core.index.pages_without_vectors() == [], "what it has is not lost by the refusal"
