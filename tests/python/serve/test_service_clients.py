"""What clients of OpenAI's API send is answered, and nothing is computed for who has gone while he waited."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.serve.bodies import Fields, parsed_object
from everlong.serve.request_parsing import answer_request_of, message_of
from everlong.serve.stop_strings import StopStrings
from everlong.service_data.errors import ApiError
from everlong.service_data.limits import Limits
from support.examples import examples
from support.service import MODEL, SECONDS, Running, running, until

TURN = {"role": "user", "content": "Hi"}
LIMITS = Limits()


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [(None, LIMITS.default_tokens), (-1, LIMITS.default_tokens), (1, 1), (8192, LIMITS.answer_tokens), (1 << 40, 4096)],
)
def test_as_many_tokens_as_there_may_be(asked: int | None, tokens: int) -> None:
    most = Fields({"max_tokens": asked}).tokens("max_tokens", LIMITS.answer_tokens)
    assert answer_request_of(Fields({}), "", [TURN], most, LIMITS).tokens == tokens


@pytest.mark.parametrize("asked", [0, -2, True, 1.5, "4", 1 << 70])
def test_numbers_of_tokens_that_are_none_are_refused(asked: Any) -> None:
    with pytest.raises(ApiError, match="max_tokens"):
        Fields({"max_tokens": asked}).tokens("max_tokens", LIMITS.answer_tokens)


@pytest.mark.parametrize(
    ("stop", "stops"), [("", ()), ([""], ()), ([], ()), (None, ()), (["a", "", "b"], ("a", "b")), ("a", ("a",))]
)
def test_a_stop_that_is_empty_stops_nothing(stop: Any, stops: tuple[str, ...]) -> None:
    assert Fields({"stop": stop}).texts("stop", 4, empty=True) == stops
    if stop is not None and not stops:
        with pytest.raises(ApiError):  # of names an empty one is no choice
            Fields({"source": stop}).texts("source", 4)


def test_any_seed_draws_the_same_and_minus_one_draws_anew() -> None:
    fields = {seed: answer_request_of(Fields({"seed": seed}), "", [TURN], 1, LIMITS).seed for seed in (-1, -2, 7, None)}
    assert fields[-1] is fields[None] is None
    assert fields[7] == 7
    assert 0 <= fields[-2] < 1 << 63
    with pytest.raises(ApiError, match="seed"):
        answer_request_of(Fields({"seed": 1 << 63}), "", [TURN], 1, LIMITS)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": "", "refusal": "No.", "tool_calls": [], "annotations": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "N"}, {"type": "refusal", "refusal": "o."}]},
    ],
)
def test_a_refusal_is_what_the_assistant_said(message: dict[str, Any]) -> None:
    assert message_of(message, "m") == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize(
    "content", [[{"type": "refusal"}], [{"type": "refusal", "text": "No."}], [{"type": "text", "refusal": "No."}], [{}]]
)
def test_parts_without_their_text_are_refused(content: Any) -> None:
    with pytest.raises(ApiError, match="content"):
        message_of({"role": "assistant", "content": content}, "m")


def test_a_byte_order_mark_is_no_part_of_a_body() -> None:
    assert parsed_object(b"\xef\xbb\xbf" + b'{"a": "\xef\xbb\xbf"}', 4) == {"a": "\ufeff"}
    with pytest.raises(ApiError):
        parsed_object('{"a": 1}'.encode("utf-16"), 4)


@examples(200)
@given(st.lists(st.text("abc", max_size=3)), st.lists(st.text("abc", min_size=1, max_size=3), max_size=4))
def test_an_answer_ends_before_a_stop_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    text, taking, sent = "".join(pieces), StopStrings(stops), ""
    for piece in pieces:
        sent += taking.more(piece)
    sent += taking.rest()
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    assert text.startswith(sent)
    assert len(sent) >= first  # a longer stop may have begun before the first one that is whole
    assert not any(stop in sent for stop in stops)
    assert taking.stopped == any(stop in text for stop in stops)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("clients") / "memories") as there:
        yield there


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
        yield client


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [TURN], "max_tokens": 2, **more}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"stop": ""},
        {"stop": [""]},
        {"max_tokens": -1, "stop": ["a", "e", " ", "t"]},
        {"max_tokens": 8192, "stop": ["a", "e", " ", "t"]},
        {"seed": -1},
        {"stream": True, "max_tokens": 1 << 40, "stop": ["a", "e", " ", "t"]},
        {"messages": [TURN, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, TURN]},
    ],
)
def test_fields_as_clients_send_them_are_answered(http: httpx.Client, more: dict[str, Any]) -> None:
    answer = http.post("/v1/chat/completions", json=body(**more))
    assert answer.status_code == 200, answer.text
    more = {{"max_tokens": "max_output_tokens"}.get(name, name): value for name, value in more.items()}
    asked = {"model": MODEL, "input": more.pop("messages", "Hi"), "max_output_tokens": 2, **more}
    asked.pop("seed", None), asked.pop("stop", None)  # which /v1/responses does not have
    if asked["max_output_tokens"] == 2:
        told = http.post("/v1/responses", json=asked)
        assert told.status_code == 200, told.text


@pytest.mark.slow
def test_paths_may_end_with_a_slash(http: httpx.Client) -> None:
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()
    assert http.get(f"/v1/models/{MODEL}/").json()["id"] == MODEL
    assert http.post("/v1/chat/completions/", json=body()).status_code == 200  # no redirect, which would lose a Host
    assert http.get("/health/").json() == {"status": "ok"}
    assert http.head("/health").status_code == http.head("/v1/models/").status_code == 200
    for path in ("//v1/models", "/v1//models", "/v1/model/"):
        assert http.get(path).status_code == 404
    content = b"\xef\xbb\xbf" + json.dumps(body()).encode()
    sent = http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert sent.status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_questions_whose_callers_went_while_they_waited_are_not_computed(
    tmp_path: Path, path: str, *, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": MODEL, "max_tokens": 2, "stream": stream}
    if path == "/v1/responses":
        asked = {"model": MODEL, "max_output_tokens": 2, "stream": stream}

    def of(text: str) -> dict[str, Any]:
        turns = [{"role": "user", "content": text}]
        return {**asked, **({"messages": turns} if "max_tokens" in asked else {"input": turns})}

    with running(tmp_path / "m", limits=Limits(at_once=1)) as there:
        engine, answers = there.service.engine, there.service.answers
        begun: list[str] = []
        may_go_on, answer = threading.Event(), answers.answer

        def watched(key: str, request: Any, *more: Any) -> Any:
            begun.append(request.messages[-1]["content"])
            if begun[-1] == "first":
                may_go_on.wait(SECONDS)
            return answer(key, request, *more)

        monkeypatch.setattr(answers, "answer", watched)
        how = {"json": of("first"), "timeout": SECONDS}
        first = threading.Thread(target=httpx.post, args=(there.url + path,), kwargs=how)
        first.start()
        until(lambda: begun == ["first"])
        callers = [_send(there, path, of("gone")) for _ in range(3)]
        until(lambda: len(engine.queue) == 3)
        for caller in callers:
            caller.close()
        until(lambda: len(engine.queue) == 0)
        may_go_on.set()
        first.join()
        last = httpx.post(there.url + path, json=of("last"), timeout=SECONDS)
        assert last.status_code == 200
        assert begun == ["first", "last"]


def _send(there: Running, path: str, asked: dict[str, Any]) -> socket.socket:
    """Send a request, and take nothing of what is answered."""
    address, content = there.url.removeprefix("http://"), json.dumps(asked)
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    host, _, port = address.partition(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
    return line
