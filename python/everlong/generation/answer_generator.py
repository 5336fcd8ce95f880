"""An answer as a stream of tokens: recall, decoding, and what came back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.frame import Frame
from everlong.frame.kv_frame import KvFrame
from everlong.frame.read_request import Origin, ReadRequest
from everlong.generation.answer import Answer, FinishReason, is_unsure
from everlong.generation.decoding import DecodingSetup, TokenChooser, prepare
from everlong.generation.drafts import Drafts
from everlong.generation.not_there import tokens_of
from everlong.generation.recall_executor import RecallExecutor, Turn
from everlong.generation.speculation import Speculation
from everlong.generation.text_stream import TextStream
from everlong.kv_cache.batching import run_batched
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.quote_lines import lines_of
from everlong.retrieval.quotes import quoting, words_of
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.text.encoding import decode_text, encode
from everlong.text.follow_up import is_follow_up
from everlong.text.messages import Message
from everlong.text.prompt import Prompt, build_prompt
from everlong.text.special_tokens import special_tokens

Progress = Callable[[int], None]

# The newest tokens of question and answer that drafts are made from. To go over a very long question takes seconds.
_DRAFTED_FROM = 8192


class AnswerGenerator:
    """Answers prompts from a frame and its memory, one at a time. For the frame's thread alone."""

    def __init__(self, frame: Frame, searcher: Searcher, tokenizer: Any) -> None:
        self._frame = frame
        self._core = frame.memory.core
        self._searcher = searcher
        self._tokenizer = tokenizer
        self.recalls = RecallExecutor(frame, searcher)  # it has what came back for the newest answer
        # Recalled sentences that stand in words before the newest question, in their order.
        self.quoted: tuple[str, ...] = ()
        self._put = 0  # tokens of the newest question in the frame, with the quotes before it
        self._said: list[int] = []  # token ids of the newest question and answer; empty once text was read since
        self._asked = 0  # how many of these are the question's
        self._finish_reason: FinishReason | None = None  # of the newest answer
        self.turn: Turn | None = None  # the question that is being answered

    def note_reading(self) -> None:
        """Note that text was read since the newest question and answer."""
        self._said = []

    def drop_forgotten(self) -> None:
        """Let go of what was forgotten since the last call: of what stands in the frame, and of the newest turn."""
        if self._frame.drop_forgotten():
            self._said, self.quoted = [], ()
            self.recalls.drop_forgotten()

    def raise_signal(self, signal: str) -> None:
        """Do as `MemoryModel.signal`."""
        self.recalls.carry_out(self._frame.raise_signal(signal), self.turn or Turn(), self._said)

    def prompt(
        self,
        question: str | Sequence[Message],
        chat: bool,
        variables: Mapping[str, Any] | None,
        made: Prompt | None = None,
    ) -> Prompt:
        """Make the prompt that goes on from the newest token. A turn that has ended is not ended again.

        `made`: what `prompt_of` has made of the same already.
        """
        first = self._frame.os.stream_end == 0
        prompt = made or prompt_of(self._tokenizer, question, first=first, chat=chat, variables=variables)
        if prompt.before is None and is_follow_up(_last_of(question)):
            prompt = dataclasses.replace(prompt, before=self._before())
        return self._not_ended_again(prompt)

    def _not_ended_again(self, prompt: Prompt) -> Prompt:
        first = int(prompt.ids[0])
        ended = first == self._frame.stream.last_id and first in special_tokens(self._tokenizer).ids.values()
        return prompt.without_first() if ended and prompt.question.start > 0 else prompt

    def _before(self) -> torch.Tensor | None:
        """Return the ids of the turn that was said here last."""
        if self._said:
            return torch.tensor(self._said, dtype=torch.int64, device="cpu")
        turn = self._frame.stream.newest_turn()
        return turn if len(turn) > 0 else None

    def answer(
        self,
        prompt: Prompt,
        max_new_tokens: int | None,
        recall: bool | Sequence[_core.PageRef | Recall],
        where: Where,
        streamer: Any,
        generation: Mapping[str, Any],
        progress: Progress | None = None,
        *,
        steps: bool = False,
    ) -> Generator[int | None]:
        """Put a prompt behind the stream and yield the ids of its answer. With `steps`, None between two chunks of it.

        `recall`, `where` and `streamer` as in `MemoryModel.generate`. `generation` holds its further arguments.
        `progress` is told how many tokens of the prompt were read, chunk by chunk.
        """
        if max_new_tokens is not None:
            generation = {**generation, "max_new_tokens": max_new_tokens}
        decoding = prepare(self._frame.served.model, self._tokenizer, prompt.ids, **generation)
        if streamer is not None:
            streamer.put(prompt.ids[None])
        yield from self.respond(prompt, decoding, recall, where, streamer, progress, steps=steps)

    def whole(self, answer: Generator[int | None], where: Where, *, remember: bool) -> Answer:
        """Run an answer from `where` to its end, and return it. Without `remember` nothing of it stays in the frame."""
        with self.remembering(where, remember=remember), contextlib.closing(answer):
            ids = tuple(token for token in answer if token is not None)
        assert self._finish_reason is not None
        text = decode_text(self._tokenizer, list(ids))
        came = self.recalls
        return Answer(text, len(ids), came.recalled, self._finish_reason, ids, came.confidence, self.quoted, came.walk)

    def answer_many(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int | None,
        recall: bool,
        where: Sequence[Where],
        generation: Mapping[str, Any],
        on_answer: Callable[[int, Answer], None] | None,
    ) -> list[Answer]:
        """Answer each prompt from where the stream stands now, several at once. Nothing is remembered."""

        def answer_by(one: AnswerGenerator, question: tuple[Prompt, Where]) -> Answer:
            prompt, where = question
            answer = one.answer(prompt, max_new_tokens, recall, where, None, generation)
            return one.whole(answer, where, remember=False)

        answers: dict[int, Answer] = {}
        told = 0
        with self._forks(len(prompts)) as forks:
            workers = [functools.partial(answer_by, one) for one in forks]
            question = zip(prompts, where, strict=True)
            with contextlib.closing(run_batched(workers, question)) as done:
                for number, answer in done:
                    answers[number] = answer
                    while told in answers:  # in order, whichever was done first
                        if on_answer is not None:
                            on_answer(told, answers[told])
                        told += 1
        if answers:
            last = answers[len(prompts) - 1]
            self.recalls.recalled, self.quoted = last.recalled, last.quoted
            self.recalls.confidence, self.recalls.walk = last.confidence, last.walk
        return [answers[number] for number in range(len(prompts))]

    @contextlib.contextmanager
    def _forks(self, questions: int) -> Iterator[list[AnswerGenerator]]:
        """Context manager: what answers so many questions, as many at once as it gives. What was decided is traced.

        A frame that cannot compute with others, and one whose model a part changes while it answers, answer one
        question after another.
        """
        frame = self._frame
        count = min(questions, self._searcher.config.answer.at_once)
        if count < 2 or not isinstance(frame, KvFrame) or not frame.joins or frame.parts.adapter is not None:
            yield [self]
            return
        self._searcher.heads.look_if_due()  # it reads the memory with a model that computes for it alone
        forks: list[KvFrame] = []
        try:
            forks += frame.forks(count)
            yield [AnswerGenerator(fork, self._searcher.over(fork), self._tokenizer) for fork in forks]
        finally:
            for fork in forks:
                frame.os.take_trace(fork.os)
                fork.detach()

    def respond(
        self,
        prompt: Prompt,
        decoding: DecodingSetup,
        recall: bool | Sequence[_core.PageRef | Recall],
        where: Where,
        streamer: Any,
        progress: Progress | None = None,
        *,
        steps: bool = False,
    ) -> Generator[int | None]:
        """Yield as `answer` for a prepared prompt and decoding. The streamer gets the answer alone."""
        if not isinstance(recall, bool):
            recall = self._searcher.passing(self._named_pages(recall), where)
        self.recalls.clear()
        self.quoted = ()
        before, end = (self._said, self._asked), self._frame.os.stream_end
        self._said, self._asked = prompt.ids.tolist(), len(prompt.ids)
        ended = False
        try:
            self.turn = turn = Turn(prompt, where, recalls=recall is True)
            self._frame.clear_recalled()
            self.narrow(where, searched=recall is True)
            wanted = True  # whether room is made for what comes back
            if recall is True:
                self._searcher.prefetch(prompt.ids[prompt.question].tolist(), 0, where)
                by_prompt = "prompt" in self._searcher.config.answer.policies
                if by_prompt and self._searcher.anything_outside(where):
                    # before the newest text makes room for what comes back
                    if steps:
                        tapped = yield from self._searcher.tap_in_steps(prompt)
                        yield None
                    else:
                        tapped = self._searcher.tap(prompt)
                    wanted = self._wants_recall(prompt)  # else the frame as it is holds what the question needs
                    self.turn = turn = dataclasses.replace(turn, tapped=tapped if wanted else None)
            if recall is not False and wanted:
                question = self._frame.begin_prompt()  # the newest text makes room, where the policy says so
                if steps and turn.recalls:
                    yield from self.recalls.carry_out_in_steps(question, turn, self._said)
                    yield None
                elif turn.recalls:
                    self.recalls.carry_out(question, turn, self._said)
                else:
                    assert not isinstance(recall, bool)
                    self._frame.recall(recall)
            not_there = self._not_there(where)
            self.quoted = self._quoted(where) if not_there is None else ()
            whole = quoting(self._tokenizer, prompt, self.quoted)
            self._put = len(whole.ids)
            logits = yield from self._append(whole.ids, "prompt", progress, steps=steps)
            yield from self._decoded(turn, logits, decoding, streamer, not_there)
            ended = True
        finally:
            self.turn = None
            if self._frame.os.stream_end == end:  # refused: the turn before is still the newest one
                self._said, self._asked = before
            # An answer that was ended asks nobody for a folder that is gone: `close` says so.
            if self._frame.can_checkpoint and (ended or not self._frame.memory.is_gone):
                self._frame.checkpoint()

    def _quoted(self, where: Where) -> tuple[str, ...]:
        """Return what stands in words before the question: one sentence as it is, several as lines."""
        settings, sentences = self._searcher.config.answer, self.recalls.sentences
        if settings.quotes > 1 or settings.quotes_alone:
            return lines_of(self._core, self._tokenizer, sentences, where)
        return words_of(self._core, self._tokenizer, sentences)

    def _not_there(self, where: Where) -> list[int] | None:
        """Return the tokens of an answer that says that the memory holds none; None where the model is to answer."""
        if self._searcher.config.answer.when_unsure == "answer" or not is_unsure(self.recalls.confidence):
            return None
        return tokens_of(self._tokenizer, lines_of(self._core, self._tokenizer, self.recalls.nearest, where))

    def narrow(self, where: Where, *, searched: bool = True) -> None:
        """Hide from the question to come what does not pass `where`, in a branch with an empty recalled zone.

        Calibration, where it is due, sees the frame as any question's does.
        """
        if where.chooses and searched and self._searcher.anything_outside(where):
            self._searcher.heads.look_if_due()
        self._frame.narrow(where)

    def _wants_recall(self, prompt: Prompt) -> bool:
        """Return whether all parts that decide on it want something back for the prompt."""

        newest = prompt.ids[-self._frame.config.frame.rolling_tokens :]  # what stands before the model at its end

        def read() -> torch.Tensor:
            with self._frame.branch(traced=False):
                self._frame.clear_recalled()
                return self._frame.extend(newest, "prompt")[-1]

        return all(one.should_recall(prompt, read) for one in self._frame.parts.gates)

    def _decoded(
        self,
        turn: Turn,
        logits: torch.Tensor,
        decoding: DecodingSetup,
        streamer: Any,
        certain: Sequence[int] | None = None,
    ) -> Generator[int]:
        """Choose token after token until a stop, put each into the frame, and carry out what the Memory OS asks for.

        `logits` [1, V] are of the prompt's last token. Every token that was yielded is in the frame when the next one
        is asked for, or at the end. What drafts say will follow is computed beside a token, and changes none. With
        `certain` tokens the answer is these.
        """
        assert turn.prompt is not None
        frame, self._finish_reason = self._frame, None
        most = self._searcher.config.answer.draft_tokens
        before = [*self.recalls.token_ids(), self._said[-_DRAFTED_FROM:], *([] if certain is None else [certain])]
        drafts = Drafts(before, most) if most > 0 else None
        waiting = list(certain or ())
        speculation = Speculation(frame, recall=turn.recalls)
        chooser = TokenChooser(decoding, turn.prompt.ids, logits.device)
        reason: FinishReason | None = None
        while reason is None:
            if certain is None:
                token, reason = chooser.next(logits)
            else:
                token, reason = chooser.take(waiting.pop(0), logits)
                reason = reason or (None if waiting else "stop")
            self._said.append(token)
            if turn.recalls:
                self._searcher.prefetch(self._said, len(self._said) - self._asked, turn.where)
            if streamer is not None:
                streamer.put(torch.tensor([token], device="cpu"))
            yield token
            draft = drafts.next(token) if drafts is not None and reason is None else ()
            row = speculation.row(token, draft)
            ids = torch.tensor([token], device="cpu")
            request = ReadRequest(ids, "generated", recall=turn.recalls, precomputed=row)
            forward = frame.forward(request)
            logits = forward.logits
            if turn.recalls:
                self.recalls.carry_out(forward.recalls, turn, self._said)
                self.recalls.carry_out(frame.finish_token(), turn, self._said)
        self._finish_reason = reason

    def _named_pages(self, recall: Sequence[_core.PageRef | Recall]) -> list[_core.PageRef]:
        pages: list[_core.PageRef] = []
        for named in recall if isinstance(recall, Iterable) else [recall]:
            if isinstance(named, Recall):
                if not self._searcher.citing.is_there(named):  # other text may have come to its places
                    raise MemoryNotFoundError(f"recall: tokens {named.span} of {named.source!r} were forgotten")
                pages += self._core.blocks.pages_of(self._frame.os.stream, *named.span)
            elif isinstance(named, _core.PageRef):
                pages.append(named)
            else:
                raise TypeError(
                    f"recall: {named!r} is no page; expected True, False, or PageRefs of this memory or what its "
                    "recall found"
                )
        return pages

    def in_steps(
        self, answer: Generator[int | None], where: Where, sent: TextStream, *, remember: bool
    ) -> Generator[str]:
        """Yield what may be sent of an answer from `where`, with an empty piece for each step that gives none.

        What is remembered is the question and exactly what was sent. As with `keeping`, the turn is read again then,
        chunk by chunk. An answer that is not taken to its end is not read again: what is left is of no use.
        """
        if not remember or not (sent.may_cut or self._is_read_again(where)):
            with contextlib.nullcontext() if remember else self.remembering(where, remember=False):
                yield from sent.pieces(answer)
            return
        before, end = self._said, self._frame.os.stream_end
        try:
            with self._frame.branch():
                yield from sent.pieces(answer)
                turn = self._turn(end)
        finally:
            self._said = before
        if not sent.is_whole:
            turn = [*turn[: self._asked], *encode(self._tokenizer, sent.text).tolist()]
        with contextlib.closing(self._reading_turn(turn, steps=True)) as reading:
            yield from ("" for _ in reading)

    @contextlib.contextmanager
    def remembering(self, where: Where, *, remember: bool) -> Iterator[None]:
        """Wrap an answer from `where`. Without `remember` only `recalled` and the Memory OS's trace keep some of it.

        What is remembered is computed by the model alone, from question and answer. Where sentences are quoted, a part
        helps or text is hidden, the answer is taken back. Then the turn is read again, with no pages before it.
        """
        frame = self._frame
        if remember and not self._is_read_again(where):
            yield
            return
        before, end = self._said, frame.os.stream_end
        turn: list[int] = []
        try:
            with frame.branch():
                try:
                    yield
                finally:
                    turn = self._turn(end)
        finally:
            if remember and frame.steps.of_this_process:
                for _ in self._reading_turn(turn, steps=False):
                    pass
            else:
                self._said = before

    def _is_read_again(self, where: Where) -> bool:
        """Return whether an answer from `where` is computed from more than what is remembered of it."""
        helped = self._frame.parts.adapter is not None or self._searcher.config.answer.quotes > 0
        return where.chooses or (helped and self._searcher.anything_outside(EVERYWHERE))

    def _turn(self, end: int) -> list[int]:
        """Return question and answer, as far as they are in the frame, whose stream ended at `end` before them."""
        there = self._frame.os.stream_end - end
        return self._said[: min(there, self._asked) + max(0, there - self._put)]

    def _append(
        self, ids: torch.Tensor, origin: Origin, progress: Progress | None = None, *, steps: bool
    ) -> Generator[None, None, torch.Tensor]:
        """Put ids at the end of the stream, at once or chunk by chunk. Return their logits."""
        if not steps:
            return self._frame.extend(ids, origin, progress=progress)
        return (yield from self._frame.forward_in_steps(ReadRequest(ids, origin, progress=progress))).logits

    def _reading_turn(self, turn: Sequence[int], *, steps: bool) -> Generator[None]:
        """Read question and answer again, the question's ids first. With `steps` it yields between two chunks.

        Whoever closes it there leaves what was read until then, archived as a turn that was cut short.
        """
        frame, question, ended = self._frame, self._asked, False
        if turn:
            self._said = []  # until all of it is there the memory tells what the newest turn is
        frame.clear_recalled()
        try:
            parts: tuple[tuple[Sequence[int], Origin], ...] = (
                (turn[:question], "prompt"),
                (turn[question:], "generated"),
            )
            for ids, origin in parts:
                if ids:
                    yield from self._append(torch.tensor(ids, dtype=torch.int64, device="cpu"), origin, steps=steps)
                    yield
            ended = True
        finally:
            if frame.can_checkpoint and (ended or not frame.memory.is_gone):
                frame.checkpoint()
        if turn:
            self._said = list(turn)


def prompt_of(
    tokenizer: Any,
    question: str | Sequence[Message],
    *,
    first: bool,
    chat: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> Prompt:
    """Make a prompt, with the turn before the question where that is among the messages and the question needs it.

    `first`: nothing stands before it. It needs no frame: another thread may make it, with a tokenizer of its own.
    """
    prompt = build_prompt(tokenizer, question, first=first, chat=chat, chat_template_kwargs=variables)
    if isinstance(question, str) or not is_follow_up(_last_of(question)):
        return prompt
    earlier = "\n".join(turn["content"] for turn in question[-3:-1] if turn["role"] != "system")
    return dataclasses.replace(prompt, before=encode(tokenizer, earlier)) if earlier else prompt


def _last_of(question: str | Sequence[Message]) -> str:
    return question if isinstance(question, str) else question[-1]["content"]


@contextlib.contextmanager
def ends_streamer(streamer: Any) -> Iterator[None]:
    """Tell a streamer the end when all is done, however it went. Who waits for it may ask the next question then."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()
