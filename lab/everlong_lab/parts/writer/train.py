"""Train the writer: behind D, a frozen model is to say what it says behind the blocks.

There are three lessons, drawn at random:

- *behind*: text behind 1 to 8 evicted blocks, of which it sees D alone, with blocks of other books among them. The loss
  is the Kullback-Leibler divergence to the model that sees everything, and cross entropy (training/evicted.py);
- *again*, Head B: pages, said again from D of their own;
- *why*, Head A: which of three blocks answers a question, as a decision from D and the question alone (deciding.py),
  and in the model's words, with its answer (corpora/told.py). Once D is settled, the decision goes on learning alone.

Gradients pass through the model to D. The model's weights stay, and a small LoRA beside them may learn to read D. The
writer begins with the words that a Trimmer would keep of each run. A frozen model has never met means of embeddings,
and what it says behind them is far off. Pages are first said again from as many vectors as they have tokens, where D
are the words themselves; then from fewer and fewer. The blocks that the writer reads miss tokens at random, as a
trimmed block does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import PackPart, pack_with
from everlong.models.releases import checkpointing
from everlong.models.soft_tokens import after_soft_tokens, embedded, frozen
from everlong.parts.latents import LatentSettings
from everlong.parts.writer.decider import KINDS, DeciderSettings, odds
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings, maps_of
from everlong.text.control import memory_marks
from everlong.text.encoding import encode
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong_lab.corpora.fact_blocks import Exercise, exercise, facts_of_both
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.parts.latents import normalise
from everlong_lab.training.distillation import EvictedRead, log_probs_of, read_evicted
from everlong_lab.training.fact_states import fact_states
from everlong_lab.training.loop import LoopSettings, Losses, Progress, TrainingResult, learn, unwrapped
from everlong_lab.training.run import Run, before_and_after, two_splits

if TYPE_CHECKING:
    from everlong.parts.trimmer.model import TrimmerNet

_DEPTHS = (1 / 3, 0.53)  # as shares of the model's depth, where neither a Trimmer nor anybody names layers
_READER = {"width": 256, "heads": 8, "inner": 384, "order": 3}
_OF_BEGUN = ("data", "books", "training", "steps", "minutes", "figures", "log", "begun with")

_AGAIN_TOKENS = 128  # of the pages to say again in a lesson
_HELD_OUT_RATIOS = (2, 8)  # tokens a vector, for pages to say again that nothing is trained on
_HELD_OUT_QUESTIONS = 6
_HELD_OUT_HEADS = 0.1  # weight of a head in the held-out measure, for each of its lessons
_LORA_SCALE = 0.5
_HELD_OUT_PLACES = 16
_SETTLED_PLACES = 6
_SETTLED_DECAY = 0.1
_DECIDED_PLACES = 4  # of three blocks each, with each lesson: a decision needs only the writer's own forward pass
AGAIN = "The same again:\n\n"  # comes before a text to say again


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the writer, which makes Detail Tokens of a block: a model goes on behind them as behind the block."""

    text: tuple[pathlib.Path, ...] = ()  # books to read; by default the shipped ones
    samples: int = 16  # number of streams of eight blocks of books
    told: int = 240  # number of places in books with questions that a block answers, or does not
    stories: int = 120  # the same in stories, with questions that people asked
    layers: tuple[int, ...] = ()  # layers whose states are read, by commas; by default the Trimmer's
    begin: str = ""  # go on from the writer of this pack, which must have the same --lora: auto, or a folder
    steps: int = 500  # number of training steps
    batch: int = 2  # lessons in each step
    learning_rate: float = 1e-3
    check_every: int = 50  # steps between checks; the best result on held-out texts is kept
    tokens: tuple[int, ...] = (4, 8, 16, 32)  # numbers of Detail Tokens of a block, by commas; one is drawn each time
    cross_entropy: float = 0.3  # weight of the cross entropy beside the divergence
    following: int = 128  # number of tokens behind the blocks that a lesson covers
    again: float = 2.0  # lessons of saying pages again (Head B), for each lesson of going on
    # Lengths in tokens of a page to say again, by commas; one is drawn each time
    pages: tuple[int, ...] = (16, 32, 64, 128)
    hardest: float = 8.0  # most tokens for each vector of a page to say again; it begins with one
    rising: float = 0.7  # share of the steps until that number is reached; with --begin it is reached from the start
    why: float = 1.0  # lessons of telling why a block is wanted (Head A), for each lesson of going on
    # Numbers of Detail Tokens in these lessons; many teach what a few cannot say yet
    decided: tuple[int, ...] = (32, 64, 128)
    settling: int = 300  # steps of the decision alone, once the Detail Tokens are settled
    lora: int = 4  # rank of the maps beside the model's that learn to read Detail Tokens; 0: none
    # Numbers of blocks of other books to put first, by commas; one is drawn each time
    distractors: tuple[int, ...] = (0, 0, 1, 2)
    sharpness: float = 20.0  # factor on the Trimmer's scores, with which the writer begins where there is a Trimmer
    missing: float = 0.1  # mean share of a block's tokens that the writer does not see
    gradient_checkpointing: bool = False  # use less memory and more time


@dataclasses.dataclass(frozen=True)
class FactStates:
    """A block with questions, as it was read. Blocks of one place have the same questions in the same order."""

    block: Record
    states: torch.Tensor  # [BLOCK_TOKENS, width] bf16
    exercises: tuple[Exercise, ...]


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train writer`. The defaults are those of the shipped pack.

    The writer begins with the words that the pack's Trimmer would keep.
    """
    from everlong.parts.trimmer.model import trimmer_of

    books = books_of(training.text)
    texts = evicted_texts(run.tokenizer, books, samples=training.samples, seed=training.seed)
    begun = pack_with(WRITER, "writer", run.model, training.begin).parts[WRITER] if training.begin else None
    facts: Sequence[Sequence[Record]] = ()
    if training.why:
        pairs, counts = load_pairs(["fairytale"]), {"places": training.told, "stories": training.stories}
        facts = facts_of_both(run.tokenizer, books, pairs, **counts, seed=training.seed)
    trimmer = None if run.pack is None else trimmer_of(run.pack)
    if begun is not None:
        training = dataclasses.replace(training, rising=0.0)
    return train_on(run, texts, training, facts, trimmer=trimmer, begun=begun)


def train_on(
    run: Run,
    texts: Sequence[Record],
    training: Training,
    facts: Sequence[Sequence[Record]] = (),
    *,
    trimmer: TrimmerNet | None = None,
    begun: PackPart | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, PackPart]:
    """Read `texts` once, and `told` of several kinds; train; measure on those that were held out.

    What is needed of them is kept in `run.work`. Training goes on from the writer `begun` where there is one, with its
    shape. Otherwise it begins with what `trimmer` would keep. `settings` are further ones of LatentSettings. A run that
    was cut short goes on where it stopped when it is called again with the same arguments. Raises ValueError where
    there is nothing to train on or to hold out.
    """
    layers = training.layers or (() if begun is None else WriterNet.of_part(begun).settings.layers)
    layers = layers or (trimmer.settings.layers if trimmer else run.layers((), _DEPTHS))
    reads = read_evicted(run.model, texts, layers, run.work / "streams", progress=run.progress)
    embedding_size = run.model.get_input_embeddings().embedding_dim
    opening, closing = memory_marks(run.tokenizer)
    reader = LatentSettings(layers, run.hidden_size, embedding_size, **{**_READER, **(settings or {})})
    decider = DeciderSettings(embedding_size) if training.why and any(facts) else None
    config = WriterSettings(reader, opening=opening, closing=closing, decider=decider)
    question = [
        read
        for number, blocks in enumerate(facts)
        for read in read_facts(
            run.model, run.tokenizer, blocks, layers, run.work / f"told-{number}", progress=run.progress
        )
    ]
    trained, learned, settled = WriterTrainer(run, reads, config, training, question, trimmer, begun).train()
    made = run.made(training, learned, {"held out, in nats a token": before_and_after(learned)}, **log_probs_of(texts))
    if settled is not None:
        made["decisions"] = {"steps": settled.steps, "log": list(settled.log)}
    if begun is not None:
        made["begun with"] = {"id": begun.id, **{key: begun.made[key] for key in _OF_BEGUN if key in begun.made}}
    return {WRITER: trained.writer.part_with(trained.lora, made)}


def read_facts(
    model: Any,
    tokenizer: Any,
    facts: Sequence[Record],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Progress | None = None,
) -> list[FactStates]:
    """Return the blocks with questions, as they were read; without blocks nothing is read."""
    if not facts:
        return []
    states = fact_states(model, facts, layers, folder, progress=progress)
    return [
        FactStates(block, own, tuple(exercise(tokenizer, question) for question in block.questions))
        for block, own in zip(facts, states, strict=True)
    ]


class _TrainedModules(torch.nn.Module):
    """The writer, and the maps that read D beside the model."""

    def __init__(self, writer: WriterNet, lora: LowRankMaps | None) -> None:
        super().__init__()
        self.writer, self.lora = writer, lora

    def forward(self, states: torch.Tensor, embeddings: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
        found: torch.Tensor = self.writer(states, embeddings, tokens)
        return found


@dataclasses.dataclass
class WriterTrainer:
    """One training over streams that were read. Raises ValueError without any to train on or to hold out."""

    run: Run
    reads: Sequence[EvictedRead]
    config: WriterSettings
    training: Training
    told: Sequence[FactStates] = ()
    trimmer: TrimmerNet | None = None  # training begins with what this would keep
    begun: PackPart | None = None  # or goes on from this

    def __post_init__(self) -> None:
        self._train, self._fit = two_splits(
            "a writer is trained on some texts", self.reads, lambda read: read.text.split
        )
        self._told, self._told_fit = (
            [one for one in self.told if one.block.split == split] for split in ("train", "fit")
        )
        self._model, self._again_ids = self.run.model, encode(self.run.tokenizer, AGAIN)

    def train(self) -> tuple[_TrainedModules, TrainingResult, TrainingResult | None]:
        """Train, from the last checkpoint where there is one; return the writer and how it learned.

        One seed, machine and number of threads give the same bits. The last value is of the decision, which learns once
        D is settled; None where there is none.
        """
        training, model = self.training, self._model
        writer = WriterNet.untrained(self.config, training.seed)
        lora = None
        if training.lora:
            settings = MapSettings(training.lora, _LORA_SCALE)
            lora = LowRankMaps(settings, mapped_layers(model), seed=training.seed).to(model.device)
        if self.begun is not None:
            _go_on_from(self.begun, writer, lora)
        else:
            normalise(writer.reader, model, self._train)
            if self.trimmer is not None:
                writer.count_as(self.trimmer, training.sharpness)
        learning, points = _TrainedModules(writer, lora), self.run.work / "checkpoint"
        reading = contextlib.nullcontext() if lora is None else AttachedMaps(lora, model).active()
        with frozen(model), _checkpointed(model, training.gradient_checkpointing), reading:
            learned = learn(
                learning, self._lesson, self._held_out, training, checkpoints=points, progress=self.run.check
            )
        writer.eval()
        return learning, learned, self._settle(writer) if self._told and training.why else None

    def _settle(self, writer: WriterNet) -> TrainingResult:
        """Let the decision alone go on learning, on settled D that is made once, with as many as a memory has."""
        training, decider = self.training, writer.decider
        assert decider is not None
        with torch.no_grad():
            of_train, of_fit = (
                [self._details_of_facts(writer, [one], self.config.tokens).bfloat16() for one in facts]
                for facts in (self._told, self._told_fit)
            )
        fit = [slice(at, at + len(KINDS)) for at in range(0, len(of_fit), len(KINDS))]

        def lesson(wrapped: Any, number: int, random: np.random.Generator, losses: Losses) -> torch.Tensor:
            places = random.permutation(len(self._told) // len(KINDS))[:_SETTLED_PLACES]
            rows = [len(KINDS) * place + at for place in places.tolist() for at in range(len(KINDS))]
            facts, details = [self._told[row] for row in rows], torch.cat([of_train[row] for row in rows])
            return losses.record("decided", decided_loss(writer, self._model, facts, details.float()))

        def held_out(wrapped: Any) -> float:
            found = [misjudged(writer, self._model, self._told_fit[own], torch.cat(of_fit[own])) for own in fit]
            return sum(found) / max(1, len(found))

        settling = LoopSettings(
            steps=training.settling,
            batch=1,
            learning_rate=training.learning_rate,
            weight_decay=_SETTLED_DECAY,
            seed=training.seed,
            threads=training.threads,
        )
        points = self.run.work / "decisions"
        with frozen(self._model):
            return learn(decider, lesson, held_out, settling, checkpoints=points, progress=self.run.check)

    # --- a step

    def _lesson(self, writer: Any, number: int, random: np.random.Generator, losses: Losses) -> Iterator[torch.Tensor]:
        """Yield the loss of one of the three lessons, drawn at random, and then that of some decisions.

        A decision says what each of some blocks is to its questions; the model is not needed for it.
        """
        yield self._one_of_three(writer, number, random, losses)
        if self._told and self.training.why:
            tokens = int(random.choice(self.training.decided))
            loss = self._decided(writer, self._drawn(self._told, _DECIDED_PLACES, random), tokens, random)
            yield losses.record("decided", loss)

    def _one_of_three(self, writer: Any, number: int, random: np.random.Generator, losses: Losses) -> torch.Tensor:
        training = self.training
        read = self._train[int(random.integers(len(self._train)))]
        tokens = int(random.choice(training.tokens))
        why = training.why if self._told else 0.0
        drawn = random.random() * (1 + training.again + why)
        if drawn >= 1 + training.again:
            three = self._drawn(self._told, 1, random)
            return losses.record("why", self._why(writer, three, int(random.choice(training.decided)), random))
        if drawn >= 1:
            step = number // training.batch
            hardest = training.hardest ** min(1.0, step / max(1.0, training.rising * training.steps))
            return losses.record("again", self._again(writer, read, float(hardest ** random.random()), random))
        blocks = int(random.integers(1, BLOCKS + 1))
        strange = int(random.choice(training.distractors))
        other = self._train[int(random.integers(len(self._train)))]
        details = [self._details(writer, read, range(blocks), tokens, random)]
        if strange and other is not read:
            chosen = sorted(int(at) for at in random.choice(BLOCKS, strange, replace=False))
            details.insert(0, self._details(writer, other, chosen, tokens, random))
        divergence, entropy = self._behind(read, blocks, torch.cat(details, dim=1), training.following)
        return losses.record("KL", divergence) + training.cross_entropy * entropy

    def _drawn(self, facts: Sequence[FactStates], places: int, random: np.random.Generator) -> list[FactStates]:
        """Return the three blocks of each of `places` drawn places, or of all that there are."""
        drawn = random.permutation(len(facts) // len(KINDS))[:places]
        return [facts[len(KINDS) * int(place) + at] for place in drawn for at in range(len(KINDS))]

    def _decided(
        self, writer: Any, blocks: Sequence[FactStates], tokens: int, random: np.random.Generator | None = None
    ) -> torch.Tensor:
        """Return `decided_loss` behind D of N `tokens`; with `random` some tokens of the blocks are missing."""
        details = self._details_of_facts(writer, blocks, tokens, random)
        return decided_loss(unwrapped(writer).writer, self._model, blocks, details)

    def _why(self, writer: Any, three: Sequence[FactStates], tokens: int, random: np.random.Generator) -> torch.Tensor:
        """Return the cross entropy of why a question wants or does not want each of its three blocks, and of its
        answer.

        What the question says by itself is the same all three times.
        """
        number = int(random.integers(len(three[0].exercises)))
        exercises = [one.exercises[number] for one in three]
        details = self._details_of_facts(writer, three, tokens)
        longest = max(len(one.reply) for one in exercises)
        replies = [torch.nn.functional.pad(one.reply, (0, longest - len(one.reply))) for one in exercises]
        ids = torch.stack([torch.cat([one.prompt, reply]) for one, reply in zip(exercises, replies, strict=True)])
        sinks = three[0].block.ids[:SINK_TOKENS]
        logits = log_probs_after_details(self.config, self._model, sinks, details, ids, longest + 1)
        return torch.stack(
            [
                torch.nn.functional.cross_entropy(row[: len(one.reply)], one.reply.to(row.device))
                for row, one in zip(logits, exercises, strict=True)
            ]
        ).mean()

    def _details_of_facts(
        self, writer: Any, blocks: Sequence[FactStates], tokens: int, random: np.random.Generator | None = None
    ) -> torch.Tensor:
        """Return D [blocks, N, E]."""
        states, ids = torch.stack([one.states for one in blocks]), torch.stack([one.block.ids for one in blocks])
        return self._made(writer, states, ids[:, SINK_TOKENS:], tokens, random)

    def _details(
        self,
        writer: Any,
        read: EvictedRead,
        blocks: Sequence[int],
        tokens: int,
        random: np.random.Generator | None = None,
    ) -> torch.Tensor:
        """Return D [1, blocks * N, E] of some blocks of a text."""
        states = read.states(max(blocks) + 1)[list(blocks)]
        ids = read.text.ids[SINK_TOKENS : SINK_TOKENS + BLOCKS * BLOCK_TOKENS].view(BLOCKS, -1)[list(blocks)]
        return self._made(writer, states, ids, tokens, random).flatten(0, 1)[None]

    def _made(
        self, writer: Any, states: torch.Tensor, ids: torch.Tensor, tokens: int, random: np.random.Generator | None
    ) -> torch.Tensor:
        """Return D [B, N, E] of blocks' states [B, BLOCK_TOKENS, width] and ids.

        With `random` some of their tokens are missing, the same in each block.
        """
        states, embeddings = states.to(self._model.device), embedded(self._model, ids)
        if random is not None and self.training.missing > 0:
            count = BLOCK_TOKENS - int(random.integers(int(self.training.missing * 2 * BLOCK_TOKENS) + 1))
            kept = torch.from_numpy(np.sort(random.permutation(BLOCK_TOKENS)[:count]))
            states, embeddings = states[:, kept], embeddings[:, kept]
        found: torch.Tensor = writer(states, embeddings, tokens)
        return found

    def _behind(
        self, read: EvictedRead, blocks: int, details: torch.Tensor, following: int = FOLLOWING
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = read.text.behind(blocks)[: following + 1]
        logits = log_probs_after_details(
            self.config, self._model, read.text.ids[:SINK_TOKENS], details, ids[:-1], following
        )
        return read.taught(blocks).losses(logits[0], ids[1:])

    def _again(self, writer: Any, read: EvictedRead, ratio: float, random: np.random.Generator) -> torch.Tensor:
        """Return the cross entropy of pages behind D of their own, with one vector for `ratio` tokens.

        The pages have one length, and their number comes to `_AGAIN_TOKENS` tokens.
        """
        length = int(random.choice(self.training.pages))
        count = max(1, _AGAIN_TOKENS // length)
        vectors = min(length, max(1, round(length / ratio)))
        most = BLOCKS * BLOCK_TOKENS - length
        first = torch.from_numpy(random.integers(most + 1, size=count))
        rows = first[:, None] + torch.arange(length)
        own = read.text.ids[SINK_TOKENS:]
        states = read.states().flatten(0, 1)[rows].to(self._model.device)
        details = writer(states, embedded(self._model, own[rows]), vectors)
        ids = own[rows]
        facts = torch.cat([self._again_ids[None].expand(count, -1), ids[:, :-1]], dim=1)
        logits = log_probs_after_details(self.config, self._model, read.text.ids[:SINK_TOKENS], details, facts, length)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten().to(logits.device))

    # --- between steps

    def _held_out(self, writer: Any) -> float:
        """Return the mean KL behind all blocks and behind half of them, of held-out texts, plus the losses of both
        heads.

        The heads count by their share of the lessons.
        """
        training = self.training
        found = [
            float(self._behind(read, blocks, self._details(writer, read, range(blocks), tokens))[0])
            for read in self._fit
            for blocks, tokens in ((BLOCKS, 8), (BLOCKS // 2, 32))
        ]
        score = sum(found) / len(found)
        if training.again:
            again = [
                float(self._again(writer, read, ratio, np.random.default_rng(number)))
                for number, read in enumerate(self._fit)
                for ratio in _HELD_OUT_RATIOS
            ]
            score += _HELD_OUT_HEADS * training.again * sum(again) / len(again)
        if training.why and self._told_fit:
            drawn = np.random.default_rng(0)
            threes = [self._drawn(self._told_fit, 1, drawn) for _ in range(_HELD_OUT_QUESTIONS)]
            why = [float(self._why(writer, three, 32, drawn)) for three in threes]
            decided = float(self._decided(writer, self._drawn(self._told_fit, _HELD_OUT_PLACES, drawn), 32))
            score += _HELD_OUT_HEADS * training.why * (sum(why) / len(why) + decided)
        return score


def _go_on_from(begun: PackPart, writer: WriterNet, lora: LowRankMaps | None) -> None:
    """Give a writer and its maps the weights of the one that was `begun`. Only the new one may decide.

    Raises ValueError for one of another shape, or with other maps.
    """
    before, maps = WriterNet.of_part(begun), maps_of(begun)
    own, wanted = before.settings, writer.settings
    if (own.reader, own.opening, own.closing) != (wanted.reader, wanted.opening, wanted.closing):
        raise ValueError(f"the pack's writer has another shape, {own.reader}: expected {wanted.reader}")
    missing, strange = writer.load_state_dict(before.state_dict(), strict=False)
    if strange or any(not name.startswith("decider.") for name in missing):
        raise ValueError(f"the pack's writer has {sorted(strange)} in addition, and lacks {sorted(missing)}")
    if (lora is None) != (maps is None):
        raise ValueError(
            "the pack's writer and this training must both have maps beside the model's layers, or neither"
        )
    if lora is not None and maps is not None:
        if lora.settings != maps.settings:
            raise ValueError(f"the pack's writer has maps of {maps.settings}: expected {lora.settings}")
        lora.load_state_dict(maps.state_dict())


def verdicts_of(
    writer: WriterNet, model: Any, questions: Sequence[torch.Tensor], details: torch.Tensor
) -> torch.Tensor:
    """Return Head A's logits [blocks, questions, kinds] of the questions' ids to each block's D [blocks, n, E]."""
    longest, blocks = max(map(len, questions)), len(details)
    ids = torch.stack([torch.nn.functional.pad(one, (0, longest - len(one))) for one in questions])
    question = torch.arange(longest) < torch.tensor([len(one) for one in questions])[:, None]
    found = writer.verdicts(
        embedded(model, ids).repeat(blocks, 1, 1),
        question.to(details.device).repeat(blocks, 1),
        details.repeat_interleave(len(questions), dim=0),
    )
    return found.view(blocks, len(questions), len(KINDS))


def decided_loss(writer: WriterNet, model: Any, facts: Sequence[FactStates], details: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy, in nats, of two decisions, from D [blocks, n, E].

    One is what each block is to each of its questions. The other is which of all blocks is what a question asks for.
    `told` are whole places of three blocks.
    """
    places = [facts[at : at + len(KINDS)] for at in range(0, len(facts), len(KINDS))]
    questions = [own.question for three in places for own in three[0].exercises]
    logits = verdicts_of(writer, model, questions, details)
    kinds, own, right, first = [], [], [], 0
    for number, three in enumerate(places):
        count = len(three[0].exercises)
        for at, one in enumerate(three):
            kinds += [KINDS.index(question.kind) for question in one.block.questions]
            own.append(logits[len(KINDS) * number + at, first : first + count])
        for question in zip(*(one.block.questions for one in three), strict=True):
            right.append(len(KINDS) * number + [one.kind for one in question].index("right"))
        first += count
    device = logits.device
    each = torch.nn.functional.cross_entropy(torch.cat(own), torch.tensor(kinds, device=device))
    return each + torch.nn.functional.cross_entropy(odds(logits).T, torch.tensor(right, device=device))


def misjudged(writer: WriterNet, model: Any, three: Sequence[FactStates], details: torch.Tensor) -> float:
    """Return the share of wrong blocks of a place that rank above the right one, over its questions.

    It looks at the order alone: a decision that was learned by heart may be far too sure.
    """
    own = odds(verdicts_of(writer, model, [one.question for one in three[0].exercises], details))  # [blocks, questions]
    wrong = 0
    for number, column in enumerate(own.T):
        right = [one.block.questions[number].kind for one in three].index("right")
        wrong += int((column >= column[right]).sum()) - 1
    return wrong / (own.shape[1] * (len(three) - 1))


def log_probs_after_details(
    settings: WriterSettings, model: Any, sinks: torch.Tensor, details: torch.Tensor, ids: torch.Tensor, rows: int
) -> torch.Tensor:
    """Return `after_soft_tokens` of D [B, n, E] between its marks; ids are [T] or [B, T]."""
    before, behind = around(settings, sinks, ids)
    return after_soft_tokens(model, before, details, behind, rows)


def around(settings: WriterSettings, sinks: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids before D, and the ids behind it [T] or [B, T], with its marks."""
    opening, closing = (torch.tensor(marks, dtype=torch.int64) for marks in (settings.opening, settings.closing))
    return torch.cat([sinks, opening]), torch.cat([closing.expand(*ids.shape[:-1], -1), ids], dim=-1)


@contextlib.contextmanager
def _checkpointed(model: Any, wanted: bool) -> Iterator[None]:
    """Recompute activations in the backward pass where that is wanted. Models do so only while they train."""
    if not wanted:
        yield
        return
    before = model.training
    enable, disable = checkpointing(model)
    enable({"use_reentrant": False})
    model.train()
    try:
        yield
    finally:
        disable()
        model.train(before)
