"""Train an adapter (models/low_rank.py): behind recalled pages, answer as the model does on the right passage alone.

Question and answer are computed behind a frame as the memory makes it for that question. It holds the keys and values
of up to four groups that came back, rotated to their new positions and cooled by the recall temperature. The loss is
the Kullback-Leibler divergence to what the model itself says with the right passage alone, at every token of its answer
(answers.py). What is resident is the model's own, without gradients. So a step costs a forward and a backward pass over
some sixty tokens.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from everlong.errors import UnsupportedModelError
from everlong.frame.kv_frame import KvFrame
from everlong.frame.model_setup import default_config
from everlong.frame.offers import Offers, offers_of
from everlong.generation.memory_model import MemoryModel
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import PackPart
from everlong.models.releases import cache_argument
from everlong.retrieval.quotes import Sentence, quoting, words_of
from everlong.retrieval.recall import SearchOutcome
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.pairs import SETS, Pairs, load_pairs
from everlong_lab.corpora.seeds import in_turn
from everlong_lab.parts.adapter.answers import Example, TeacherAnswer, read_examples, taught_answers
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.run import Run, before_and_after

ADAPTER = "adapter"  # its name in a pack
_LEAST_ANSWER = 3  # tokens; a shorter answer teaches little but to end
_PAGES_BESIDE = 1  # pages on each side of the right passage, where the search missed it
_MOST_RIGHT_PAGES = 5


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the adapter, which helps a model to answer from recalled text as well as from the right passage alone."""

    # Pairs of your own to plant in the stories: lines of JSON, {"question": "", "passage": ""}.
    data: tuple[pathlib.Path, ...] = ()
    # Shipped sets of questions, by commas; the passages of the others are planted in fairytale
    sets: tuple[str, ...] = SETS
    tokens: int = 160_000  # number of tokens to read into the memory that questions are put to
    rank: int = 8  # rank of the low-rank maps
    scale: float = 2.0  # factor on what the maps add
    steps: int = 150  # number of training steps
    batch: int = 8  # questions in each step
    learning_rate: float = 5e-4
    weight_decay: float = 0.0
    check_every: int = 25  # steps between checks on the held-out questions; the best result is kept
    groups: tuple[int, ...] = (1, 2, 4, 4)  # numbers of recalled groups, by commas; one is drawn for each question
    held_out: int = 48  # number of questions to hold out for the checks


@dataclasses.dataclass(frozen=True)
class _TrainingQuestion:
    """A question before its answer: what is resident, and the question's own tokens."""

    k: torch.Tensor  # [L, 1, Hkv, S, D]
    v: torch.Tensor
    position: int  # of the question's first token
    ids: torch.Tensor  # [n]


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train adapter`."""
    pairs = load_pairs(training.sets, training.data)
    return train_on(run, pairs, training)


def train_on(run: Run, pairs: Pairs, training: Training) -> dict[str, PackPart]:
    """Read stories with planted passages, keep the model's answers on the right passages, and train.

    Memory, answers and checkpoints lie in `run.work`: a run that was cut short goes on where it stopped when it is
    called again with the same arguments. Questions are searched for with the parts that the model's pack has by now.
    """
    config = default_config(run.model)
    parts = [one for one in config.parts if one.name != ADAPTER]
    config = config.changed(answer={"recall_mode": "kv"}, parts=parts)
    with MemoryModel(run.model, run.tokenizer, run.work / "memory", config) as mm:
        examples = read_examples(mm, pairs, tokens=training.tokens, seed=training.seed, progress=run.progress)
        taught = taught_answers(run.model, run.tokenizer, examples, run.work / "answers", progress=run.progress)
        trainer = AdapterTrainer(mm, examples, taught, training, run.work / "checkpoint", run.check)
        adapter, learned = trainer.train()
        made = run.made(
            training,
            learned,
            {"held out, nats a token": before_and_after(learned)},
            data=sorted({text.origin for text in pairs.texts if text.split == "train"}),
            questions=len(examples),
            tokens=mm.stream_tokens,
        )
    return {ADAPTER: adapter.part(made)}


@dataclasses.dataclass
class AdapterTrainer:
    """One training over a memory that was read by `read_examples`. The memory is not changed.

    Raises UnsupportedModelError for a model with layers whose state is in no archive, and ValueError without examples.
    """

    mm: MemoryModel
    examples: Sequence[Example]
    taught: Sequence[TeacherAnswer]
    training: Training
    checkpoints: pathlib.Path | None = None
    progress: MetricsFn | None = None

    def __post_init__(self) -> None:
        frame, examples, training = self.mm.frame, self.examples, self.training
        if not isinstance(frame, KvFrame) or frame.cache.own:
            raise UnsupportedModelError(
                "an adapter is trained behind archived keys alone: this model keeps other state"
            )
        self._frame = frame
        usable = [at for at, one in enumerate(self.taught) if len(one.ids) >= _LEAST_ANSWER]
        sources = sorted({examples[at].source for at in usable})
        drawn = random.Random(training.seed).sample(sources, len(sources))
        held: list[int] = []
        while drawn and len(held) < training.held_out and len(held) < len(usable) // 4:
            source = drawn.pop()  # hold out whole texts, so that a held-out question's passage is in no other context
            held += [at for at in usable if examples[at].source == source]
        self._held_out = held[: training.held_out]
        self._train = sorted(set(usable).difference(held))
        if not self._train or not self._held_out:
            raise ValueError(f"{len(usable)} questions of {len(sources)} texts: too few to train on and to hold out")

    def train(self) -> tuple[LowRankMaps, TrainingResult]:
        """Train, from the last checkpoint where there is one.

        One seed, machine and number of threads give the same bits.
        """
        training, model = self.training, self._frame.served.model
        settings = MapSettings(training.rank, training.scale)
        adapter = LowRankMaps(settings, mapped_layers(model), seed=training.seed).to(self._frame.served.device)
        attached = AttachedMaps(adapter, model)

        def lesson(_: Any, number: int, __: np.random.Generator, losses: Losses) -> torch.Tensor:
            step, at = number // training.batch, self._train[in_turn(training.seed, number, len(self._train))]
            asked = self._sample_question(at, random.Random(f"{training.seed} {step} {at}"))
            return losses.record("loss", self._loss(asked, at, attached))

        learned = learn(
            adapter,
            lesson,
            lambda _: self._held_out_loss(attached),
            training,
            checkpoints=self.checkpoints,
            progress=self.progress,
        )
        return adapter.cpu(), learned

    # --- a step

    def _sample_question(self, at: int, drawn: random.Random) -> _TrainingQuestion:
        """Return the frame after a question's pages have come back. The right passage is always among them."""
        mm, frame, example = self.mm, self._frame, self.examples[at]
        prompt = build_prompt(mm.tokenizer, example.words)
        count = drawn.choice(self.training.groups)

        quoted: list[Sentence] = []

        with frame.branch(traced=False):
            frame.clear_recalled()
            tapped = mm.searcher.tap(prompt)
            for _ in frame.begin_prompt():
                found = mm.searcher.find(prompt, tapped=tapped)
                quoted.extend(mm.searcher.quotes(found))
                frame.bring_back(self._with_the_right_one(found, example, count, drawn))
            cache = frame.cache
            k, v = (buffer[:, None, :, cache.begin : cache.end].clone() for buffer in (cache.k, cache.v))
            position = frame.os.next_position() + frame.served.first_position
        words = words_of(mm.memory.core, mm.tokenizer, quoted)
        return _TrainingQuestion(k, v, position, quoting(mm.tokenizer, prompt, words).ids)

    def _with_the_right_one(self, found: SearchOutcome, example: Example, count: int, drawn: random.Random) -> Offers:
        """Return `count` groups that include the right one.

        It stands where the search found it, or else replaces the last group, at a random place.
        """
        config, (begin, end) = self.mm.config, example.span
        right = [group for group in found.offers if group.begin < end and begin < group.end]
        others = [group for group in found.offers if group not in right]
        if right:
            kept = {id(group) for group in (*right[:1], *others[: count - 1])}
            some = dataclasses.replace(found, offers=tuple(group for group in found.offers if id(group) in kept))
            return some.in_frame_order(config.answer.order, config.answer.recalled_temperature)
        beside = _PAGES_BESIDE * config.archive.page_tokens
        core, stream = self.mm.memory.core, self._frame.os.stream
        own = core.blocks.pages_of(stream, max(begin - beside, 0), min(end + beside, self.mm.stream_tokens))
        groups = [list(group.pages) for group in others[: count - 1]]
        groups.insert(drawn.randrange(len(groups) + 1), list(own)[:_MOST_RIGHT_PAGES])
        return offers_of([page for group in groups for page in group], "search", best=own)

    def _loss(self, question: _TrainingQuestion, at: int, attached: AttachedMaps) -> torch.Tensor:
        """Return the KL divergence in nats a token to the taught answer.

        It is taken over the likeliest tokens, with their probabilities normalised to sum to 1.
        """
        model, taught = self._frame.served.model, self.taught[at]
        cache = DynamicCache()
        for layer in range(question.k.shape[0]):
            cache.update(question.k[layer], question.v[layer], layer)
        ids = torch.cat([question.ids, taught.ids[:-1]])[None].to(model.device)
        positions = torch.arange(question.position, question.position + ids.shape[1], device=model.device)[None]
        with attached.active():
            out = model(
                input_ids=ids,
                position_ids=positions,
                **{cache_argument(model): cache},
                use_cache=True,
                logits_to_keep=len(taught.ids),
            )
        losses = out.logits[0].float().log_softmax(-1).gather(-1, taught.tokens.to(model.device))
        wanted = taught.log_probabilities.to(model.device).log_softmax(-1)
        distance: torch.Tensor = (wanted.exp() * (wanted - losses)).sum(-1).mean()
        return distance

    @torch.no_grad()
    def _held_out_loss(self, attached: AttachedMaps) -> float:
        """Return the mean loss over the held-out questions, behind the same pages at every check."""
        losses = [
            float(self._loss(self._sample_question(at, random.Random(f"held out {at}")), at, attached))
            for at in self._held_out
        ]
        return sum(losses) / len(losses)
