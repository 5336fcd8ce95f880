"""MemoryModel: a HuggingFace causal LM with a memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TextIO, TypeVar

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import (
    EverlongError,
    ReadOnlyMemoryError,
)
from everlong.frame.frame import Recalled
from everlong.frame.serve import require_plain
from everlong.generation.answer import Answer
from everlong.generation.answering import Answering
from everlong.generation.custom_generate import generated, prompt_and_decoding, streamer_of_generate
from everlong.generation.one_at_a_time import OneAtATime
from everlong.generation.opening import open_memory
from everlong.generation.perplexity import Perplexity, PerplexityPolicy, nearest_policy, perplexity_of
from everlong.generation.progress import Progress
from everlong.generation.read_pieces import read_pieces
from everlong.generation.rebuild import rebuild
from everlong.memory import Memory
from everlong.memory.origins import happened_tag, origin_of, origin_tag, require_users, text_tag
from everlong.memory.readings import Readings, pieces_of
from everlong.memory.where import EVERYWHERE, Time, Where, names_of, require_where, seconds
from everlong.models.weights import WeightsAtWork
from everlong.retrieval.profile import IndexProfile
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.retrieval.walk import WalkTrace
from everlong.settings import require_choice
from everlong.text.encoding import decode_text, encode, spoken
from everlong.text.messages import Message, asked_of
from everlong.text.prompt import Prompt, build_prompt, require_unicode, start_ids

Signal = Literal["summarize", "retrieve"]

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


@dataclasses.dataclass(frozen=True)
class ReadReport:
    """What a `read` did; all of it is durable."""

    tokens: int  # read now
    blocks: int  # archived now
    seconds: float
    resumed_tokens: int = 0  # that the memory had from an earlier reading that was cut short
    already: int = 0  # tokens of a text that was read before under the same names: nothing is stored twice


def _one_at_a_time(
    method: Callable[Concatenate[MemoryModel, _Given], _Made],
) -> Callable[Concatenate[MemoryModel, _Given], _Made]:
    """A method that needs the frame for itself."""

    @functools.wraps(method)
    def alone(self: MemoryModel, /, *given: _Given.args, **named: _Given.kwargs) -> _Made:
        with self._alone():
            return method(self, *given, **named)

    return alone


class MemoryModel:
    """One stream of text, its frame and its memory. A context manager that closes its memory.

    Thread-safe: one call at a time, and another one, from whatever thread, raises MemoryBusyError. An answer that is
    streamed is a call until it was taken to its end or closed; only the thread that takes it may go on with another
    call, which ends it. What only looks (`text`, `trace`, `last_recalled`, `memory` ...) needs no turn.

    `memory` is a folder (made if it is not there), None for a memory in RAM, or an open `Memory`, which stays open. An
    existing memory is gone on with where it ended; one of another model, RoPE or tokenizer raises ModelMismatchError,
    one that another process or MemoryModel writes MemoryBusyError, a model that cannot be served exactly
    UnsupportedModelError.
    `config` is by default MemoryConfig(), scaled down to a model whose window is smaller. With `answer.recall_mode`
    "text" a model is served, too, whose keys and values cannot be spliced; its memory is then of text alone, which any
    model of the same tokenizer goes on with. `pack` is what was trained for the model (models/pack.py): "auto" takes
    the one that `everlong train` left on this machine, else the one that is shipped for it, if any; a folder that one,
    which raises ModelMismatchError where it is another model's; None is without. After `close` every call raises
    ClosedError. Its attributes `memory` (an open `Memory`), `model` and `tokenizer` are for everyone.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        memory: str | pathlib.Path | Memory | None = None,
        config: MemoryConfig | None = None,
        *,
        pack: str | pathlib.Path | None = "auto",
    ) -> None:
        self._owns_memory = not isinstance(memory, Memory)
        with contextlib.ExitStack() as undo:  # a constructor that fails leaves nothing behind
            opened = open_memory(model, tokenizer, memory, config, pack, self, undo)
            self.memory = opened.memory
            self.model = opened.frame.served.model
            self._weights = WeightsAtWork(self.model)
            self.tokenizer = tokenizer
            self.frame = opened.frame
            self._readings = Readings(self.memory.core, self.frame.os.stream, len(start_ids(tokenizer)))
            self.searcher = Searcher(self.frame, tokenizer, opened.config, opened.prints, opened.encoder)
            undo.pop_all()
        self._answering = Answering(self.frame, self.searcher, tokenizer)
        self.memory.log_messages()
        self._turns = OneAtATime()

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        memory: str | pathlib.Path | Memory | None = None,
        config: MemoryConfig | None = None,
        *,
        pack: str | pathlib.Path | None = "auto",
        **load_arguments: Any,
    ) -> MemoryModel:
        """Load a model and its tokenizer by name or path ("smollm2": the embedded one), then as the constructor."""
        from everlong.models import load

        model, tokenizer = load(name_or_path, **load_arguments)
        return cls(model, tokenizer, memory, config, pack=pack)

    @property
    def config(self) -> MemoryConfig:
        """The settings in use. Those of a search may be set anew, from the next question on: each group says which.

        ValueError for another one, which stands as long as this MemoryModel does.
        """
        return self.searcher.config

    @config.setter
    def config(self, config: MemoryConfig) -> None:
        if fixed := config.differs_for_good(self.searcher.config):
            raise ValueError(f"{', '.join(fixed)}: fixed when a MemoryModel is made; make another one over its memory")
        if "embedding" in config.search.index and self.searcher.embedder is None:
            raise ValueError("index: this MemoryModel was made without the part embedding and has no encoder")
        self.frame.parts.change_settings(config.parts)
        self.searcher.config = config

    # --- reading

    @_one_at_a_time
    def read(
        self,
        text: str | pathlib.Path | TextIO | Iterable[str],
        source: str = "",
        *,
        origin: str | os.PathLike[str] | None = None,
        tags: str | Sequence[str] = (),
        happened: Time | None = None,
        again: bool = False,
        more: bool = False,
        special_tokens: bool = False,
        progress: Progress = False,
    ) -> ReadReport:
        """Read text into the memory: a str, a file, or pieces of one text, cut anywhere. Its end closes the last block.

        Everything reported is durable. `source` names it in citations, a file's name by default; by it and by `tags`,
        one or several, a question may be narrowed (`where=`). `origin` tells it from others of that name, by default
        the path of its file. `happened` is when what it tells of happened, beside when it is archived:
        `Where(happened_after=)` and times that a question names go by it. A text that was read before under the same
        names is recognised, and said to be there `already`, unless it comes as pieces that are made while they are
        read; `again=True` reads it anew. A reading that was cut short, by Ctrl-C or by the death of the process, goes
        on where it stopped when the same text is read under the same name: what the memory has of it is not read again.
        `more` says that this text is one of several, and not the last: until that one was read to its end, none of them
        is read again. What spells a special token of the
        tokenizer is text like any other; with `special_tokens` it is that token, as in a conversation that
        a chat template wrote.
        `progress=True` draws a bar on standard error; a function is called after each chunk, and at the end, with the
        tokens that were read by now and those that there are, None until all of the text was tokenized; what it raises
        ends the reading, as Ctrl-C does.

        Raises TypeError and ValueError for names that are no text, before anything is read; ValueError for a file that
        is not UTF-8, MemoryIOError when the disk refuses, CapacityError for a memory in RAM that is full: what was
        archived before stays, the block that was refused is not in the memory; and ReadOnlyMemoryError. However a
        reading ends, what is archived of it bears its name.
        """
        if self.memory.core.read_only:
            raise ReadOnlyMemoryError("nothing is read into a memory that was opened for reading")
        pieces, name, path = pieces_of(text)
        source, origin = names_of([source or name, path if origin is None else origin_of(origin)])
        tags = tuple(names_of(tags))
        require_users(tags)
        when = seconds(happened)
        mark = text_tag(pieces, source, origin, tags, special_tokens=special_tokens, happened=when)
        started = time.monotonic()
        self.frame.end_of_text()  # what stood before belongs to another source
        if self.frame.os.recalled_tokens > 0:  # came back for a question: the text is not read in its light
            self.frame.clear_recalled()
        self._readings.begin(source, self.frame.text_begin, mark, again=again)
        finished = False
        blocks = self.frame.archived_blocks
        own = (
            *([] if when is None else [happened_tag(when)]),
            *([origin_tag(origin)] if origin else []),
            *([mark] if mark is not None else []),
        )
        self.frame.source, self.frame.tags = source, (*tags, *own)
        self._answering.text_was_read()
        try:
            tokens = read_pieces(
                self.frame,
                self._readings,
                self.tokenizer,
                pieces,
                source,
                special_tokens=special_tokens,
                progress=progress,
            )
            self.frame.end_of_text()
            finished = True
        except BaseException:
            with contextlib.suppress(EverlongError):  # the first error is the one to tell
                self.frame.end_of_text()
            raise
        finally:
            self.frame.source, self.frame.tags = "", ()
            self._readings.end(self.frame.os.archived_until, finished=finished, more=more)
        self.frame.checkpoint()
        took = time.monotonic() - started
        archived = self.frame.archived_blocks - blocks
        return ReadReport(tokens, archived, took, self._readings.resumed, self._readings.already)

    @_one_at_a_time
    def rebuild(self, old: str | pathlib.Path | Memory, *, progress: Progress = False) -> ReadReport:
        """Make this memory from the token ids of another: one that another model read, or this one under an adapter.

        Every block of `old`, a folder or an open `Memory`, which stays as it is, is read again, and keeps its source,
        tags, role and time; forgotten ones are left out, and streams follow each other. The tokenizer has to be the
        same. This memory is a new one, or one whose rebuilding was cut short: that is gone on with, and
        `resumed_tokens` says what was there. `progress` is as for `read`.

        Raises ModelMismatchError for ids of another tokenizer, ValueError where this memory holds anything else than
        the beginning of `old`, and what `read` does.
        """
        if self.memory.core.read_only:
            raise ReadOnlyMemoryError("nothing is read into a memory that was opened for reading")
        started, archived = time.monotonic(), self.frame.archived_blocks
        self._answering.text_was_read()
        with contextlib.ExitStack() as opened:
            if not isinstance(old, Memory):
                old = opened.enter_context(Memory.open(old, read_only=True))
            tokens, there = rebuild(self.frame, old, start_ids(self.tokenizer), progress=progress)
        blocks = self.frame.archived_blocks - archived
        return ReadReport(tokens, blocks, time.monotonic() - started, there)

    def _encode(self, text: str) -> torch.Tensor:
        require_unicode(text)
        return encode(self.tokenizer, text)

    # --- asking

    def generate(
        self,
        question: str | None = None,
        max_new_tokens: int | None = None,
        *,
        messages: Sequence[Message] | None = None,
        system: str | None = None,
        recall: bool | Sequence[_core.PageRef | Recall] = True,
        remember: bool = True,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        where: Where = EVERYWHERE,
        streamer: Any = None,
        **generation: Any,
    ) -> Answer:
        """Answer from the memory.

        A question is one turn of a user. The first one of an empty memory is the conversation that the tokenizer's chat
        template makes of it, with the template's own system turn; a later one goes on from what was read and said.
        `system` is a system message before it. `messages` are several turns instead, as `{"role": "user", "content":
        "..."}`, the last one a user's, which is answered. All of them, and the system message, go behind the stream as
        if they had been said here, and are remembered with the answer: what an earlier call said is there already, and
        is not given again.

        `recall=False` leaves the window alone, pages, or what `recall` found, put back
        these, first to last, as far as there is room, whatever the policy;
        `remember` keeps question and answer as blocks of their own: what was asked comes back for no question, what was
        said counts less than what was read, unless `where` names roles (`Where`);
        `remember=False` keeps nothing of question and answer but their `trace`, and of a memory that was opened for
        reading they stay in the window only; `chat=False` takes the question as plain text to go on from, and
        `chat_template_kwargs` are variables of the tokenizer's chat template (`{"enable_thinking": False}`). What comes
        back is from `where` alone; of a conversation since the last `read` the newest turns stand before it, whatever
        `where` says (`MemoryConfig.conversation_tokens`). A
        `streamer` of transformers gets the prompt and every token, and is told the end once this MemoryModel is free
        for the next call. Further arguments are those of transformers' `generate`; what they leave open the model's own
        `generation_config` says, and where that says nothing the answer is greedy and of 64 tokens at most.

        Raises ValueError for an empty question, for messages without a chat template, and for a way of decoding that is
        neither greedy search nor sampling; TypeError for what is no question; as `read` does, CapacityError and
        MemoryIOError where the memory has no room for what is to be remembered.
        """
        with _told_the_end(streamer), self._alone():
            require_where(where)
            prompt = self._prompt(asked_of(question, messages, system), chat, chat_template_kwargs)
            answer = self._answering.answer(prompt, max_new_tokens, recall, where, streamer, generation)
            # Before the streamer may ask the next question, whose recalls are others.
            return self._answering.whole(answer, remember=remember)

    def stream(
        self,
        question: str | None = None,
        max_new_tokens: int | None = None,
        *,
        messages: Sequence[Message] | None = None,
        system: str | None = None,
        recall: bool | Sequence[_core.PageRef | Recall] = True,
        remember: bool = True,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        where: Where = EVERYWHERE,
        streamer: Any = None,
        **generation: Any,
    ) -> Generator[str]:
        """As `generate`, but yields the answer's text piece by piece.

        One question at a time: an answer that was not taken to its end ends where the thread that took it makes another
        call of this MemoryModel (but for `signal`), as if it had been closed; another thread's call meanwhile raises
        MemoryBusyError. What was said of it by then stays said, but for the newest token, which enters the window when
        the next one is asked for.
        """
        with contextlib.ExitStack() as refused:
            refused.enter_context(_told_the_end(streamer))
            self._turns.require_open()
            require_where(where)
            asked = asked_of(question, messages, system)
            refused.pop_all()

        def pieces() -> Generator[str]:
            with _told_the_end(streamer), self._turns.streaming(itself) as taken_up:
                self._require_ready()
                prompt = self._prompt(asked, chat, chat_template_kwargs)
                answer = self._answering.answer(prompt, max_new_tokens, recall, where, streamer, generation)
                with (
                    self._answering.keeping(remember=remember),
                    contextlib.closing(answer),
                    contextlib.closing(spoken(self.tokenizer, answer)) as said,
                ):
                    for piece in said:
                        yield piece
                        taken_up()

        streamed = pieces()
        itself = weakref.ref(streamed)  # weak: a generator that nobody holds any more is closed at once
        return streamed

    @_one_at_a_time
    def answer_many(
        self,
        /,
        questions: Iterable[str],
        max_new_tokens: int | None = None,
        *,
        system: str | None = None,
        recall: bool = True,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        where: Where | Sequence[Where] = EVERYWHERE,
        on_answer: Callable[[int, Answer], None] | None = None,
        **generation: Any,
    ) -> list[Answer]:
        """Answer each question from where the stream stands now, as if it were the only one; nothing is remembered.

        `where` is for all, or one for each. `on_answer` is told the number of an answer, from 0, and the answer as soon
        as it is there, before the next question is read. What else is given is as for `generate`, and so is what is
        raised; no question is read before all of them were looked at.
        """
        if isinstance(questions, str):
            raise TypeError("questions is a str: several are a list of them, one is for generate")
        asked = [asked_of(question, None, system) for question in questions]
        chosen = [where] * len(asked) if isinstance(where, Where) else list(where)
        if len(chosen) != len(asked):
            raise ValueError(f"{len(chosen)} where for {len(asked)} questions: expected one, or one for each")
        for one in chosen:
            require_where(one)
        prompts = [self._prompt(one, chat, chat_template_kwargs) for one in asked]
        answers: list[Answer] = []
        for prompt, one in zip(prompts, chosen, strict=True):
            answer = self._answering.answer(prompt, max_new_tokens, recall, one, None, generation)
            answers.append(self._answering.whole(answer, remember=False))
            if on_answer is not None:
                on_answer(len(answers) - 1, answers[-1])
        return answers

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        *,
        recall: bool | Sequence[_core.PageRef | Recall] = True,
        remember: bool = True,
        where: Where = EVERYWHERE,
        stop_strings: str | list[str] | None = None,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """What transformers' `generate` calls: `mm.model.generate(**inputs, custom_generate=mm.decode)`.

        The prompt `input_ids` [1, n], which the caller made (no chat template is applied), goes behind the stream, and
        is answered over the frame as `generate` does, by transformers' own processors and stops. `recall`, `remember`
        and `where` may stand among the arguments of `model.generate`. Returns what that returns: ids [1, n + answer].
        Stop strings are given in the call; transformers wants a tokenizer for those of a generation_config and hands it
        to no custom_generate. ValueError for a batch, padding, beams, and what an answer has no place for.
        """
        streamer = streamer if streamer is not None else streamer_of_generate()
        with _told_the_end(streamer), self._alone():
            require_where(where)
            prompt, decoding = prompt_and_decoding(
                self.model,
                self.tokenizer,
                model,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                stop_strings,
                model_kwargs,
            )
            answer = self._answering.respond(prompt, decoding, recall, where, streamer)
            return generated(input_ids, self._answering.whole(answer, remember=remember).token_ids, generation_config)

    @property
    def last_recalled(self) -> tuple[Recall, ...]:
        """What came back for the newest `generate` or `stream`: best first, then what came while it was answered."""
        return self._answering.recalled

    @property
    def last_walk(self) -> WalkTrace | None:
        """The walk that took part in the newest question's search: `Answer.walk` of a stream."""
        return self._answering.walk

    @property
    def last_confidence(self) -> float | None:
        """How likely the answer is among what came back for the newest question: `Answer.confidence` of a stream."""
        return self._answering.confidence

    @_one_at_a_time
    def recall(
        self,
        question: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        system: str | None = None,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        where: Where = EVERYWHERE,
    ) -> tuple[Recall, ...]:
        """What a question would bring back from `where`, best first, without answering. Nothing of it is kept."""
        require_where(where)
        prompt = self._prompt(asked_of(question, messages, system), chat, chat_template_kwargs)
        with self.frame.branch():
            self.frame.clear_recalled()
            tapped = self.searcher.tap(prompt)
            self.frame.begin_prompt(lambda action: Recalled())
            return self.searcher.citing.found(
                self.searcher.find(prompt, where, tapped).chosen(self.config.search.decisive)
            )

    def signal(self, signal: Signal) -> None:
        """What a control token says (text/control.py), by call: end the open block, or recall for the newest tokens.

        "retrieve" needs the policy "signal", and waits while what came back last is protected. While an answer is
        streamed it brings back what that answer may: from its `where`, or nothing where it has `recall=False` or pages.
        The thread whose call is at work may say it, between the pieces of its answer or from a streamer; from another
        thread, or in the middle of a step of the frame (an observer of blocks), it raises MemoryBusyError.
        """
        self._turns.require_open()
        require_choice("signal", signal, Signal)  # before the step of the frame that it would cut short
        with self._turns.signalling():
            self._answering.raise_signal(signal)

    def _prompt(self, asked: str | Sequence[Message], chat: bool, variables: Mapping[str, Any] | None) -> Prompt:
        """A question as it goes on from the newest token: a turn that was ended is not ended again."""
        beginning = self.frame.os.stream_end == 0
        prompt = build_prompt(self.tokenizer, asked, first=beginning, chat=chat, chat_template_kwargs=variables)
        first = int(prompt.ids[0])
        ended = first == self.frame.last_id and first in self.tokenizer.all_special_ids and prompt.question.start > 0
        return prompt.without_first() if ended else prompt

    # --- calibration

    @property
    def profile(self) -> IndexProfile | None:
        """The retrieval heads in use: this memory's, or those of the model's earlier one.

        None before the first question or while the memory is too small to tell.
        """
        return self.searcher.heads.profile

    @_one_at_a_time
    def calibrate(self, *, seed: int = 0) -> IndexProfile:
        """Find the model's retrieval heads on this memory's own text; keep them, for the model's next memory too.

        EverlongError in a memory of text alone: it has no keys.
        """
        return self.searcher.heads.look(seed=seed)

    # --- perplexity

    @_one_at_a_time
    def perplexity(self, text: str, *, policy: PerplexityPolicy | None = None, seed: int = 0) -> Perplexity:
        """How well the text is predicted after all that was read. Nothing is written.

        Every `answer.recent_every` tokens the recalled zone is filled anew, as `policy` says: "recent" the newest
        archived blocks, "prompt" what the newest tokens' own queries find, "random" as many random pages as they find,
        "window" nothing; None as configured.
        """
        require_choice("policy", policy or "prompt", PerplexityPolicy)
        policy = policy or nearest_policy(self.config.answer.policies)
        return perplexity_of(self._encode(text), self.frame, self.searcher, self.config, policy, seed)

    # --- life

    def text(self, block_id: int) -> str:
        """What a block of `memory.blocks()` says, without special tokens.

        It is decoded alone: a character whose tokens lie in two blocks shows as U+FFFD in both. MemoryNotFoundError for
        a block that there is not, or that was forgotten.
        """
        self._turns.require_open()
        block = self.memory.core.block(block_id)
        return decode_text(self.tokenizer, self.memory.core.token_ids(block.stream, block.begin, block.end).tolist())

    @property
    def stream_tokens(self) -> int:
        """Tokens read and generated so far."""
        return self.frame.os.stream_end

    def trace(self) -> list[dict[str, Any]]:
        """What the Memory OS decided and when, oldest first, as plain values; `everlong.pictures.timeline` draws it.

        Also for what is not remembered (`remember=False`, a search, a perplexity): such an event says in `branched_at`
        where the stream stood then, and no other has one. Since this MemoryModel was made; of a long life the newest
        events.

        Each has `what` was decided, when (`stream_position`), in which `state`, and for which tokens (`begin`, `end`,
        `tokens`) of which `stream`. An "archive" says in `ended_by` why the block ends: "length", "sentence",
        "paragraph", "answer" (which begins behind it), "turn", "topic", "signal", "question" or "text" (its end). A
        "recall" says in `trigger` what asked for it, and of a tombstone in `begin` and `end` which one; a "recall
        waits" what would, were it not for what came back last. A "restore" lists in `restored` what came back (block,
        stream, begin, end, and `detail_slots` of a block that came as Detail Tokens), and "left out" counts what was
        found and did not fit. Signals are there as heard, and as "signal passed over". Where the Walker reads ahead
        there is a "prefetch" behind what was decided at the same place of the stream or before: in `prefetched` the
        pages (block, page) that were read into RAM, and how many of them were `used`, in that they came back since.
        """
        return self.frame.parts.told(self.frame.os.trace())

    def close(self) -> None:
        """Archive what is not archived yet, take the hooks off the model, close the memory. Twice does nothing.

        MemoryBusyError while another thread's call is at work, or an answer that it streams: then nothing is closed.
        A memory in RAM whose frame was broken stays open, as `memory`: another MemoryModel may go on with it.
        """
        with self._turns.closing() as open_until_now, contextlib.ExitStack() as last:
            if open_until_now:  # whatever fails, in this order from below
                last.callback(self._close_memory)
                last.callback(self.searcher.close)
                last.callback(self.frame.close)

    def _close_memory(self) -> None:
        self.memory.end_writing(self)
        if self._owns_memory and not (self.frame.broken and self.memory.path is None):
            self.memory.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, a call that needs the frame; MemoryBusyError while another is at work."""
        with self._turns.alone():
            self._require_ready()
            yield

    def _require_ready(self) -> None:
        self.frame.require_whole()
        require_plain(self.model)
        self._weights.require_unchanged()

    def __enter__(self) -> MemoryModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _told_the_end(streamer: Any) -> Iterator[None]:
    """A streamer hears the end when all is done, whatever came of it: who waits for it may ask the next question."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()
