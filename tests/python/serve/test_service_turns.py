"""Nobody's question keeps the others waiting: long ones are computed in turns, and end when they are not wanted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import types
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.errors import MemoryNotFoundError
from everlong.memory import Memory
from everlong.serve.answering import AnswerRequest, TokenCounter
from everlong.serve.engine import Engine, Job
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.limits import Limits
from everlong.text.encoding import decode_text
from support import random_text
from support.service import MODEL, Clock, Running, client_of, running, tiny_loaded, until, used_tokens, waiting

LONG = random_text(400_000)
SECONDS = 60.0  # after which a test gives up


# --- the engine alone


@contextlib.contextmanager
def engine(limits: Limits, *jobs: Job) -> Iterator[Engine]:
    """Run an engine that has these jobs when it begins."""
    made = Engine(limits)
    for job in jobs:
        made.put(job)
    made.start()
    try:
        yield made
    finally:
        made.stop(0)


def test_each_job_at_work_takes_a_step_in_turn() -> None:
    steps: list[str] = []

    def work(name: str, count: int) -> Callable[[], Generator[str, None, str]]:
        def taken() -> Generator[str, None, str]:
            for _ in range(count):
                steps.append(name)
                yield ""
            return name

        return taken

    async def asked() -> list[str]:
        jobs = [Job(name, "", work(name, count)) for name, count in (("a", 30), ("b", 3), ("c", 30))]
        with engine(Limits(at_once=3), *jobs):
            return [await job.result() for job in jobs]

    assert asyncio.run(asked()) == ["a", "b", "c"]
    assert sorted(steps[:3]) == ["a", "b", "c"]
    assert steps[:9] == steps[:3] * 3
    assert steps.count("a") == steps.count("c") == 30


def test_a_key_without_an_answer_under_way_is_let_in_beyond_the_others() -> None:
    began: list[str] = []
    go_on = threading.Event()

    def work(name: str) -> Callable[[], Generator[str, None, None]]:
        def taken() -> Generator[str, None, None]:
            began.append(name)
            while not go_on.is_set():
                time.sleep(0.001)
                yield ""

        return taken

    async def asked() -> None:
        names = ("a", "a", "a", "a", "b", "b", "c", "d")
        jobs = [Job(name, str(number), work(name)) for number, name in enumerate(names)]
        with engine(Limits(at_once=2), *jobs[:4]) as made:
            await asyncio.to_thread(until, lambda: len(began) == 2)
            for job in jobs[4:]:
                made.put(job)
            await asyncio.to_thread(until, lambda: made.active_jobs == 4)
            await asyncio.to_thread(until, lambda: len(began) == 4)  # each is let in before its first step
            await asyncio.sleep(0.1)  # time for a fifth one; too short a time proves less, and fails nothing
            assert sorted(began) == ["a", "a", "b", "c"]  # d comes as soon as anything ends, before the others' second
            jobs[0].cancel()
            await asyncio.to_thread(until, lambda: len(began) == 5)
            assert began[-1] == "d"
            go_on.set()
            for job in jobs[1:]:
                await job.result()
        assert sorted(began) == ["a", "a", "a", "a", "b", "b", "c", "d"]

    asyncio.run(asked())


@pytest.mark.parametrize("ends", ["whole", "cut", "failed"])
def test_a_job_is_closed_between_two_steps(ends: str) -> None:
    closed: list[str] = []

    def work() -> Generator[str, None, str]:
        try:
            for _ in range(50 if ends == "whole" else 10_000):
                yield "piece"
                if ends == "failed":
                    raise MemoryNotFoundError("it has gone")
            return "said"
        finally:
            closed.append(ends)

    async def asked() -> None:
        with engine(Limits()) as made:
            job = Job("a", "", work)
            made.put(job)
            await job.next()
            if ends == "cut":
                job.cancel()
            with contextlib.suppress(Exception):
                await job.result()
            await asyncio.to_thread(until, lambda: made.active_jobs == 0)

    asyncio.run(asked())
    assert closed == [ends]


def test_what_was_read_of_a_prompt_is_counted_as_far_as_it_was_read() -> None:
    class Ids:
        def __init__(self, *ids: int) -> None:
            self._ids = ids

        def numel(self) -> int:
            return len(self._ids)

        def flatten(self) -> tuple[int, ...]:
            return self._ids

    counted = TokenCounter()
    assert counted.tokens == 0
    counted.put(Ids(*range(100)))
    assert counted.tokens == 0
    for chunk in (40, 40, 40):  # with what was quoted before the question
        counted.computed(chunk)
        assert counted.tokens == min(100, counted._computed)
    counted.put(Ids(7))
    assert counted.tokens == 101


# --- a service

CLOCK = Clock()
KEYS = Keys(tuple(Key(name, hash_of(name), tokens_per_minute=10_000_000) for name in ("ada", "mallory")), CLOCK)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    loaded = tiny_loaded()
    loaded.model.generation_config.eos_token_id = None
    letters = set(loaded.tokenizer("abcdefghijklmnopqrstuvwxyz ")["input_ids"])
    loaded.model.generation_config.suppress_tokens = [token for token in range(257) if token not in letters]
    limits = Limits(answer_seconds=SECONDS, at_once=2)
    with running(tmp_path_factory.mktemp("memories"), keys=KEYS, limits=limits, loaded=loaded) as there:
        with client_of(there, "ada") as http:
            http.post("/memories", json={"name": "lib"}).raise_for_status()
            body = {"source": "book", "text": random_text(2000), "wait": True}
            assert http.post("/memories/lib/sources", json=body).json()["status"] == "done"
        yield there


def chat(http: httpx.Client, text: str | list[dict[str, str]], model: str = "lib", **more: Any) -> httpx.Response:
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else text
    return http.post("/chat/completions", json={"model": model, "messages": turns, "max_tokens": 4, **more})


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lib", MODEL])
@pytest.mark.parametrize("kind", ["question", "conversation", "everlong", "responses"])
def test_a_long_question_holds_nobody_and_ends_when_its_caller_goes(service: Running, model: str, kind: str) -> None:
    CLOCK.seconds += 60
    turns: list[dict[str, str]] = [{"role": "user", "content": LONG}]
    body: dict[str, Any] = {"model": model, "messages": turns, "max_tokens": 4}
    path = "/chat/completions"
    if kind == "conversation":
        turns[:0] = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "So."}]
        turns[-1] = {"role": "user", "content": "And?"}
    elif kind == "everlong":
        body["everlong"] = {"source": ["book"]}
    elif kind == "responses":
        body, path = {"model": model, "input": LONG, "max_output_tokens": 4}, "/responses"
    conversations = service.service.answers.conversations
    known, folders = len(conversations), set(conversations.root.iterdir())
    with waiting(service, "mallory", body, path):
        until(lambda: service.service.engine.active_jobs > 0)
        with client_of(service, "ada") as client:
            assert chat(client, "Who?").status_code == 200
    until(lambda: service.service.engine.active_jobs == 0)
    assert len(conversations) == known
    assert set(conversations.root.iterdir()) == folders
    assert used_tokens(service, "mallory") < len(LONG)  # it was cut short
    with client_of(service, "mallory") as http:
        answers = [chat(http, "Who?", model, temperature=0).json()["choices"][0]["message"]["content"] for _ in "ab"]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_several_long_questions_of_one_key_leave_room_for_another(service: Running) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    with contextlib.ExitStack() as several:
        for _ in range(5):
            several.enter_context(waiting(service, "mallory", body))
        until(lambda: service.service.engine.active_jobs == 2)
        with client_of(service, "ada") as client:
            assert chat(client, "Who?").status_code == 200
    until(lambda: service.service.engine.active_jobs == 0 and len(service.service.engine.queue) == 0)


@pytest.mark.slow
def test_time_ends_a_question_that_is_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, computed = Clock(), TokenCounter.computed

    def computed_slowly(counter: TokenCounter, tokens: int) -> None:
        computed(counter, tokens)
        clock.seconds += 0.2  # whatever the machine takes for it, and for the prompt before

    monkeypatch.setattr("everlong.serve.answering.time", types.SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(TokenCounter, "computed", computed_slowly)
    with running(tmp_path, keys=KEYS, limits=Limits(answer_seconds=0.5)) as service, client_of(service, "ada") as http:
        answer = chat(http, LONG, MODEL).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] == ""
        assert answer["usage"]["completion_tokens"] == 0
        assert 0 < used_tokens(service, "ada") < len(LONG)
        assert len(service.service.answers.conversations) == 0
        assert list(service.service.answers.conversations.root.iterdir()) == []
        assert chat(http, "Who?", MODEL).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["whole", "cut", "stop"])
def test_the_tokens_of_an_answer_are_counted_however_it_ends(service: Running, ends: str) -> None:
    CLOCK.seconds += 60
    ada = next(key for key in KEYS.all if key.name == "ada")
    question = "Tell me. " + random_text(50)
    asked = AnswerRequest(
        "lib", ({"role": "user", "content": question},), 60, 0.0, stop=("zz", "e") if ends == "stop" else ()
    )

    async def answered() -> int:
        job = service.service.ask(ada, asked)
        taken = 0
        while isinstance(piece := await job.next(), str):
            taken += bool(piece)
            if taken == 20 and ends == "cut":
                job.cancel()
                break
        with contextlib.suppress(Exception):
            await job.result() if ends == "cut" else None
        return taken

    taken = asyncio.run(answered())
    until(lambda: service.service.engine.active_jobs == 0)
    assert used_tokens(service, "ada") >= len(question) + taken
    if ends == "whole":
        assert used_tokens(service, "ada") <= len(question) + 60 + 30  # the template's


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lib", MODEL])
@pytest.mark.parametrize("stop", [True, False])
def test_a_conversation_goes_on_with_what_was_sent(service: Running, model: str, *, stop: bool) -> None:
    opening = f"Hello, {model} {stop}."
    turns = [{"role": "user", "content": opening}, {"role": "assistant", "content": "Hi."}]
    turns.append({"role": "user", "content": "Tell me of the river."})
    how: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 30}
    with client_of(service, "ada") as http:
        whole = chat(http, [{"role": "user", "content": opening + "!"}, *turns[1:]], model, **how)
        text = whole.json()["choices"][0]["message"]["content"]
        at = next(at for at in range(4, 25) if text.find(text[at : at + 2]) == at)
        # Two strings, the second of which ends the answer within a token's reach of the first.
        more = {"stop": [text[at : at + 2] + "#", text[at : at + 2]]} if stop else {}
        cut = chat(http, turns, model, **how, **more).json()["choices"][0]["message"]["content"]
        turns += [{"role": "assistant", "content": cut}, {"role": "user", "content": "And of the harbor?"}]
        again = chat(http, turns, model, **how).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    place = list(service.service.answers.conversations._places.values())[-1]
    with Memory.open(place.folder, read_only=True) as memory:
        blocks = sorted(memory.core.blocks.infos(), key=lambda block: block.begin)
        spans = [(one.stream, max(one.begin, place.base), one.end) for one in blocks if one.end > place.base]
        ids = [token for span in spans for token in memory.core.blocks.token_ids(*span).tolist()]
    told = decode_text(service.service.loaded.with_own_tokenizer().tokenizer, ids)
    assert f"river.\nassistant: {cut}\nuser: And of the harbor?\nassistant: " in told
