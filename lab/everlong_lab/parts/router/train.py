"""Train the router of an index of lists: it maps questions to the lists that hold their nearest vectors.

The loss is cross-entropy over the lists, against those that hold a question's best vectors by a wide search (Vecchiato
et al. 2024, arXiv 2404.11731). The router begins at the centroids, so an untrained one is the search by nearest
centroid. The best router on held-out questions is kept, which may be that one.
"""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.memory import Memory
from everlong.models.pack import PackPart
from everlong.retrieval.index import NeuralInvertedIndex, Router
from everlong.text.vectors import Encoder, encoder_name, vectors_of
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.run import Run, plain

_HELD_OUT = 0.1


OF_A_MEMORY = True  # trained for a memory, without a model, and kept there


@dataclasses.dataclass(frozen=True)
class RouterTraining(LoopSettings):
    nearest: int = 10  # number of a question's best vectors whose lists are learned
    looked_through: int = 64  # lists to search for these vectors; all of them would take long and add little
    most: int = 20_000  # most questions to use; drawn at random where there are more
    steps: int = 600  # most training steps
    batch: int = 256  # questions in each step
    learning_rate: float = 1e-3
    warmup: int = 1  # steps until the learning rate is reached
    falling: bool = False  # whether the learning rate falls to a fiftieth, as a cosine does
    weight_decay: float = 0.0
    clip: float | None = None  # most that the norm of a step's gradient may be
    sharpness: float = 16.0  # first value of the factor on scores in the softmax; it is learned
    probes: int = 8  # lists to search for what is nearest to a held-out question
    check_every: int = 50  # steps between checks; what finds most on the held-out questions is kept


@dataclasses.dataclass(frozen=True)
class Training(RouterTraining):
    """Train the router of a memory's learned lists: which of them hold what is nearest to a question."""

    # A memory whose pages are searched by search.embedding_index="dnii".
    memory: pathlib.Path = dataclasses.field(kw_only=True)
    # Questions of your own, one a line; by default those of the shipped sets.
    questions: pathlib.Path | None = None
    encoder: str = "minilm"  # encoder of the memory's pages


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train router`; return how it was done. The router itself is kept with the memory."""
    from everlong.retrieval.embedding import load_encoder

    if training.questions is None:
        pairs = load_pairs()
        words = [pairs.questions[at].words for at in pairs.of_split("train")]
    else:
        words = [line for line in training.questions.read_text("utf-8").splitlines() if line.strip()]
    router, learned = train_router_of(
        training.memory, load_encoder(training.encoder), words, training=training, progress=run.check
    )
    found = learned.held_out
    by = f"what is nearest to questions held out, in the first {training.probes} of {len(router.lists):,} lists"
    made = {
        "data": f"{len(words):,} questions",
        "questions": len(words),
        "lists": len(router.lists),
        "training": plain(training),
        "minutes": round(learned.minutes, 2),
        "figures": {by: {"by nearest centroid": found[0], "trained": max(found)}},
        "log": list(learned.log),
    }
    return {"router": PackPart({}, {}, made)}


def train_router(
    index: NeuralInvertedIndex,
    questions: npt.NDArray[np.float32],
    training: RouterTraining,
    *,
    progress: MetricsFn | None = None,
) -> tuple[Router, TrainingResult]:
    """Train the router of an index with cosines on questions [n, dimension]. The index stays as it is.

    `Learned.held_out` is the share of held-out questions' nearest vectors that the first `probes` lists hold, first
    with the index's own router. One seed, machine and number of threads give the same bits. Raises ValueError for fewer
    than 20 questions, or for an index that is too small to have lists worth choosing from.
    """
    if len(questions) < 20:
        raise ValueError(f"{len(questions)} questions are too few to train on and to hold some out")
    begun = index.router
    if len(begun.lists) <= training.probes:
        raise ValueError(f"the index has {len(begun.lists)} lists: with so few there is nothing to learn")
    if len(questions) > training.most:
        drawn = np.random.default_rng((training.seed, 2)).permutation(len(questions))[: training.most]
        questions = questions[drawn]
    asked = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(questions, np.float32)), dim=-1)
    nearest = index.search(questions, training.nearest, probes=training.looked_through).ids
    wanted = _shares(index.lists_of(nearest.reshape(-1)).reshape(nearest.shape), begun.lists)
    order = np.random.default_rng(training.seed).permutation(len(asked))
    held = order[: max(1, int(len(order) * _HELD_OUT))]
    train = order[len(held) :]

    learning = _Lists(begun, training.sharpness)
    random = np.random.default_rng((training.seed, 1))

    def lesson(_: Any, step: int, __: np.random.Generator, losses: Losses) -> torch.Tensor:
        at = train[random.integers(len(train), size=training.batch)]
        scores = learning(asked[at]) * learning.sharpness.exp()
        return losses.record("loss", -(wanted[at] * torch.log_softmax(scores, dim=-1)).sum(dim=-1).mean())

    def found(_: Any) -> float:
        first = learning(asked[held]).topk(training.probes, dim=-1).indices
        return float(wanted[held].gather(1, first).sum(dim=-1).mean())

    learned = learn(learning, lesson, found, training, lessons=1, better=operator.gt, moves=False, progress=progress)
    vectors, biases = (own.detach().numpy() for own in (learning.vectors, learning.biases))
    return Router(begun.lists, vectors, biases), learned


class _Lists(torch.nn.Module):
    """Scores of questions [n, dimension] by each list."""

    def __init__(self, begun: Router, sharpness: float) -> None:
        super().__init__()
        self.vectors = torch.nn.Parameter(torch.from_numpy(begun.vectors).clone())
        self.biases = torch.nn.Parameter(torch.from_numpy(begun.biases).clone())
        self.sharpness = torch.nn.Parameter(torch.tensor(sharpness).log())

    def forward(self, queries: torch.Tensor) -> torch.Tensor:
        return queries @ self.vectors.T + self.biases


def _shares(lists: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return [n, lists]: which share of a question's nearest vectors every list holds, from the list [n, k] of each
    vector.
    """
    numbers = np.searchsorted(known, lists)
    shares = np.zeros((len(lists), len(known)), dtype=np.float32)
    np.add.at(shares, (np.arange(len(lists))[:, None], numbers), 1 / lists.shape[1])
    return torch.from_numpy(shares)


def train_router_of(
    memory: str | pathlib.Path,
    encoder: Encoder,
    questions: Sequence[str],
    *,
    training: RouterTraining | None = None,
    progress: MetricsFn | None = None,
) -> tuple[Router, TrainingResult]:
    """Train the router of a memory whose pages are searched by learned lists, and save it with the memory's index.

    Such a memory has `search.embedding_index="dnii"`. Raises ValueError for any other.
    """
    with Memory.open(memory, read_only=True) as opened:
        _lists_of(opened, encoder)  # fails before anything is computed or changed
    vectors = vectors_of(encoder, list(questions))
    with Memory.open(memory) as opened:
        lists = _lists_of(opened, encoder)
        router, learned = train_router(lists, vectors, training or RouterTraining(), progress=progress)
        opened.core.index.set_page_router(router.lists, router.vectors, router.biases)
    return router, learned


def _lists_of(memory: Memory, encoder: Encoder) -> NeuralInvertedIndex:
    memory.core.index.set_page_vectors(encoder_name(encoder), vectors_of(encoder, [""]).shape[1], "dnii")
    lists = memory.core.index.page_lists()
    if lists is None or lists.size == 0:
        raise ValueError(
            f"{memory.path}: its pages have no vectors of this encoder in learned lists; open it once with "
            "search.index=..,embedding and search.embedding_index=dnii"
        )
    return NeuralInvertedIndex.of(lists)
