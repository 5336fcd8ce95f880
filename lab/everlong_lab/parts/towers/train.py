"""Train the towers of late interaction on cached states.

The loss is InfoNCE in both directions over the batch and mined negatives (van den Oord et al., 2018). Where there is a
teacher, the Kullback-Leibler divergence to its similarities is added. The model stays frozen, and nothing of it is
computed here.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.models.pack import PackPart, pack_with
from everlong.models.rng import isolated_rng
from everlong.parts.late_interaction import info_nce
from everlong.parts.towers.model import TOWERS, LateTowers, TowerSettings
from everlong.text.vectors import Encoder, encoder_name
from everlong_lab.corpora.pairs import FOREIGN, SETS, Pairs, Split, load_pairs, with_stories
from everlong_lab.parts.towers.teacher import taught_vectors
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn, unwrapped
from everlong_lab.training.run import Run
from everlong_lab.training.states import States, as_floats, cached_states

BY_DEFAULT = True  # of `everlong train all`
_DEPTHS = (1 / 3, 0.43, 0.53)  # as shares of the model's depth, where its states tell most of what a text says
_SAMPLED_ROWS = 50_000  # for center and scale
_MOST_VECTORS = 64  # of a passage in a batch; a longer one is cut at a random place
_MINED_QUESTIONS = 2048  # questions scored at a time, against what answers them and as many other passages
_MINED_AT_ONCE = 4  # this many times _MINED_QUESTIONS questions get mined passages each time
_MINED_A_QUESTION = 4
_TEACHER_TEMPERATURE = 0.05


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the towers, by which a memory is searched by meaning, on questions and the passages that answer them."""

    # Pairs of your own, beside the shipped sets: lines of JSON, {"question": "", "passage": ""}.
    data: tuple[pathlib.Path, ...] = ()
    sets: tuple[str, ...] = SETS  # shipped sets, by commas: fairytale,squad,natural; or none
    text: tuple[pathlib.Path, ...] = ()  # texts without questions, whose passages serve as wrong ones
    stories: int = 0  # number of FairytaleQA's stories to train on; 0: all
    layers: tuple[int, ...] = ()  # layers whose states are read, by commas; by default some in the middle
    teacher: str = "minilm"  # sentence encoder whose similarities are learned too: minilm, a name, or none
    details: str = ""  # read passages as Detail Tokens of this pack's writer: auto, or a folder
    details_tokens: int = 16  # number of tokens that one Detail Token stands for
    steps: int = 2000  # most training steps
    batch: int = 64  # questions in each step
    negatives: int = 64  # passages beside those of the batch's questions; after `mine_every` steps the best wrong ones
    learning_rate: float = 1e-3
    warmup: int = 100  # steps until the learning rate is reached
    teacher_share: float = 0.5  # weight of the teacher in the loss
    evenness: float = 0.5  # a set of n questions gives n ** (1 - evenness) of a batch; 0: by size, 1: all sets alike
    state_dropout: float = 0.2  # share of a question's tokens to drop; a missing word must not matter
    mine_every: int = 500  # steps between searches for the best wrong passages
    check_every: int = 250  # steps between checks; the towers that find most held-out questions are kept


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train towers`. The shipped pack was made before some of these defaults."""
    from everlong.parts.writer.model import WRITER
    from everlong.retrieval.embedding import load_encoder

    pairs = load_pairs(training.sets, training.data, foreign=training.text)
    pairs = with_stories(pairs, training.stories) if training.stories else pairs
    writer = pack_with(WRITER, "writer", run.model, training.details).parts[WRITER] if training.details else None
    teacher = None if training.teacher in ("", "none") else load_encoder(training.teacher)
    return train_on(run, pairs, training, teacher=teacher, writer=writer)


def train_on(
    run: Run,
    pairs: Pairs,
    training: Training,
    *,
    teacher: Encoder | None = None,
    writer: PackPart | None = None,
) -> dict[str, PackPart]:
    """Cache states and the teacher's vectors in `run.work`, train, and measure on stories that were held out.

    With a `writer`, passages are its Detail Tokens in place of states, and the result contains the writer too. A run
    that was cut short goes on where it stopped when it is called again with the same arguments.
    """
    from everlong_lab.parts.towers.details import details_of

    layers = run.layers(training.layers, _DEPTHS)
    details = None if writer is None else details_of(writer, training.details_tokens)
    states = cached_states(
        run.model,
        run.tokenizer,
        pairs,
        layers,
        run.work / "states",
        details=details,
        seed=training.seed,
        progress=run.progress,
    )
    taught = None if teacher is None else taught_vectors(pairs, teacher, run.work / "teacher", progress=run.progress)
    settings = TowerSettings(layers, run.hidden_size)
    if writer is not None:
        group, size = training.details_tokens, int(states.passages.shape[1])
        settings = dataclasses.replace(settings, group_tokens=group, details_size=size, writer=writer.id)
    trainer = TowerTrainer(pairs, states, settings, training, taught, run.work / "checkpoint", run.check)
    towers, learned = trainer.train()
    made = run.made(
        training,
        learned,
        {split: trainer.found(towers, split) for split in ("fit", "test")},
        data=pairs.origins(),
        foreign=sorted({text.name for text in pairs.texts if text.origin == FOREIGN}),
        teacher="" if teacher is None else encoder_name(teacher),
    )
    return {TOWERS: towers.part(made), **({} if writer is None else {"writer": writer})}


@dataclasses.dataclass
class TowerTrainer:
    """One training. Raises ValueError where `group_tokens` is no multiple of the tokens of a cached row."""

    pairs: Pairs
    states: States
    settings: TowerSettings
    training: Training
    # Unit vectors of (passages, questions) by a sentence encoder, in their order.
    teacher: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None
    checkpoints: pathlib.Path | None = None
    progress: MetricsFn | None = None

    def __post_init__(self) -> None:
        group, row = self.settings.group_tokens, self.states.row_tokens
        if group % row:
            raise ValueError(f"group_tokens is {group}, expected a multiple of {row}")
        self._rows = [rows for pieces in self.states.pieces for rows in pieces]  # every piece is a passage
        counts = [len(pieces) for pieces in self.states.pieces]
        first = itertools.accumulate(counts, initial=0)
        self._of_text = [range(at, at + count) for at, count in zip(first, counts, strict=False)]
        self._gold = [
            tuple(self._of_text[question.text][piece] for piece in question.pieces) for question in self.pairs.questions
        ]
        train = (at for at, text in enumerate(self.pairs.texts) if text.split == "train")
        # Passages that may stand as wrong
        self._wrong = np.asarray([passage for at in train for passage in self._of_text[at]])
        self._random = np.random.default_rng(self.training.seed)
        self._mined: dict[int, tuple[int, ...]] = {}  # by question, the best wrong passages

    @isolated_rng()
    def train(self) -> tuple[LateTowers, TrainingResult]:
        """Train, from the last checkpoint where there is one.

        One seed, machine and number of threads give the same bits.
        """
        torch.default_generator.manual_seed(self.training.seed)
        towers = LateTowers(self.settings)
        self._normalise(towers)
        both = _Both(towers)
        train = np.asarray(self.pairs.of_split("train"))
        chances = self._chances(train)

        def lesson(model: Any, step: int, _: np.random.Generator, losses: Losses) -> torch.Tensor:
            if step > 0 and step % self.training.mine_every == 0 and self.training.negatives:
                self._mine(unwrapped(model).towers, train)
            size = min(self.training.batch, len(train))
            return losses.record(
                "loss", self._loss(model, self._random.choice(train, size=size, replace=False, p=chances))
            )

        learned = learn(
            both,
            lesson,
            self._held_out,
            self.training,
            lessons=1,
            better=operator.ge,
            kept=self,
            checkpoints=self.checkpoints,
            progress=self.progress,
        )
        return towers.cpu().eval(), learned

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this."""
        return {"random": dict(self._random.bit_generator.state), "mined": self._mined}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state, self._mined = state["random"], state["mined"]

    # --- a step

    def _chances(self, train: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the chance of each question to be drawn. A small set is drawn more often than its size says."""
        counts = self.pairs.origins()
        origins = [self.pairs.texts[self.pairs.questions[at].text].origin for at in train]
        chances = np.asarray([counts[origin] ** -self.training.evenness for origin in origins])
        return np.asarray(chances / chances.sum(), dtype=np.float64)

    def _normalise(self, towers: LateTowers) -> None:
        """Set center and scale of each number from the passages.

        Questions get their own where passages are Detail Tokens.
        """
        sample = self._sampled(self.states.passages)
        if self.settings.details_size:
            towers.details_center.copy_(sample.mean(dim=0))
            towers.details_scale.copy_(1 / sample.std(dim=0).clamp(min=1e-4))
            sample = self._sampled(self.states.questions)
        towers.center.copy_(sample.mean(dim=0))
        towers.scale.copy_(1 / sample.std(dim=0).clamp(min=1e-4))

    def _sampled(self, rows: npt.NDArray[np.uint16]) -> torch.Tensor:
        return as_floats(rows[np.sort(self._random.choice(len(rows), _SAMPLED_ROWS))]).float()

    def _loss(self, model: Any, batch: npt.NDArray[np.int64]) -> torch.Tensor:
        device = unwrapped(model).scale.device
        passages = self._passages_of(batch)
        column = {passage: at for at, passage in enumerate(passages)}
        right = torch.zeros(len(batch), len(passages), dtype=torch.bool, device=device)
        for row, question in enumerate(batch):
            for passage in self._gold[question]:
                if passage in column:
                    right[row, column[passage]] = True
        vectors, owner = self._grouped(passages)
        words, asker = self._words(batch)
        scores, scale = model(words.to(device), asker.to(device), vectors.to(device), owner.to(device), len(passages))
        scores = scores * scale.exp().clamp(max=100)
        loss = info_nce(scores, right) + info_nce(scores.T[right.any(dim=0)], right.T[right.any(dim=0)])
        if self.teacher is None or self.training.teacher_share == 0:
            return loss
        taught = torch.from_numpy(self.teacher[1][batch] @ self.teacher[0][passages].T).to(device)
        wanted = torch.softmax(taught / _TEACHER_TEMPERATURE, dim=-1)
        distance = torch.nn.functional.kl_div(torch.log_softmax(scores, dim=-1), wanted, reduction="batchmean")
        return loss + self.training.teacher_share * distance

    def _passages_of(self, batch: npt.NDArray[np.int64]) -> list[int]:
        """Return one right passage of each question, then wrong ones: mined ones, or others of the same text."""
        chosen = [int(self._random.choice(self._gold[question])) for question in batch]
        wrong: list[int] = []
        for question in self._random.permutation(batch):
            if len(wrong) >= self.training.negatives:
                break
            mined = self._mined.get(int(question))
            of_text = self._of_text[self.pairs.questions[question].text]
            if mined:
                wrong.extend(int(passage) for passage in self._random.choice(mined, size=2))
            elif len(of_text) > 1:
                wrong.append(of_text[int(self._random.integers(len(of_text)))])
        return list(dict.fromkeys([*chosen, *wrong]))

    def _grouped(self, passages: Sequence[int], *, whole: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means of states [groups, width] of the passages in order, and the passage of each [groups]."""
        pooled = self.settings.group_tokens // self.states.row_tokens
        pieces, owner = [], []
        for at, passage in enumerate(passages):
            first, last = self._rows[passage]
            if not whole and last - first > _MOST_VECTORS * pooled:
                first += int(self._random.integers(last - first - _MOST_VECTORS * pooled + 1))
                last = first + _MOST_VECTORS * pooled
            rows = as_floats(self.states.passages[first:last])
            if len(rows) % pooled:
                rows = torch.cat([rows, rows[-1:].expand(pooled - len(rows) % pooled, -1)])
            pieces.append(rows.view(-1, pooled, rows.shape[-1]).float().mean(dim=1))
            owner.append(torch.full((len(pieces[-1]),), at))
        return torch.cat(pieces), torch.cat(owner)

    def _words(self, batch: npt.NDArray[np.int64], *, whole: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states [tokens, width] of the questions in order, and the question of each [tokens]."""
        pieces, owner = [], []
        for at, question in enumerate(batch):
            rows = as_floats(self.states.questions[slice(*self.states.words[question])])
            if not whole and len(rows) > 3 and self.training.state_dropout > 0:
                kept = self._random.random(len(rows)) >= self.training.state_dropout
                rows = rows[torch.from_numpy(kept)] if kept.any() else rows
            pieces.append(rows)
            owner.append(torch.full((len(rows),), at))
        return torch.cat(pieces).float(), torch.cat(owner)

    # --- between steps

    @torch.no_grad()
    def _mine(self, towers: LateTowers, questions: npt.NDArray[np.int64]) -> None:
        """Find the best wrong passages by the towers themselves, for some of the questions.

        They are drawn from what answers the other questions, and from as many random passages. Passages of stories that
        are held out are never among them.
        """
        self._mined = {}
        drawn = self._random.permutation(questions)[: _MINED_AT_ONCE * _MINED_QUESTIONS]
        for begin in range(0, len(drawn), _MINED_QUESTIONS):
            asked = drawn[begin : begin + _MINED_QUESTIONS]
            golds = {passage for question in asked for passage in self._gold[question]}
            others = self._random.choice(self._wrong, size=min(len(golds), len(self._wrong)), replace=False)
            pool = sorted(golds | {int(passage) for passage in others})
            scores = self.scores(towers, asked, pool)
            column = {passage: at for at, passage in enumerate(pool)}
            for row, question in enumerate(asked):
                for passage in self._gold[question]:
                    scores[row, column[passage]] = -torch.inf
                # Skip the very best: it is often right, too.
                best = torch.topk(scores[row], min(_MINED_A_QUESTION + 1, len(pool))).indices[1:]
                self._mined[int(question)] = tuple(pool[at] for at in best.tolist())

    @torch.no_grad()
    def scores(
        self, towers: LateTowers, questions: npt.NDArray[np.int64] | Sequence[int], passages: Sequence[int]
    ) -> torch.Tensor:
        """Return scores [questions, passages] of whole questions and passages."""
        numbers = np.asarray(questions)
        words, asker = self._words(numbers, whole=True)
        device = towers.center.device
        queries = towers.batched_query_vectors(words.to(device), asker.to(device), len(numbers)).cpu()
        found = torch.zeros(len(numbers), len(passages))
        for first in range(0, len(passages), 64):
            some = passages[first : first + 64]
            vectors, owner = self._grouped(some, whole=True)
            for begin in range(0, len(numbers), 512):
                rows = (asker >= begin) & (asker < begin + 512)
                count = min(512, len(numbers) - begin)
                written = towers.written(vectors.to(device)).cpu()
                found[begin : begin + count, first : first + len(some)] = _late(
                    queries[rows], asker[rows] - begin, count, written, owner, len(some)
                )
        return found

    def found(self, towers: LateTowers, split: Split) -> dict[str, float]:
        """Return by kind the shares of held-out questions whose right section is first, and among four.

        All sections of the split are ranked.
        """
        asked = self.pairs.of_split(split)
        texts = sorted({self.pairs.questions[at].text for at in asked})
        passages = [passage for text in texts for passage in self._of_text[text]]
        if not asked:
            return {}
        scores = self.scores(towers, asked, passages)
        column = {passage: at for at, passage in enumerate(passages)}
        shares: dict[str, list[bool]] = {}
        for row, question in enumerate(asked):
            best = torch.argsort(scores[row], descending=True)[:4].tolist()
            right = {column[passage] for passage in self._gold[question]}
            kind = self.pairs.questions[question].kind
            for name in ("", f"{kind} ") if kind else ("",):
                shares.setdefault(f"{name}@1", []).append(best[0] in right)
                shares.setdefault(f"{name}@4", []).append(bool(right & set(best)))
        return {name: sum(hits) / len(hits) for name, hits in sorted(shares.items())}

    def _held_out(self, model: Any) -> dict[str, float]:
        found = self.found(unwrapped(model).towers, "fit")
        return {"held out": found.get("@1", 0.0) + found.get("@4", 0.0), **found}


class _Both(torch.nn.Module):
    """The towers and the scale of their cosines, as one module that `accelerate` may wrap."""

    def __init__(self, towers: LateTowers) -> None:
        super().__init__()
        self.towers = towers
        self.scale = torch.nn.Parameter(torch.tensor(20.0).log())  # of cosines, as a logarithm

    def forward(
        self, words: torch.Tensor, asker: torch.Tensor, vectors: torch.Tensor, owner: torch.Tensor, passages: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        questions = int(asker[-1]) + 1
        queries = self.towers.batched_query_vectors(words, asker, questions)
        return _late(queries, asker, questions, self.towers.written(vectors), owner, passages), self.scale


def _late(
    queries: torch.Tensor,
    asker: torch.Tensor,
    questions: int,
    vectors: torch.Tensor,
    owner: torch.Tensor,
    passages: int,
) -> torch.Tensor:
    """Return scores [questions, passages]: each query row's largest product in a passage, summed over a question."""
    counts = torch.bincount(owner, minlength=passages)
    most = int(counts.max())
    places = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    padded = vectors.new_zeros(passages, most, vectors.shape[-1])
    padded[owner, places] = vectors
    there = torch.arange(most, device=owner.device)[None] < counts[:, None]
    products = torch.einsum("td,pgd->tpg", queries, padded).masked_fill(~there, -1e4)
    best = products.amax(dim=-1)
    return best.new_zeros(questions, passages).index_add(0, asker, best)
