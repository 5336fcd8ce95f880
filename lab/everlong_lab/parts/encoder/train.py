"""Train the encoder: low-rank maps in MiniLM and its heads, by late interaction on questions and passages.

The loss is InfoNCE over a batch and its wrong passages (van den Oord et al., 2018), and half as much the other way
round. MiniLM's own weights stay as they are. No served model is needed: the encoder is the same for all of them.

At the end a linear map is fitted, by ridge regression, from the means of a sentence's trained states to those of
MiniLM's own, which were learned from far more paraphrases than there are here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import PackPart
from everlong.models.rng import isolated_rng
from everlong.parts.encoder.model import (
    ENCODER,
    EncoderHeads,
    EncoderSettings,
    WordPieces,
    encoder_pack,
    encoder_part,
    learned_of,
    load_minilm,
    new_maps,
    states_of,
)
from everlong.parts.late_interaction import info_nce
from everlong_lab.corpora.pairs import SETS, Split, load_pairs
from everlong_lab.data.books import all_books
from everlong_lab.parts.encoder.lessons import Batch, Corpus, Lessons, Words, right_places
from everlong_lab.training.loop import LoopSettings, Losses, learn, unwrapped
from everlong_lab.training.run import Run

_BACK = 0.5  # weight of the loss of passages that look for their questions
_LARGEST_SCALE = 100.0  # of cosines
_SENTENCES_AT_ONCE, _QUESTIONS_AT_ONCE = 128, 64
_SENTENCES = 20_000  # of what is trained on and of foreign text: the map of sentences is fitted to them
_RIDGE = 0.01  # of the mean eigenvalue
_BOOK = slice(50_000, 130_000)  # characters of each book that serve as foreign text


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the encoder, by which a memory of any model is searched by meaning, on questions and their passages."""

    # Pairs of your own, beside the shipped sets: lines of JSON, {"question": "", "passage": ""}.
    data: tuple[pathlib.Path, ...] = ()
    # Books whose text stands around passages and whose pages are wrong ones: a folder of .txt files, or a .tar.xz of
    # them. Without it the shipped ones. A figure among pages of a book that is learned from says nothing.
    corpus: pathlib.Path | None = None
    books: int = 60  # most books to take, the last ones: measurements take the first
    rank: int = 64  # rank of the maps
    further: bool = False  # go on from the encoder that is there, with its rank, in place of MiniLM's own weights
    steps: int = 1100  # most training steps
    learning_rate: float = 1e-3
    warmup: int = 50  # steps until the learning rate is reached
    check_every: int = 150  # steps between checks; what finds most held-out questions, with words, is kept


def own_model() -> Any:
    """Return MiniLM, which the encoder is trained in, in place of a served model. EncoderNotFoundError without it."""
    return load_minilm()


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train encoder`."""
    settings = EncoderSettings(rank=training.rank)
    corpus = _corpus(training, WordPieces())
    trainer = EncoderTrainer(run.model, corpus, settings, training)
    learned = learn(
        trainer.learner,
        trainer.lesson,
        trainer.held_out,
        training,
        lessons=1,
        better=operator.ge,
        moves=False,
        checkpoints=run.work / "checkpoint",
        progress=run.check,
    )
    explained = trainer.fit_sentences(training.seed)
    figures: dict[str, Any] = {split: trainer.found(split) for split in ("fit", "test")} | {"sentences": explained}
    made = run.made(training, learned, figures, data=corpus.pairs.origins(), books=len(corpus.foreign))
    return {ENCODER: encoder_part(trainer.learner.maps, trainer.learner.heads, trainer.settings, made)}


def _corpus(training: Training, pieces: WordPieces) -> Corpus:
    pairs = load_pairs(SETS, training.data)
    books = [book.text[_BOOK] for book in all_books(training.corpus)[-training.books :] if len(book.text) > _BOOK.start]
    return Corpus(
        pairs,
        [pieces.ids_of(text.pieces) for text in pairs.texts],
        pieces.ids_of([question.words for question in pairs.questions]),
        pieces.ids_of([question.answers[0] if question.answers else "" for question in pairs.questions]),
        pieces.ids_of(books),
    )


class Learner(torch.nn.Module):
    """What is trained: the maps, the heads, and the scale of their cosines."""

    def __init__(self, maps: LowRankMaps, heads: EncoderHeads) -> None:
        super().__init__()
        self.maps, self.heads = maps, heads
        self.scale = torch.nn.Parameter(torch.tensor(20.0).log())  # as a logarithm


class EncoderTrainer:
    """One training over MiniLM `bert`, which is not changed."""

    def __init__(self, bert: Any, corpus: Corpus, settings: EncoderSettings, training: Training) -> None:
        self._bert, self._corpus, self.settings = bert, corpus, settings
        with isolated_rng():
            if training.further:
                maps, heads, self.settings = learned_of(encoder_pack().parts[ENCODER], bert.config.hidden_size)
            else:
                maps = new_maps(bert, settings, seed=training.seed)
                heads = EncoderHeads(bert.config.hidden_size, settings, seed=training.seed)
            self.learner = Learner(maps.requires_grad_(), heads)
        self._attached = AttachedMaps(self.learner.maps, bert)
        self._pieces = WordPieces()
        self._lessons = Lessons(corpus)

    # --- a step

    def lesson(self, model: Any, step: int, random: np.random.Generator, losses: Losses) -> torch.Tensor:
        batch = self._lessons.drawn(random)
        scores = self.scores(batch) * unwrapped(model).scale.exp().clamp(max=_LARGEST_SCALE)
        right = torch.from_numpy(batch.right)
        loss = info_nce(scores, right) + _BACK * info_nce(scores.T[right.any(dim=0)], right.T[right.any(dim=0)])
        return losses.record("loss", loss)

    def scores(self, batch: Batch) -> torch.Tensor:
        """Return [questions, passages]: the sum over a question's pieces of each one's largest product in a passage."""
        vectors, there = _padded(self._written(batch.passages))
        asked, _ = _padded(self._question_vectors(batch.questions))
        return torch.cat([_late(some, vectors, there) for some in torch.split(asked, 32)])

    def _written(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        """Return the vectors [groups, dimension] of each passage, whose sentences are encoded by themselves."""
        cut = [
            (at, row[begin:end])
            for at, row in enumerate(rows)
            for begin, end in self._pieces.sentences(row, self.settings.longest)
        ]

        def read(some: list[int]) -> list[torch.Tensor]:
            states, _ = self._states([cut[at][1] for at in some])
            return [states[row, : len(cut[at][1])] for row, at in enumerate(some)]

        states: list[list[torch.Tensor]] = [[] for _ in rows]
        for (at, _), found in zip(cut, _by_length([row for _, row in cut], _SENTENCES_AT_ONCE, read), strict=True):
            states[at].append(found)
        group = self.settings.group_tokens
        return [self.learner.heads.written(_means(torch.cat(of_row), group)) for of_row in states]

    def _question_vectors(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        """Return the weighted rows [pieces, dimension] of each question."""

        def read(some: list[int]) -> list[torch.Tensor]:
            states, there = self._states([rows[at] for at in some])
            found = self.learner.heads.query_vectors(states, there)
            return [found[row, : len(rows[at])] for row, at in enumerate(some)]

        return _by_length(rows, _QUESTIONS_AT_ONCE, read)

    def _states(self, rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        with self._attached.active(), _in_16_bits():
            return states_of(self._bert, rows, self._pieces)

    # --- behind all steps

    @torch.no_grad()
    def fit_sentences(self, seed: int) -> dict[str, float]:
        """Fit the map of sentences. Return to how many, and the share of others' variance that it explains."""
        pairs, passages = self._corpus.pairs, self._corpus.passages
        trained = [
            row for text, rows in zip(pairs.texts, passages, strict=True) if text.split == "train" for row in rows
        ]
        every = [
            row[begin:end]
            for row in (*trained, *self._corpus.foreign)
            for begin, end in self._pieces.sentences(row, self.settings.longest)
        ]
        chosen = np.random.default_rng(seed).permutation(len(every))[:_SENTENCES]
        rows = [every[at] for at in chosen]
        with self._attached.active():
            trained_means = self._means_of(rows)
        own_means = self._means_of(rows)
        held_out = max(2, len(rows) // 10)
        x, y = trained_means[held_out:], own_means[held_out:]
        gram = x.T @ x
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
        self.learner.heads.sentence.copy_(torch.linalg.solve(gram + ridge, x.T @ y))
        expected = own_means[:held_out]
        missed = (trained_means[:held_out] @ self.learner.heads.sentence - expected).square().sum()
        spread = (expected - expected.mean(dim=0)).square().sum()
        return {"fitted to": len(x), "explained": float(1 - missed / spread)}

    def _means_of(self, rows: Sequence[list[int]]) -> torch.Tensor:
        """Return the means [rows, hidden size] of each row's states, of unit length."""

        def means(some: list[int]) -> list[torch.Tensor]:
            with _in_16_bits():
                states, there = states_of(self._bert, [rows[at] for at in some], self._pieces)
            found = (states * there[..., None]).sum(dim=1) / there.sum(dim=1, keepdim=True)
            return list(torch.nn.functional.normalize(found, dim=-1))

        return torch.stack(_by_length(rows, _SENTENCES_AT_ONCE, means))

    # --- between steps

    def held_out(self, model: Any) -> dict[str, float]:
        found = self.found("fit")
        return {"held out": found["with words @1"] + found["with words @4"], **found}

    @torch.no_grad()
    def found(self, split: Split) -> dict[str, float]:
        """Return the shares of a split's questions whose right section is first, and among four of all its sections.

        By the encoder alone, by words alone, and by both: the sum of the two, each by its own mean and spread.
        """
        pairs, passages = self._corpus.pairs, self._corpus.passages
        asked = pairs.of_split(split)
        texts = sorted({pairs.questions[at].text for at in asked})
        places = [(text, piece) for text in texts for piece in range(len(passages[text]))]
        rows = [passages[text][piece] for text, piece in places]
        right = right_places(pairs, asked, places)
        questions = [self._corpus.questions[at] for at in asked]
        own = self.scores(Batch(questions, rows, right))
        words = torch.from_numpy(Words(rows).scores(questions))
        implicit = np.asarray([pairs.questions[at].kind == "implicit" for at in asked])
        shares: dict[str, float] = {}
        for name, scores in (("", own), ("words ", words), ("with words ", _even(own) + _even(words))):
            best = torch.topk(scores, min(4, len(places))).indices.numpy()
            hit = np.take_along_axis(right, best, axis=1)
            shares |= {f"{name}@1": float(hit[:, 0].mean()), f"{name}@4": float(hit.any(axis=1).mean())}
            if implicit.any():
                shares[f"implicit {name}@1"] = float(hit[implicit, 0].mean())
                shares[f"implicit {name}@4"] = float(hit[implicit].any(axis=1).mean())
        return shares


def _by_length(
    rows: Sequence[list[int]], at_once: int, make: Callable[[list[int]], list[torch.Tensor]]
) -> list[torch.Tensor]:
    """Return what `make` makes of the rows, in their order. It gets the numbers of rows of similar length."""
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    found: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), at_once):
        some = order[first : first + at_once]
        found.update(zip(some, make(some), strict=True))
    return [found[at] for at in range(len(rows))]


def _means(states: torch.Tensor, group: int) -> torch.Tensor:
    """Return means [groups, width] of runs of `group` rows, the last one shorter."""
    return torch.stack([run.mean(dim=0) for run in torch.split(states, group)])


def _padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows as one tensor [rows, longest, dimension], with zeros, and which are there."""
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1])[None] < lengths[:, None]


def _late(queries: torch.Tensor, vectors: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return scores [questions, passages] of rows [questions, T, D] and vectors [passages, G, D]."""
    products = torch.einsum("btd,pgd->bptg", queries, vectors).masked_fill(~there[None, :, None], -1e4)
    padding = queries.abs().sum(dim=-1) == 0
    return products.amax(dim=-1).masked_fill(padding[:, None], 0).sum(dim=-1)


def _even(scores: torch.Tensor) -> torch.Tensor:
    """Return each row with mean 0 and spread 1."""
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True).clamp(min=1e-9)


@contextlib.contextmanager
def _in_16_bits() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield
