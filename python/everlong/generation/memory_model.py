"""MemoryModel: a HuggingFace causal LM with a memory."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TextIO

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.config.settings import require_choice
from everlong.frame.frame import Frame
from everlong.generation.answer import Answer
from everlong.generation.answer_generator import AnswerGenerator, ends_streamer
from everlong.generation.at_exit import close_at_exit
from everlong.generation.custom_generate import generated, prompt_and_decoding, streamer_of_generate
from everlong.generation.exclusive import CallGuard, exclusive
from everlong.generation.file_input import FileTexts
from everlong.generation.opening import open_memory, require_ready
from everlong.generation.passage_search import PassageSearch
from everlong.generation.perplexity import Perplexity, PerplexityPolicy, nearest_policy, perplexity_of
from everlong.generation.progress import Progress
from everlong.generation.reading import Reader, ReadReport
from everlong.generation.survey import Survey
from everlong.generation.sync import FolderSync
from everlong.generation.text_stream import StopFilter, TextStream
from everlong.generation.validation import require_generation_arguments
from everlong.memory import Memory
from everlong.memory.where import EVERYWHERE, Time, Where, require_where
from everlong.models.tokenizer_check import TokenizerCheck
from everlong.models.weights import WeightsCheck
from everlong.retrieval.profile import IndexProfile
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.retrieval.walk import WalkTrace
from everlong.text.encoding import decode_text, encode, incremental_decode_in_steps
from everlong.text.messages import Message, question_of
from everlong.text.prompt import Prompt, require_unicode

Signal = Literal["summarize", "retrieve"]


class MemoryModel(FolderSync, Survey, PassageSearch):
    """One stream of text, its frame and its memory. A context manager that closes its memory.

    Thread-safe: one call at a time. Another call, from whatever thread, raises MemoryBusyError meanwhile. A streamed
    answer is a call until it was taken to its end or closed. Only the thread that takes it may make another call, which
    ends it. Calls that only look (`text`, `trace`, `last_recalled`, `memory` ...) work at any time. After `close` every
    call raises ClosedError.

    `memory` is a folder (made if it is not there), None for a memory in RAM, or an open `Memory`, which stays open. An
    existing memory goes on where it ended. ModelMismatchError for a memory of another model, RoPE or tokenizer;
    MemoryBusyError for one that another process or MemoryModel writes; UnsupportedModelError for a model that cannot be
    served exactly.

    `config` is by default MemoryConfig(), scaled down for a model with a smaller window. With `answer.recall_mode`
    "text" a model whose keys and values cannot be spliced is served, too. Its memory is then of text alone, and any
    model with the same tokenizer may go on with it.

    `pack` is what was trained for the model (models/pack.py). "auto" takes the one that `everlong train` left on this
    machine, else the one that is shipped for the model, if any. A folder names one; ModelMismatchError where it is
    another model's. None is without. The attributes `memory` (an open `Memory`), `model` and `tokenizer` are public.
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
            weights, words = WeightsCheck(self.model), TokenizerCheck(tokenizer)
            self.tokenizer = tokenizer
            self.frame = opened.frame
            self.searcher = Searcher(self.frame, tokenizer, opened.config, opened.prints, opened.encoder)
            undo.pop_all()
        self._answering = AnswerGenerator(self.frame, self.searcher, tokenizer)
        self._reader = Reader(self.frame, tokenizer, self._answering.note_reading)
        self.memory.log_messages()
        self._guard = CallGuard(functools.partial(_ready, self.frame, weights, words, self._answering))
        close_at_exit(self)

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
        """The settings in use. Settings of a search may be set anew, from the next question on; each group says which.

        ValueError for any other change: those settings stand as long as this MemoryModel does.
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

    @exclusive
    def read(
        self,
        text: str | os.PathLike[str] | TextIO | Iterable[str] | FileTexts,
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

        With the extra `files` a file may be a PDF, a web page, mail and [much else](../guides/files.md). It is cited by
        page or other `place`. `FileTexts` is a file that was parsed before.

        Everything reported is durable. `source` names the text in citations, by default by its file's name. A question
        may be narrowed by it and by `tags`, one or several (`where=`). `origin` tells it from other texts of that name,
        by default by its file's path. `happened` is when the events in it happened, by default what its file says.
        `Where(happened_after=)` and times in a question go by it.

        A text that was read before under the same names is recognised and reported as `already` there. Pieces that are
        made while they are read are not recognised. `again=True` reads it anew. Ctrl-C or the death of the process may
        cut a reading short. It goes on where it stopped when the same text is read under the same name. What the memory
        has of it is not read again. `more` says that this text is one of several, and not the last. Until the last was
        read to its end, none of them is read again.

        What spells a special token of the tokenizer is ordinary text. With `special_tokens` it is that token, as in a
        conversation that a chat template wrote. `progress=True` draws a bar on standard error, or without a terminal
        writes a line every ten seconds. A function is called after each chunk, and at the end, with the tokens read so
        far and those in all: None until all was tokenized. What the function raises ends the reading, like Ctrl-C.

        Raises TypeError and ValueError for names that are no text, before anything is read. Raises ValueError for a
        file without text, MemoryIOError when the disk refuses, CapacityError for a memory in RAM that is full, and
        ReadOnlyMemoryError. What was archived before an error stays, and the refused block is not in the memory.
        However a reading ends, what is archived of it bears its name.
        """
        flags: dict[str, Any] = {"again": again, "more": more, "special_tokens": special_tokens}
        return self._reader.read(text, source, origin, tags, happened, progress, **flags)

    @exclusive
    def rebuild(self, old: str | pathlib.Path | Memory, *, progress: Progress = False) -> ReadReport:
        """Make this memory from the token ids of another: one that another model read, or this one under an adapter.

        `old` is a folder or an open `Memory`, and stays as it is. Every block of it is read again, and keeps its
        source, tags, role and time. Forgotten blocks are left out, and streams follow each other. The tokenizer must be
        the same. This memory is a new one, or one whose rebuilding was cut short. Such a rebuilding goes on, and
        `resumed_tokens` says what was there. `progress` is as for `read`.

        Raises ModelMismatchError for ids of another tokenizer, ValueError where this memory holds anything but the
        beginning of `old`, and what `read` raises.
        """
        return self._reader.rebuild(old, progress=progress)

    def encode(self, text: str) -> torch.Tensor:
        """Return the token ids [n] int64 of a text as `read` sees it: what spells a special token is ordinary text.

        Raises TypeError for what is no str, and ValueError for half of a surrogate pair.
        """
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

        A question is one turn of a user. In an empty memory the tokenizer's chat template makes a conversation of it,
        with the template's own system turn. A later question goes on from what was read and said. `system` is a system
        message before it. `messages` are several turns in place of a question, as `{"role": "user", "content": "..."}`.
        The last one is a user's, and is answered. All of them, and the system message, go behind the stream as if they
        had been said here, and are remembered with the answer. Do not give again what an earlier call said: it is there
        already.

        `recall=False` leaves the window as it is. Pages, or what `recall` found, are put back first to last, as far as
        there is room, whatever the policy. The newest turns since the last `read` stand before what comes back
        (`answer.conversation_tokens`). `where` hides all other text, wherever it stands, but question and system.

        `remember` keeps question and answer as blocks of their own. Unless `where` names roles (`Where`), questions
        never come back, and answers count less than what was read. `remember=False` keeps nothing of them but their
        `trace`. A memory that was opened for reading keeps them in the window only.

        `chat=False` takes the question as plain text to go on from. `chat_template_kwargs` are variables of the
        tokenizer's chat template (`{"enable_thinking": False}`). A `streamer` of transformers gets the prompt and every
        token. It is told the end once this MemoryModel is free for the next call. Further arguments are those of
        transformers' `generate`. What they leave open comes from the model's `generation_config`; where that says
        nothing, decoding is greedy, with at most 64 tokens.

        Raises ValueError for an empty question, for messages without a chat template, and for decoding that is neither
        greedy search nor sampling; TypeError for what is no question or no argument. Raises CapacityError and
        MemoryIOError, like `read`, where the memory has no room for what is to be remembered.
        """
        with ends_streamer(streamer), self._guard.exclusive():
            require_generation_arguments(where, generation, max_new_tokens)
            prompt = self._answering.prompt(question_of(question, messages, system), chat, chat_template_kwargs)
            answer = self._answering.answer(prompt, max_new_tokens, recall, where, streamer, generation)
            # Before the streamer may ask the next question, which has other recalls.
            return self._answering.whole(answer, where, remember=remember)

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
        """Do as `generate`, but yield the answer's text piece by piece.

        One question at a time. An answer that was not taken to its end ends when its thread makes another call of this
        MemoryModel (except `signal`), as if it had been closed. Another thread's call meanwhile raises MemoryBusyError.
        What was said by then stays, except the newest token, which enters the window when the next one is asked for.
        """
        with contextlib.ExitStack() as refused:
            refused.enter_context(ends_streamer(streamer))
            self._guard.require_open()
            require_generation_arguments(where, generation, max_new_tokens)
            questions = question_of(question, messages, system)
            refused.pop_all()

        def pieces() -> Generator[str]:
            with ends_streamer(streamer), self._guard.streaming(itself) as taken_up:
                prompt = self._answering.prompt(questions, chat, chat_template_kwargs)
                answer = self._answering.answer(prompt, max_new_tokens, recall, where, streamer, generation)
                with (
                    self._answering.remembering(where, remember=remember),
                    contextlib.closing(answer),
                    contextlib.closing(incremental_decode_in_steps(self.tokenizer, answer)) as said,
                ):
                    for piece in filter(None, said):
                        yield piece
                        taken_up()

        streamed = pieces()
        itself = weakref.ref(streamed)  # weak: a generator that nobody holds any more is closed at once
        return streamed

    def in_steps(
        self,
        messages: Sequence[Message],
        max_new_tokens: int | None = None,
        *,
        prompt: Prompt | None = None,
        cuts: StopFilter | None = None,
        recall: bool = True,
        remember: bool = True,
        where: Where = EVERYWHERE,
        streamer: Any = None,
        progress: Callable[[int], None] | None = None,
        **generation: Any,
    ) -> Generator[str]:
        """Do as `stream`, for one who has more to do: yield an empty piece after each step that gives no text, too.

        A step computes one token, or `frame.chunk_tokens` of a long prompt. `prompt`: what `prompt_of`
        (generation/answer_generator.py) made of the messages. `cuts` ends the answer at a place in its text; then
        exactly what was sent is remembered. `progress` is told the tokens of the prompt, chunk by chunk. An answer that
        is closed before its end leaves the frame as it was, or with what was computed of it, and is read again by
        nobody.
        """
        require_generation_arguments(where, generation, max_new_tokens)
        questions = question_of(None, messages, None)
        sent = TextStream(self.tokenizer, cuts)

        def pieces() -> Generator[str]:
            with ends_streamer(streamer), self._guard.streaming(itself) as taken_up:
                whole = self._answering.prompt(questions, chat=True, variables=None, made=prompt)
                answer = self._answering.answer(
                    whole, max_new_tokens, recall, where, streamer, generation, progress, steps=True
                )
                with contextlib.closing(self._answering.in_steps(answer, where, sent, remember=remember)) as steps:
                    for piece in steps:
                        yield piece
                        taken_up()

        streamed = pieces()
        itself = weakref.ref(streamed)
        return streamed

    @exclusive
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
        """Answer each question from where the stream stands now, as if it were the only one. Nothing is remembered.

        `answer.at_once` of them are at work at once, and what they compute is computed in one forward, where the model
        can (kv_cache/batching.py). Answers are those of one after another, to rounding. Sampled ones are drawn in
        another order, the same every time. `where` is for all, or one for each. `on_answer` is called with an
        answer's number, from 0, and the answer, in order. Other arguments and errors are as for `generate`. All
        questions are checked before any is read.
        """
        if isinstance(questions, str):
            raise TypeError("questions is a str: give a list of questions, or call generate with one")
        asked = [question_of(question, None, system) for question in questions]
        chosen = [where] * len(asked) if isinstance(where, Where) else list(where)
        if len(chosen) != len(asked):
            raise ValueError(f"{len(chosen)} where for {len(asked)} questions: expected one, or one for each")
        for one in chosen:
            require_generation_arguments(one, generation, max_new_tokens)
        prompts = [self._answering.prompt(one, chat, chat_template_kwargs) for one in asked]
        return self._answering.answer_many(prompts, max_new_tokens, recall, chosen, generation, on_answer)

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
        """Decode for transformers' `generate`: `mm.model.generate(**inputs, custom_generate=mm.decode)`.

        The caller makes the prompt `input_ids` [1, n]; no chat template is applied. It goes behind the stream and is
        answered over the frame as in `generate`, with transformers' own processors and stops. `recall`, `remember` and
        `where` may stand among the arguments of `model.generate`. Returns what that returns: ids [1, n + answer].

        Give stop strings in the call. For those of a generation_config transformers wants a tokenizer, and hands it to
        no custom_generate. ValueError for a batch, padding, beams, and what an answer has no place for.
        """
        streamer = streamer if streamer is not None else streamer_of_generate()
        with ends_streamer(streamer), self._guard.exclusive():
            require_where(where)
            given = (input_ids, logits_processor, stopping_criteria, generation_config, stop_strings, model_kwargs)
            prompt, decoding = prompt_and_decoding(self.model, self.tokenizer, model, *given)
            answer = self._answering.respond(prompt, decoding, recall, where, streamer)
            whole = self._answering.whole(answer, where, remember=remember)
            return generated(input_ids, whole.token_ids, generation_config)

    @property
    def last_recalled(self) -> tuple[Recall, ...]:
        """What came back for the newest `generate` or `stream`: best first, then what came during the answer.

        What was forgotten since is left out.
        """
        return tuple(filter(self.searcher.citing.is_there, self._answering.recalls.recalled))

    @property
    def last_walk(self) -> WalkTrace | None:
        """The walk in the newest question's search: `Answer.walk` of a stream."""
        return self._answering.recalls.walk

    @property
    def last_confidence(self) -> float | None:
        """How likely what came back for the newest question holds the answer: `Answer.confidence` of a stream."""
        return self._answering.recalls.confidence

    @exclusive
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
        """Return what a question would bring back from `where`, best first, without answering. Keep nothing."""
        require_where(where)
        prompt = self._answering.prompt(question_of(question, messages, system), chat, chat_template_kwargs)
        with self.frame.branch():
            self.frame.clear_recalled()
            self._answering.narrow(where)
            tapped = self.searcher.tap(prompt)
            for _ in self.frame.begin_prompt():  # what is decided here is traced, and nothing comes back
                self.frame.bring_back(())
            found = self.searcher.find_sentences(prompt, where, tapped).chosen(self.config.search.decisive)
            alone = self.searcher.quotes(found, where) if self.config.answer.quotes_alone else None
            return self.searcher.citing.found(found, alone)

    def signal(self, signal: Signal) -> None:
        """Do what a control token says (text/control.py): end the open block, or recall for the newest tokens.

        "retrieve" needs the policy "signal", and waits while what came back last is protected. While an answer is
        streamed it brings back what that answer may: from its `where`, or nothing where it has `recall=False` or pages.
        The thread whose call is at work may send it, between the pieces of its answer or from a streamer.
        MemoryBusyError from another thread, and in the middle of a step of the frame, as in an observer of blocks.
        """
        self._guard.require_open()
        require_choice("signal", signal, Signal)  # before the step of the frame that it would cut short
        with self._guard.between_steps():
            self._answering.raise_signal(signal)

    # --- calibration

    @property
    def profile(self) -> IndexProfile | None:
        """The retrieval heads in use: this memory's, or those of the model's earlier one.

        None before the first question, and while the memory is too small to tell.
        """
        return self.searcher.heads.profile

    @exclusive
    def calibrate(self, *, seed: int = 0) -> IndexProfile:
        """Find the model's retrieval heads on this memory's own text. Keep them, for the model's next memory too.

        EverlongError in a memory of text alone: it has no keys.
        """
        return self.searcher.heads.look(seed=seed)

    @exclusive
    def perplexity(self, text: str, *, policy: PerplexityPolicy | None = None, seed: int = 0) -> Perplexity:
        """Return how well the text is predicted after all that was read. Nothing is written.

        Every `answer.recent_every` tokens the recalled zone is filled anew, as `policy` says; None: as configured.
        "recent" fills it with the newest archived blocks, "prompt" with what the newest tokens' own queries find.
        "random" fills it with as many random pages, "window" with nothing.
        """
        require_choice("policy", policy or "prompt", PerplexityPolicy)
        policy = policy or nearest_policy(self.config.answer.policies)
        return perplexity_of(self.encode(text), self.frame, self.searcher, self.config, policy, seed)

    # --- life

    def exclusive_calls(self) -> contextlib.AbstractContextManager[None]:
        """Wrap several calls of this thread, so that none of another thread comes between two of them.

        `with mm.exclusive_calls():` is for who looks, and changes what depends on it. MemoryBusyError where another
        call is at work, and for another task of the thread's asyncio loop. Within it no answer is streamed, and nothing
        is closed: they raise MemoryBusyError, too.
        """
        return self._guard.several()

    def text(self, block_id: int) -> str:
        """Return what a block of `memory.blocks()` says, without special tokens.

        It is decoded alone: a character whose tokens lie in two blocks shows as U+FFFD in both. MemoryNotFoundError for
        a block that does not exist or was forgotten.
        """
        self._guard.require_open()
        blocks = self.memory.core.blocks
        block = blocks.info(block_id)
        return decode_text(self.tokenizer, blocks.token_ids(block.stream, block.begin, block.end).tolist())

    @property
    def stream_tokens(self) -> int:
        """Tokens read and generated so far."""
        return self.frame.os.stream_end

    def trace(self) -> list[dict[str, Any]]:
        """Return what the Memory OS decided and when, oldest first, as plain values.

        `everlong.pictures.timeline` draws it. It covers this MemoryModel's life; of a long one, the newest events. It
        has events that are not remembered, too (`remember=False`, a search, a perplexity). Only these have
        `branched_at`: where the stream stood then.

        Each event has `what` was decided, when (`stream_position`), in which `state`, and for which tokens (`begin`,
        `end`, `tokens`) of which `stream`. Further fields by `what`:

        - "archive": `ended_by` says why the block ends: "length", "sentence", "paragraph", "answer" (which begins after
          it), "turn", "topic", "signal", "question" or "text" (its end).
        - "recall": `trigger` says what asked for it. For a tombstone, `begin` and `end` say which one.
        - "recall waits": what would have asked, if what came back last were not protected.
        - "restore": `restored` lists what came back: block, stream, begin, end, and `detail_slots` of a block that came
          as Detail Tokens.
        - "left out": counts what was found and did not fit.
        - "prefetch", where the Walker reads ahead: `prefetched` are the pages (block, page) that were read into RAM,
          and `used` counts those that came back since. It follows what was decided at the same place of the stream or
          before.

        Signals are there as heard, and as "signal passed over".
        """
        return self.frame.parts.merge_events(self.frame.os.trace())

    def close(self) -> None:
        """Archive what is not archived yet, take the hooks off the model, close the memory. Twice does nothing.

        MemoryBusyError while another thread's call is at work, or streams an answer; then nothing is closed. A memory
        in RAM whose frame was broken stays open, as `memory`: another MemoryModel may go on with it. The end of the
        interpreter closes what is open still, and ends answers under way; `os._exit` and a signal that kills do not.
        """

        def close_memory() -> None:
            self.memory.end_writing(self)
            if self._owns_memory and not (self.frame.steps.broken and self.memory.path is None):
                self.memory.close()

        with self._guard.closing() as open_until_now, contextlib.ExitStack() as last:
            if open_until_now:  # whatever fails, the steps below run in this order
                last.callback(close_memory)
                last.callback(self.searcher.close)
                last.callback(self.frame.close)

    def __enter__(self) -> MemoryModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ready(frame: Frame, weights: WeightsCheck, words: TokenizerCheck, answering: AnswerGenerator) -> None:
    """Raise where a call cannot go on, and let go of what was forgotten since the last one."""
    require_ready(frame, weights, words)
    answering.drop_forgotten()
