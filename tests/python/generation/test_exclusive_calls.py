"""One lock discipline (generation/exclusive.py): who comes meanwhile is refused, and nothing is changed by that."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import random
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, next_logits, random_text, tiny_model

TEXT = random_text(1200)
QUESTION = TEXT[300:330]

CALLS: dict[str, Callable[[everlong.MemoryModel], Any]] = {
    "read": lambda mm: mm.read(TEXT[:300], source="more"),
    "generate": lambda mm: mm.generate(TEXT[600:630], max_new_tokens=8),
    "answer_many": lambda mm: mm.answer_many([TEXT[600:630]], max_new_tokens=8),
    "recall": lambda mm: mm.recall(TEXT[600:630]),
    "perplexity": lambda mm: mm.perplexity(TEXT[600:700]),
    "stream": lambda mm: list(mm.stream(TEXT[600:630], max_new_tokens=8)),
    "calibrate": lambda mm: mm.calibrate(),
    "signal": lambda mm: mm.signal("summarize"),
    "close": lambda mm: mm.close(),
}


@pytest.fixture
def mm() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as opened:
        opened.read(TEXT, source="book")
        yield opened


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Another thread, always the same one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *given: pool.submit(call, *given).result()


@pytest.mark.parametrize("name", CALLS)
def test_a_waiting_answer_is_not_ended_by_another_thread(mm, elsewhere, name: str) -> None:
    whole = mm.generate(QUESTION, max_new_tokens=40, remember=False).text
    answer = mm.stream(QUESTION, max_new_tokens=40, remember=False)
    pieces = [next(answer) for _ in range(4)]
    with pytest.raises(everlong.MemoryBusyError, match=r"streams|one at a time"):
        elsewhere(CALLS[name], mm)
    assert "".join([*pieces, *answer]) == whole
    if name != "close":
        elsewhere(CALLS[name], mm)


def test_an_answer_belongs_to_the_thread_that_takes_it(mm, elsewhere) -> None:
    answer = mm.stream(QUESTION, max_new_tokens=40, remember=False)
    next(answer)
    elsewhere(next, answer)
    with pytest.raises(everlong.MemoryBusyError):
        mm.recall(QUESTION)
    elsewhere(mm.recall, QUESTION)
    assert list(answer) == []
    mm.recall(QUESTION)


def test_an_answer_that_another_thread_closes_or_drops_lets_the_next_call_in(mm, elsewhere) -> None:
    for end in (lambda held: held.pop().close(), list.clear):
        held = [mm.stream(QUESTION, max_new_tokens=40, remember=False)]
        next(held[0])
        elsewhere(end, held)
        elsewhere(mm.recall, QUESTION)
        assert mm.stream_tokens == len(TEXT)


def test_a_thread_that_is_gone_leaves_its_answer_to_who_holds_it(mm) -> None:
    answer = mm.stream(QUESTION, max_new_tokens=40, remember=False)
    thread = threading.Thread(target=next, args=(answer,))
    thread.start()
    thread.join()
    del thread
    with pytest.raises(everlong.MemoryBusyError):
        mm.recall(QUESTION)
    assert "".join(answer)
    mm.recall(QUESTION)


class Calling:
    """A streamer that makes a call at each token, and notes what comes of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.outcomes = call, []

    def put(self, tokens: torch.Tensor) -> None:
        try:
            self.outcomes.append(self.call())
        except everlong.EverlongError as error:
            self.outcomes.append(error)

    def end(self) -> None:
        pass


def test_a_signal_from_another_thread_is_refused_during_an_answer_and_breaks_nothing(mm, elsewhere) -> None:
    refused = Calling(lambda: elsewhere(mm.signal, "summarize"))
    answer = mm.generate(QUESTION, max_new_tokens=5, streamer=refused)
    assert [type(outcome) for outcome in refused.outcomes] == [everlong.MemoryBusyError] * 6
    assert not any(event["what"] == "summarize signal" for event in mm.trace())
    taken = Calling(lambda: mm.signal("summarize"))
    mm.generate(QUESTION, max_new_tokens=5, streamer=taken)
    assert taken.outcomes == [None] * 6
    assert sum(event["what"] == "summarize signal" for event in mm.trace()) == 6
    elsewhere(mm.signal, "summarize")
    assert answer.tokens == 5
    assert mm.memory.stats().tokens == mm.stream_tokens


def test_signals_from_a_thread_beside_forwards_are_refused_or_heard(mm) -> None:
    done, outcomes = threading.Event(), []

    def signalling() -> None:
        while not done.is_set():
            try:
                outcomes.append(mm.signal("summarize"))
            except everlong.MemoryBusyError:
                outcomes.append("busy")

    thread = threading.Thread(target=signalling)
    thread.start()
    calls = 0
    try:
        while calls < 12 or ("busy" not in outcomes and calls < 1000):  # the other thread may have had no turn yet
            with contextlib.suppress(everlong.MemoryBusyError):  # a signal may have the frame, too
                mm.read(random_text(200, seed=calls), source=f"{calls}")
                calls += 1
    finally:
        done.set()
        thread.join()
    assert "busy" in outcomes
    assert not mm.frame.steps.broken
    assert mm.memory.stats().tokens == mm.stream_tokens == len(TEXT) + calls * 200


def test_an_observer_in_the_middle_of_a_step_is_refused_and_breaks_nothing(mm) -> None:
    outcomes: list[BaseException] = []

    def observer(*archived: Any) -> None:
        for call in (lambda: mm.signal("summarize"), lambda: mm.recall(QUESTION), mm.close):
            try:
                call()
            except everlong.EverlongError as error:
                outcomes.append(error)

    with contextlib.closing(mm.frame.observe(observer)):
        mm.read(random_text(600, seed=3), source="more")
    assert len(outcomes) >= 3
    assert all(isinstance(outcome, everlong.MemoryBusyError) for outcome in outcomes)
    assert mm.memory.stats().tokens == mm.stream_tokens == len(TEXT) + 600


def test_a_close_that_was_refused_closed_nothing(mm, elsewhere) -> None:
    refused = Calling(lambda: mm.close())
    mm.generate(QUESTION, max_new_tokens=2, streamer=refused)
    assert len(refused.outcomes) == 3
    assert all(isinstance(outcome, everlong.MemoryBusyError) for outcome in refused.outcomes)
    answer = mm.stream(QUESTION, max_new_tokens=3)
    next(answer)
    with pytest.raises(everlong.MemoryBusyError):
        elsewhere(mm.close)
    list(answer)
    assert torch.isfinite(next_logits(mm, "so")).all()
    elsewhere(mm.close)
    mm.close()
    with pytest.raises(everlong.ClosedError):
        mm.signal("summarize")


# --- many threads at random

INTERLEAVINGS = 1000
THREADS = 4
_TINY = SMALL.changed(
    frame={"tokens": 384, "sink_tokens": 4, "recalled_tokens": 128, "rolling_tokens": 64, "evict_tokens": 64},
    archive={"block_tokens": 64},
    search={"index": ("lexical",)},
)
_WORDS = [random_text(12, seed=number) for number in range(40)]
_WHAT = {"read": 3, "ask": 3, "stream": 4, "piece": 12, "drop": 1, "signal": 3, "close": 0.3}


@dataclasses.dataclass
class Did:
    """What had the frame, written down by who had it, so that the order is that in which they did."""

    what: str
    given: str = ""
    remember: bool = True
    tokens: int = 0
    came: list[str] = dataclasses.field(default_factory=list)  # an answer, or the pieces of one
    finished: bool = False  # it was taken to its end
    amid: bool = False  # of a signal: while an answer is given


class Noting:
    """A streamer that tells when its prompt has the frame."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    def put(self, tokens: torch.Tensor) -> None:
        note, self._note = self._note, lambda: None
        note()

    def end(self) -> None:
        pass


class Shared:
    """A MemoryModel among threads, and what was done with it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        with everlong.MemoryModel(model, byte_tokenizer(), None, _TINY) as made:
            manifest = made.memory.core.manifest()
        self.memory = everlong.Memory.open(None, create=manifest)
        self.did: list[Did] = []
        self.refused = 0
        self.unexpected: list[BaseException] = []
        self.open()

    def open(self) -> None:
        self.mm = mm = everlong.MemoryModel(self.model, byte_tokenizer(), self.memory, _TINY)
        self.did.append(Did("open"))
        heard = mm.frame.raise_signal

        def raise_signal(signal: str) -> Any:
            self.did.append(Did("signal", signal, amid=mm._answering.turn is not None))
            return heard(signal)

        mm.frame.raise_signal = raise_signal

    def open_again(self) -> None:
        try:
            self.mm.text(0)
        except everlong.ClosedError:
            self.open()
        except everlong.MemoryNotFoundError:
            pass

    def step(self, rng: random.Random, held: list[tuple[Did, Generator[str]]]) -> None:
        """Something at random by one thread, which holds an answer's pieces or not."""
        did = Did(
            rng.choices(list(_WHAT), list(_WHAT.values()))[0],
            " ".join(rng.sample(_WORDS, 2)),
            remember=rng.random() < 0.6,
            tokens=rng.choice([1, 4]),
        )
        try:
            self._do(did, held)
        except everlong.MemoryBusyError:
            self.refused += 1
        except everlong.ClosedError:
            held.clear()
        except BaseException as error:
            self.unexpected.append(error)

    def _do(self, did: Did, held: list[tuple[Did, Generator[str]]]) -> None:
        mm = self.mm
        if did.what == "read":

            def pieces() -> Iterator[str]:
                self.did.append(did)
                yield did.given

            mm.read(pieces(), source="text")
        elif did.what in ("ask", "stream"):
            noting = Noting(lambda: self.did.append(did))
            how: dict[str, Any] = {"max_new_tokens": did.tokens, "remember": did.remember, "streamer": noting}
            if did.what == "ask":
                did.came.append(mm.generate(did.given, **how).text)
            else:
                held[:] = [(did, mm.stream(did.given, **how))]
                self._take(held)
        elif did.what == "piece" and held:
            self._take(held)
        elif did.what == "drop":
            held.clear()
        elif did.what == "signal":
            mm.signal("summarize")
        elif did.what == "close":
            mm.close()

    def _take(self, held: list[tuple[Did, Generator[str]]]) -> None:
        """The next piece; nothing where another call of this thread ended the answer."""
        did, answer = held[0]
        ended = inspect.getgeneratorstate(answer) == inspect.GEN_CLOSED
        piece = next(answer, None)
        if piece is None:
            did.finished = not ended
            held.clear()
        else:
            did.came.append(piece)
            self.did.append(Did("piece"))


class Again:
    """The same in one thread, one after the other."""

    def __init__(self, model: Any, memory: everlong.Memory) -> None:
        self.model, self.memory = model, memory
        self.mm: everlong.MemoryModel | None = None
        self.answer: tuple[Did, Generator[str], list[str]] | None = None

    def do(self, did: Did) -> None:
        if did.what == "piece":
            assert self.answer is not None
            self.answer[2].append(next(self.answer[1]))
            return
        if not (did.what == "signal" and did.amid):
            self.settle()
        mm = self.mm
        if did.what == "open":
            if mm is not None:
                mm.close()
            self.mm = everlong.MemoryModel(self.model, byte_tokenizer(), self.memory, _TINY)
            return
        assert mm is not None
        if did.what == "read":
            mm.read(iter([did.given]), source="text")
        elif did.what == "ask":
            assert [mm.generate(did.given, did.tokens, remember=did.remember).text] == did.came
        elif did.what == "stream":
            self.answer = did, mm.stream(did.given, did.tokens, remember=did.remember), []
        elif did.what == "signal":
            mm.signal("summarize")

    def settle(self) -> None:
        """End the answer that waits as it was ended."""
        if self.answer is not None:
            did, answer, came = self.answer
            self.answer = None
            if did.finished:
                assert list(answer) == []
            answer.close()
            assert came == did.came


@pytest.mark.slow
def test_random_interleavings_of_threads_are_what_one_thread_does_in_their_order() -> None:
    """No wrong text, no lost token, only documented errors."""
    model = tiny_model(num_hidden_layers=1, eos_token_id=None)
    shared = Shared(model)
    together = threading.Barrier(THREADS, action=shared.open_again, timeout=60)

    def at_work(seed: int) -> None:
        rng, held = random.Random(seed), []
        for _ in range(INTERLEAVINGS):
            together.wait()
            shared.step(rng, held)

    with ThreadPoolExecutor(THREADS) as pool:
        for running in [pool.submit(at_work, seed) for seed in range(THREADS)]:
            running.result()
    assert shared.unexpected == []
    with contextlib.suppress(everlong.ClosedError):
        shared.mm.close()
    done = {what: sum(did.what == what for did in shared.did) for what in ("read", "ask", "stream", "piece", "signal")}
    assert min(done.values()) > INTERLEAVINGS / 20, done
    assert shared.refused > INTERLEAVINGS / 2

    again = Again(model, everlong.Memory.open(None, create=shared.memory.core.manifest()))
    for did in shared.did:
        again.do(did)
    again.settle()
    assert again.mm is not None
    again.mm.close()
    assert blocks_of(shared.memory) == blocks_of(again.memory)
    assert ids_of(shared.memory) == ids_of(again.memory)
    read = [did.given for did in shared.did if did.what == "read"]
    text = byte_tokenizer().decode(ids_of(shared.memory))
    at = 0
    for words in read:
        at = text.index(words, at) + len(words)
    shared.memory.close()
    again.memory.close()


def blocks_of(memory: everlong.Memory) -> list[tuple[tuple[int, int], str]]:
    return [(block.span, block.source) for block in memory.blocks()]


def ids_of(memory: everlong.Memory) -> list[int]:
    """All of the stream, without a gap."""
    tokens = memory.stats().tokens
    assert tokens == memory.core.blocks.stream_end(0)
    ids: list[int] = memory.core.blocks.token_ids(0, 0, tokens).tolist()
    return ids


def test_several_calls_of_a_thread_are_not_parted_by_another(mm, elsewhere) -> None:
    with mm.exclusive_calls():
        for name, call in CALLS.items():
            with pytest.raises(everlong.MemoryBusyError):
                elsewhere(call, mm)
            if name not in ("stream", "close"):
                call(mm)
                with pytest.raises(everlong.MemoryBusyError):
                    elsewhere(mm.find, QUESTION)
        for name in ("stream", "close"):  # a streamed answer has the frame for as long as its generator likes
            with pytest.raises(everlong.MemoryBusyError):
                CALLS[name](mm)
        with mm.exclusive_calls():
            mm.find(QUESTION)
        with pytest.raises(everlong.MemoryBusyError):
            elsewhere(mm.find, QUESTION)
    elsewhere(mm.find, QUESTION)
    with pytest.raises(ZeroDivisionError), mm.exclusive_calls():
        1 / 0  # noqa: B018
    elsewhere(mm.find, QUESTION)


def test_within_several_calls_a_call_within_a_call_is_refused(mm) -> None:
    refused = []

    def progress(read: int, total: int | None) -> None:
        with pytest.raises(everlong.MemoryBusyError):
            mm.find(QUESTION)
        refused.append(read)

    with mm.exclusive_calls():
        mm.read(TEXT[:300], source="more", progress=progress)
        assert mm.find(QUESTION, k=1)
    assert refused


def test_several_calls_of_a_task_are_not_parted_by_another_task_of_its_loop(mm, elsewhere) -> None:
    async def run() -> None:
        inside, refused = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            with mm.exclusive_calls():
                inside.set()
                await refused.wait()
                assert mm.find(QUESTION, k=1)

        async def second() -> None:
            await inside.wait()
            for call in (mm.exclusive_calls().__enter__, lambda: mm.find(QUESTION)):
                with pytest.raises(everlong.MemoryBusyError):
                    call()
            refused.set()

        await asyncio.gather(first(), second())

    asyncio.run(run())
    with mm.exclusive_calls(), pytest.raises(everlong.MemoryBusyError):  # nothing of it stays
        elsewhere(mm.find, QUESTION)
    elsewhere(mm.find, QUESTION)
