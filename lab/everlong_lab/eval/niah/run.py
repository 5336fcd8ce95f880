"""Read a haystack and ask for its facts."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everlong.frame.capacity import check_capacity
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models.profiles import profiles_in
from everlong.models.provenance import provenance
from everlong.text.prompt import with_template_variables
from everlong_lab.corpora.facts import Fact, make_facts
from everlong_lab.corpora.haystack import Haystack, HaystackPiece, Needle, build_haystack
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, gather_books, make_of_enough
from everlong_lab.eval.answers import AnswerFile, deciding, digest, dtype_of, made_with_in
from everlong_lab.eval.forks import PROFILES, READING, fork_of, store_fork
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.niah.config import NiahConfig
from everlong_lab.eval.niah.report import NiahAnswer, NiahReport, summarise
from everlong_lab.eval.resume import holds_text

if TYPE_CHECKING:
    from everlong.config import MemoryConfig
    from everlong.generation.answer import Answer
    from everlong.generation.memory_model import MemoryModel

READ_AS = "reading.jsonl"  # in a folder of kept memories: what its reading goes on with


def run_niah(
    model: str | tuple[Any, Any],
    config: NiahConfig | None = None,
    *,
    memory_config: MemoryConfig | None = None,
    corpus: pathlib.Path | None = None,
    keep: pathlib.Path | None = None,
    log: Log = silent,
    progress: bool = False,
) -> NiahReport:
    """Plant, read and ask. `model` is a name or path to load, or (model, tokenizer).

    The books are the shipped ones, and those of `corpus` where they are too short. Raises ValueError when all together
    are. With `keep` the memory of every length stays in that folder. A reading that was cut short goes on, and what an
    earlier run with the same haystack kept there is asked without reading it again. Raises ValueError when the folder
    is of another haystack, or when a reading would go on in another dtype. A model that is loaded by its name goes on
    in the same dtype. Raises CapacityError when disk or RAM are too small for the longest.
    """
    from everlong.generation.memory_model import MemoryModel
    from everlong.models import resolve

    config = config if config is not None else NiahConfig()
    books = gather_books(int(config.tokens * CHARACTERS_PER_TOKEN), corpus)
    name, network, tokenizer = resolve(model, dtype_of(keep, READ_AS))
    haystack = make_of_enough(books, corpus, lambda books: plan_haystack(books, tokenizer, config))
    check_capacity(network, memory_config, haystack.tokens, None if keep is None else keep / READING)
    if keep is None:
        with profiles_in(None), MemoryModel(network, tokenizer, None, memory_config) as mm:
            return ask_haystack(mm, haystack, config, name=name, log=log, progress=progress)

    def open_memory(folder: pathlib.Path) -> MemoryModel:
        return MemoryModel(network, tokenizer, folder, memory_config)

    with profiles_in(keep / PROFILES):
        return ask_in_kept(open_memory, haystack, config, keep, name=name, log=log, progress=progress)


def plan_haystack(books: Sequence[Any], tokenizer: Any, config: NiahConfig) -> Haystack:
    """Place the facts of every length that has its own, spread evenly over it, the kinds in turn;
    return the haystack.
    """
    facts: list[Fact] = []
    positions: list[int] = []
    for length, own in zip(config.checkpoints(), _facts_by_length(config), strict=True):
        facts += own
        positions += [int((index + 0.5) / len(own) * length) for index in range(len(own))]
    return build_haystack(books, tokenizer, config.checkpoints(), facts, positions, config.seed)


def _facts_by_length(config: NiahConfig) -> list[list[Fact]]:
    """Return the facts to plant for each length, in the order in which they stand; none for a
    length without its own.
    """
    lengths = config.checkpoints()
    first = 0 if config.facts_at_every_length else len(lengths) - 1
    per_kind = config.facts_per_kind
    facts = make_facts(config.kinds, per_kind * (len(lengths) - first), config.seed)
    stock = {kind: [fact for fact in facts if fact.kind == kind] for kind in config.kinds}
    own: list[list[Fact]] = [[] for _ in range(first)]
    for number in range(len(lengths) - first):
        turn = slice(number * per_kind, (number + 1) * per_kind)
        own.append(
            [
                fact
                for facts_of_turn in zip(*(stock[kind][turn] for kind in config.kinds), strict=True)
                for fact in facts_of_turn
            ]
        )
    return own


def _needles_to_ask(haystack: Haystack, config: NiahConfig, number: int) -> list[Needle]:
    """Return which needles are asked for at a checkpoint."""
    parts = haystack.checkpoints[number]
    own = set(_facts_by_length(config)[number])
    if own:
        return [needle for needle in haystack.needles if needle.fact in own]
    readable = (needle for needle in haystack.needles if needle.part < parts)
    return _one_a_depth(readable, haystack.parts[parts - 1].end, config.depths)


def ask_haystack(
    mm: MemoryModel,
    haystack: Haystack,
    config: NiahConfig,
    *,
    name: str = "",
    log: Log = silent,
    progress: bool = False,
) -> NiahReport:
    """Read the parts in turn and ask at every checkpoint. No question or answer enters the memory."""
    from everlong.models import dtype_name

    started = time.monotonic()
    asking = _NiahRun(haystack, config, log)
    read_seconds = 0.0
    done = 0
    for number, parts in enumerate(haystack.checkpoints):
        for part in haystack.parts[done:parts]:
            asking.begins.append(mm.stream_tokens or part.begin)
            read_seconds += _read(mm, part, log, progress=progress)
        done = parts
        asking.at(mm, number)
    seconds = {"total": time.monotonic() - started, "read": read_seconds}
    name = name or str(getattr(mm.model, "name_or_path", ""))
    dtype = dtype_name(mm.model.dtype)
    memory, made = mm.config.to_dict(), [provenance(mm.model)]
    return summarise(asking.asked, config, name, haystack.tokens, seconds, memory, dtype, made)


def ask_in_kept(
    open_memory: Callable[[pathlib.Path], MemoryModel],
    haystack: Haystack,
    config: NiahConfig,
    keep: pathlib.Path,
    *,
    name: str = "",
    log: Log = silent,
    progress: bool = False,
) -> NiahReport:
    """Read on in `keep`/reading.everlong, keep a fork at every checkpoint, then ask each fork.

    Every answer is kept there as soon as it is given, with its settings. What was asked is not asked again, and the
    gold text is asked once for all settings.
    """
    from everlong.models import dtype_name

    started = time.monotonic()
    read_seconds = 0.0
    folders = [fork_of(keep, haystack.parts[parts - 1].end) for parts in haystack.checkpoints]
    if not all(folder.exists() for folder in folders):
        keep.mkdir(parents=True, exist_ok=True)
        with open_memory(keep / READING) as mm:
            _check_same_text(mm, haystack, keep)
            _begin_reading(keep, dtype_name(mm.model.dtype), provenance(mm.model))
            for parts, folder in zip(haystack.checkpoints, folders, strict=True):
                for part in haystack.parts[:parts]:
                    if part.end > mm.stream_tokens:
                        read_seconds += _read(mm, part, log, progress=progress)
                if not folder.exists():
                    store_fork(mm.memory, folder)
    asking = _NiahRun(haystack, config, log, [part.begin for part in haystack.parts])
    memory: dict[str, Any] = {}
    dtype = ""
    for number, folder in enumerate(folders):
        with open_memory(folder) as mm:
            _check_same_text(mm, haystack, folder)
            if not number:
                memory, dtype = mm.config.to_dict(), dtype_name(mm.model.dtype)
                asking.keep(keep, name, dtype, memory, provenance(mm.model))
            asking.at(mm, number)
    seconds = {"total": time.monotonic() - started, "read": read_seconds}
    made = made_with_in(keep / READ_AS, *asking.files)
    return summarise(asking.asked, config, name, haystack.tokens, seconds, memory, dtype, made)


def _check_same_text(mm: MemoryModel, haystack: Haystack, folder: pathlib.Path) -> None:
    """Raise ValueError unless the memory holds the haystack's beginning and nothing else."""
    tokens = mm.stream_tokens
    if not holds_text(mm.memory.core, mm.tokenizer, haystack.parts, tokens):
        raise ValueError(f"{folder} was read from another haystack (seed, lengths, kinds, books): name a new folder")
    if tokens > haystack.tokens:
        raise ValueError(f"{folder} holds {tokens:,} tokens, the haystack has {haystack.tokens:,}: name a new folder")


def _begin_reading(keep: pathlib.Path, dtype: str, made: Mapping[str, Any]) -> None:
    """Keep the dtype, and what the reading is made with. Raises ValueError where reading began in another dtype."""
    began = dtype_of(keep, READ_AS)
    if began not in (None, dtype):
        raise ValueError(f"reading into {keep} began in {began}, this model is in {dtype}: name a new folder")
    AnswerFile(keep / READ_AS, {"dtype": dtype}, made).sign()


def _read(mm: MemoryModel, part: HaystackPiece, say: Log, *, progress: bool) -> float:
    """Read one part; return the seconds that it took."""
    report = mm.read(part.text, source=part.source, progress=progress)
    speed = report.tokens / max(report.seconds, 1e-9)
    say(f"read {part.source}: {report.tokens:,} tokens, {speed:,.0f} a second")
    return report.seconds


@dataclasses.dataclass
class _NiahRun:
    """The questions of a run, asked checkpoint by checkpoint."""

    haystack: Haystack
    config: NiahConfig
    say: Log
    begins: list[int] = dataclasses.field(default_factory=list)  # of the parts, in tokens of the stream
    asked: list[NiahAnswer] = dataclasses.field(default_factory=list)
    answers: AnswerFile | None = None
    gold: AnswerFile | None = None
    files: tuple[pathlib.Path, ...] = ()  # of gold and answers

    def keep(
        self, folder: pathlib.Path, model: str, dtype: str, memory: dict[str, Any], made: Mapping[str, Any]
    ) -> None:
        """Keep answers in files in `folder`, one for each set of settings. What they hold is not asked again."""
        which = {"model": model, "dtype": dtype, **dataclasses.asdict(self.config)}
        if not self.config.chat_template_kwargs:  # so that a run from before this setting can go on
            del which["chat_template_kwargs"]
        gold = folder / f"gold-{digest(which)}.jsonl"
        self.gold = AnswerFile(gold, which, made)
        which["memory"] = {key: str(value) for key, value in deciding(memory).items()}
        answers = folder / f"answers-{digest(which)}.jsonl"
        self.answers = AnswerFile(answers, which, made)
        self.files = (gold, answers)

    def at(self, mm: MemoryModel, number: int) -> None:
        """Ask what is to be asked at checkpoint `number` of a memory that has been read so far."""
        haystack, config = self.haystack, self.config
        parts = haystack.checkpoints[number]
        length = haystack.parts[parts - 1].end
        last = number + 1 == len(haystack.checkpoints)
        chosen = _needles_to_ask(haystack, config, number)
        self.say(f"asking {len(chosen)} questions at {length:,} tokens")
        alike: dict[int, list[Needle]] = {}  # by what one call decides for all its questions
        for needle in chosen:
            kept = self.answers.find(length=length, question=needle.fact.question) if self.answers else []
            if kept:
                self.asked.append(_previous_answer(kept[0]))
            else:
                alike.setdefault(needle.fact.max_new_tokens, []).append(needle)
        for needles in alike.values():
            self._ask(mm, needles, length, with_window=last or config.window_at_every_length)

    def _ask(self, mm: MemoryModel, needles: Sequence[Needle], length: int, *, with_window: bool) -> None:
        """Ask for needles whose answers may be equally long."""
        questions = [needle.fact.question for needle in needles]
        generation: dict[str, Any] = {"max_new_tokens": needles[0].fact.max_new_tokens, **AS_MEASURED}
        generation["chat_template_kwargs"] = self.config.chat_template_kwargs
        oracle_replies = [self._oracle(mm, needle) for needle in needles]
        window_replies: list[str | None] = [None] * len(needles)
        if with_window:
            window_replies = [one.text for one in mm.answer_many(questions, recall=False, **generation)]
        before = time.monotonic()

        def answered(number: int, answer: Answer) -> None:
            nonlocal before
            now = time.monotonic()
            replies = answer, oracle_replies[number], window_replies[number]
            one = self._judged(needles[number], length, *replies, now - before)
            before = now
            self.asked.append(one)
            if self.answers:
                self.answers.add(**dataclasses.asdict(one))

        mm.answer_many(questions, on_answer=answered, **generation)

    def _judged(
        self,
        needle: Needle,
        length: int,
        answer: Answer,
        oracle_reply: str,
        window_reply: str | None,
        seconds: float,
    ) -> NiahAnswer:
        fact = needle.fact
        shift = self.begins[needle.part] - self.haystack.parts[needle.part].begin
        span = (needle.begin + shift, needle.end + shift)
        groups = tuple((recall.span[0], recall.span[1]) for recall in answer.recalled)
        holding = [rank for rank, (first, last) in enumerate(groups, 1) if first <= span[0] and span[1] <= last]
        depth = needle.depth(length)
        return NiahAnswer(
            kind=fact.kind,
            key=fact.key,
            question=fact.question,
            answer=fact.answer,
            length=length,
            depth=depth,
            depth_bin=min(int(depth * self.config.depths), self.config.depths - 1),
            span=span,
            reply=answer.text,
            right=fact.accept(answer.text),
            recalled_rank=holding[0] if holding else None,
            groups=groups,
            oracle_reply=oracle_reply,
            oracle_right=fact.accept(oracle_reply),
            window_reply=window_reply,
            window_right=None if window_reply is None else fact.accept(window_reply),
            seconds=seconds,
        )

    def _oracle(self, mm: MemoryModel, needle: Needle) -> str:
        """Return the model's own reply to the gold text alone; no question is asked twice."""
        fact = needle.fact
        for earlier in self.asked:
            if earlier.question == fact.question:
                return earlier.oracle_reply
        for row in self.gold.find(question=fact.question) if self.gold else []:
            return str(row["reply"])
        passage = self.haystack.gold_passage(needle, self.config.gold_tokens)
        tokenizer = with_template_variables(mm.tokenizer, self.config.chat_template_kwargs)
        reply = answer_from_passage(mm.model, tokenizer, passage, fact.question, fact.max_new_tokens)
        if self.gold:
            self.gold.add(question=fact.question, reply=reply)
        return reply


def _previous_answer(row: dict[str, Any]) -> NiahAnswer:
    groups = tuple((first, last) for first, last in row["groups"])
    return NiahAnswer(**{**row, "span": tuple(row["span"]), "groups": groups})


def _one_a_depth(needles: Iterable[Needle], length: int, depths: int) -> list[Needle]:
    """Return the needle nearest to the middle of every depth bin that has one."""
    best: dict[int, tuple[float, Needle]] = {}
    for needle in needles:
        place = needle.depth(length) * depths
        number = min(int(place), depths - 1)
        distance = abs(place - number - 0.5)
        if number not in best or distance < best[number][0]:
            best[number] = (distance, needle)
    return [best[number][1] for number in sorted(best)]
