"""Trains the router of an index of lists: from questions to the lists that hold what is nearest to them.

Cross-entropy over the lists against those that hold a question's best vectors, by a wide search (Vecchiato et al. 2024,
arXiv 2404.11731). It begins at the centroids, so that untrained it is the search by nearest centroid; what is best on
questions that were held out is kept, which may be just that.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from everlong.memory import Memory
from everlong.retrieval.index import NeuralInvertedIndex, Router
from everlong.text.vectors import Encoder, encoder_name, vectors_of

_HELD_OUT = 0.1


@dataclasses.dataclass(frozen=True)
class RouterTraining:
    nearest: int = 10  # best vectors of a question whose lists are learned
    looked_through: int = 64  # lists, for these: all of them would take long, and hold few more of the best
    most: int = 20_000  # questions, drawn where there are more
    steps: int = 600
    batch: int = 256  # questions
    learning_rate: float = 1e-3
    sharpness: float = 16.0  # what scores are multiplied by in the softmax, to begin with; learned
    probes: int = 8  # what is held out is measured at: the share of the nearest that so many lists hold
    check_every: int = 50
    seed: int = 0
    minutes: float | None = None  # no step begins later


@dataclasses.dataclass(frozen=True)
class TrainedRouter:
    router: Router
    steps: int
    minutes: float
    # At each check: the share of held-out questions' nearest vectors that the first `probes` lists hold; the first one
    # is that of the router it began from.
    log: tuple[dict[str, float], ...]


def train_router(
    index: NeuralInvertedIndex,
    questions: npt.NDArray[np.float32],
    training: RouterTraining,
    *,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedRouter:
    """Of an index with cosines, from questions [n, dimension]; the index stays as it is. The same bits for one seed,
    machine and number of threads. ValueError for fewer than 20 questions, or for an index that is too small to have
    lists worth choosing from.
    """
    if len(questions) < 20:
        raise ValueError(f"{len(questions)} questions are too few to train on and to hold some out")
    started = time.monotonic()
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

    vectors, biases = torch.from_numpy(begun.vectors).clone(), torch.from_numpy(begun.biases).clone()
    sharpness = torch.tensor(training.sharpness).log()
    for tensor in (vectors, biases, sharpness):
        tensor.requires_grad_()
    optimizer = torch.optim.AdamW([vectors, biases, sharpness], lr=training.learning_rate, weight_decay=0.0)

    def found() -> float:
        with torch.no_grad():
            first = (asked[held] @ vectors.T + biases).topk(training.probes, dim=-1).indices
            return float(wanted[held].gather(1, first).sum(dim=-1).mean())

    log = [{"step": 0.0, "found": found()}]
    best = copy.deepcopy((vectors.detach(), biases.detach()))
    random = np.random.default_rng((training.seed, 1))
    step, late = 0, False
    while step < training.steps and not late:
        at = train[random.integers(len(train), size=training.batch)]
        scores = (asked[at] @ vectors.T + biases) * sharpness.exp()
        loss = -(wanted[at] * torch.log_softmax(scores, dim=-1)).sum(dim=-1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        step += 1
        late = training.minutes is not None and (time.monotonic() - started) / 60 > training.minutes
        if step % training.check_every == 0 or step == training.steps or late:
            log.append({"step": float(step), "loss": float(loss.detach()), "found": found()})
            if log[-1]["found"] > max(entry["found"] for entry in log[:-1]):
                best = copy.deepcopy((vectors.detach(), biases.detach()))
            if progress is not None:
                progress(step, log[-1])
    router = Router(begun.lists, best[0].numpy(), best[1].numpy())
    return TrainedRouter(router, step, (time.monotonic() - started) / 60, tuple(log))


def _shares(lists: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> torch.Tensor:
    """[n, lists]: which share of a question's nearest [n, k], by the list each is in, every list holds."""
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
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedRouter:
    """Train the router of a memory whose pages are searched by learned lists (`search.embedding_index="dnii"`), and
    save it with the memory's index. ValueError for a memory that is not searched so.
    """
    with Memory.open(memory, read_only=True) as opened:
        _lists_of(opened, encoder)  # before anything is computed, or could be changed
    vectors = vectors_of(encoder, list(questions))
    with Memory.open(memory) as opened:
        trained = train_router(_lists_of(opened, encoder), vectors, training or RouterTraining(), progress=progress)
        router = trained.router
        opened.core.set_page_router(router.lists, router.vectors, router.biases)
    return trained


def _lists_of(memory: Memory, encoder: Encoder) -> NeuralInvertedIndex:
    memory.core.set_page_vectors(encoder_name(encoder), vectors_of(encoder, [""]).shape[1], "dnii")
    lists = memory.core.page_lists()
    if lists is None or lists.size == 0:
        raise ValueError(
            f"{memory.path}: its pages have no vectors of this encoder in learned lists; open it once with "
            "search.index=..,embedding and search.embedding_index=dnii"
        )
    return NeuralInvertedIndex.of(lists)
