"""Whatever comes over the wire, of whatever kind, is answered or refused: never a failure, and never a path."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong import errors as library
from everlong.serve.bodies import Fields, depth_of, parsed_object
from everlong.service_data.errors import ApiError, hide_private_paths, refusal_of
from everlong.service_data.limits import Limits
from support import random_text
from support.encoder import CountingEncoder
from support.examples import examples
from support.service import Running, running

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
TURN = {"role": "user", "content": "Who?"}
# A request that is answered, by route. What is drawn takes the place of some of it.
GOOD: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/chat/completions"): {
        "model": "lib",
        "messages": [TURN, {"role": "assistant", "content": [{"type": "text", "text": "He."}]}, TURN],
        "max_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "n": 1,
        "stop": ["a"],
        "stream": False,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "user": "u",
        "tools": [],
        "response_format": {"type": "text"},
        "everlong": {"source": ["book"], "tags": ["by:local"], "recall": True},
    },
    ("POST", "/v1/responses"): {
        "model": "lib",
        "input": [{"type": "message", **TURN}],
        "instructions": "Be short.",
        "max_output_tokens": 1,
        "metadata": {"a": "b"},
        "store": False,
        "text": {"format": {"type": "text"}},
        "previous_response_id": None,
    },
    ("POST", "/v1/embeddings"): {
        "model": "counting",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": None,
    },
    ("POST", "/v1/memories"): {"name": "other"},
    ("POST", "/v1/memories/lib/sources"): {
        "source": "s",
        "text": "So.",
        "tags": ["t"],
        "happened": "2026-01-02",
        "wait": False,
    },
    ("POST", "/v1/memories/lib/search"): {"query": "a", "max_results": 3, "source": ["book"], "tags": ["t"]},
    ("POST", "/mcp"): {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "recall", "arguments": {"memory": "lib", "question": "a", "max_results": 2}},
    },
}

NUMBERS = st.sampled_from(["-1", "0", "1e400", "-1e400", "1e-400", "9" * 30, "-" + "9" * 400, "1" + "0" * 4000, "0.5"])
CHARACTERS = st.sampled_from(["a", "é", "\0", "\n", "/", "..", "%", "😀", "\\", '"', "\u202e", "\ud800", "\udfff"])
TEXTS = st.lists(CHARACTERS, max_size=4).map("".join) | st.sampled_from(["", "lib", "tiny", "text", "2026", "9w"])
WORDS = TEXTS.map(json.dumps)  # half surrogates as escapes


def of_values(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(WORDS, inner), max_size=3)
    return st.lists(inner, max_size=3).map(lambda row: f"[{','.join(row)}]") | pairs.map(
        lambda row: "{" + ",".join(f"{name}:{value}" for name, value in row) + "}"
    )


VALUES = st.recursive(
    NUMBERS | WORDS | st.sampled_from(["null", "true", "false", "NaN", "-Infinity"]), of_values, max_leaves=6
)
DEEP = st.sampled_from(["[" * 40 + "]" * 40, '{"a":' * 40 + "1" + "}" * 40, "[" * 100_000])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    limits = Limits(upload_bytes=1 << 16, body_bytes=1 << 18, default_tokens=1, answer_tokens=2)
    with running(tmp_path_factory.mktemp("memories"), limits=limits, encoder=CountingEncoder()) as there:
        httpx.post(f"{there.api}/memories", json={"name": "lib"}).raise_for_status()
        body = {"source": "book", "text": random_text(900), "wait": True}
        assert httpx.post(f"{there.api}/memories/lib/sources", json=body, timeout=60).json()["status"] == "done"
        yield there


def require_answered(service: Running, answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    require_no_path(service, answer.text)


def require_no_path(service: Running, text: str) -> None:
    for folder in (service.service.registry.root, Path(__file__).parents[3], Path(httpx.__file__).parents[1]):
        assert str(folder) not in text


@pytest.mark.slow
def test_the_requests_that_others_are_made_from_are_answered(service: Running) -> None:
    for (method, path), body in GOOD.items():
        answer = httpx.request(method, service.url + path, json=body, headers=HEADERS, timeout=60)
        assert answer.status_code in (200, 201, 202), (path, answer.text)


HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def drawn_body(data: st.DataObject, good: dict[str, Any], place: str | None) -> str:
    """Draw a body: a value of any kind at a place, or in place of all."""
    value = data.draw(VALUES | DEEP)
    if place is None:
        return value
    rest = [f"{json.dumps(name)}:{json.dumps(one)}" for name, one in good.items() if name != place]
    inner = good[place]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(inner)) | TEXTS)
        kept = [f"{json.dumps(key)}:{json.dumps(one)}" for key, one in inner.items() if key != name]
        value = "{" + ",".join([*kept, f"{json.dumps(name)}:{value}"]) + "}"
    elif isinstance(inner, list) and inner and data.draw(st.booleans()):
        value = f"[{value},{','.join(map(json.dumps, inner))}]"
    more = data.draw(st.sampled_from(["", "", "", f",{json.dumps(place)}:1", ',"\\ud800":1']))
    return "{" + ",".join([*rest, f"{json.dumps(place)}:{value}"]) + more + "}"


@pytest.mark.slow
@pytest.mark.parametrize("route", GOOD, ids=lambda route: route[1])
@given(data=st.data())
@examples(60)
def test_values_of_any_kind_are_answered(service: Running, route: tuple[str, str], data: st.DataObject) -> None:
    good = GOOD[route]
    body = drawn_body(data, good, data.draw(st.sampled_from([None, *good])))
    answer = httpx.request(route[0], service.url + route[1], content=body.encode(), headers=HEADERS, timeout=60)
    require_answered(service, answer)


PLACES = (
    f"v1 memories lib sources files a.txt readings blocks 0 {'9' * 30} {'9' * 5000} search responses models export "
    "verify mcp page %00 %2F %2e%2e %ff %ed%a0%80 %0a .. a%20b"
)
PATH = st.lists(st.sampled_from(PLACES.split()), max_size=6)
QUERY = st.lists(
    st.tuples(
        st.sampled_from(["source", "tag", "happened", "wait", "origin", "x", "%ff", ""]),
        st.sampled_from(
            [
                "",
                "a",
                "%00",
                "%ff",
                "%ed%a0%80",
                "99999999999w",
                "0001-01-01",
                "9999999d",
                "true",
                "+",
                "a;b",
                "9" * 400,
            ]
        ),
    ),
    max_size=3,
)


@pytest.mark.slow
@given(
    path=PATH, query=QUERY, method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"])
)
@examples(150)
def test_addresses_of_any_kind_are_answered(
    service: Running, path: list[str], query: list[tuple[str, str]], method: str
) -> None:
    if method == "DELETE" and path == ["v1", "memories", "lib"]:
        return
    target = f"/{'/'.join(path)}?{'&'.join(f'{name}={value}' for name, value in query)}"
    status, text = raw(service, f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert 200 <= status < 500, (target, text)
    require_no_path(service, text)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/v1/memories/lib/files/a.txt?happened={}", "/v1/memories/lib/sources"])
@pytest.mark.parametrize(
    "happened",
    ["99999999999w", "9999999d", "0001-01-01", "9999-12-31T23:59:59-14:00", "0000-00-00", "%00", "9" * 400, "1e5"],
)
def test_a_time_that_no_datetime_holds_is_refused(service: Running, target: str, happened: str) -> None:
    how: dict[str, Any] = {"content": b"So."}
    if "{}" not in target:
        how = {"json": {"source": "s", "text": "So.", "happened": happened}}
    answer = httpx.request(
        "PUT" if "{}" in target else "POST", service.url + target.format(happened), timeout=60, **how
    )
    assert answer.status_code in (202, 400, 422), answer.text
    require_no_path(service, answer.text)


REQUESTS = {
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a strange host": b"GET /v1/models HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "letters of latin": b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: \xe4\xff\r\n\r\n",
    "a key of latin": b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\r\n\r\n",
    "a length that is none": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
    "a negative length": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    "a length of 40 digits": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
    + b"9" * 40
    + b"\r\n\r\n",
    "two lengths": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
    "length and chunks": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks of no length": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "another encoding": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    "a type of another set": b"POST /v1/memories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
    b"Content-Type: application/json; charset=utf-16\r\n\r\n{\0}\0",
    "a path that is none": b"GET v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a whole address": b"GET http://127.0.0.1/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01",
    "an older one": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "an upgrade": b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_requests_of_any_kind_are_answered(service: Running, name: str) -> None:
    status, text = raw(service, REQUESTS[name])
    assert 200 <= status < 500, text
    require_no_path(service, text)


def raw(service: Running, request: bytes) -> tuple[int, str]:
    """Send bytes. Return the status and all that comes of an answer."""
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection, method=request.partition(b" ")[0].decode("latin-1"))
        answer.begin()
        return answer.status, f"{answer.headers}{answer.read().decode('latin-1')}"


# --- bodies, and their fields


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"b": {"a": 1, "a": 1}}',
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"a": [{"b": "\\ud83d"}]}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 1} {}',
    ],
)
def test_bodies_that_say_no_one_thing_are_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parsed_object(body, 32)
    assert refused.value.status == 400
    refused.value.message.encode()


def test_a_mark_of_utf_8_before_a_body_is_not_of_it() -> None:
    assert parsed_object('{"a": 1}'.encode("utf-8-sig"), 32) == {"a": 1}


def test_a_whole_pair_is_a_character() -> None:
    assert parsed_object(b'{"\\ud83d\\ude00": "\\u00e9"}', 32) == {"😀": "é"}


@given(st.text('[]{}"\\a', max_size=30))
def test_brackets_are_counted_as_they_were(text: str) -> None:
    deep = deepest = 0
    quoted = escaped = False
    for letter in text:
        if quoted:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif letter in "[{":
            deep += 1
            deepest = max(deepest, deep)
        elif letter in "]}":
            deep -= 1
    assert depth_of(text.encode()) == deepest


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
))  # fmt: skip
def test_a_field_is_of_its_kind_or_refused(value: Any) -> None:
    def taken(how: str, *given: Any) -> Any:
        """Return what is taken; None where it was refused."""
        try:
            return getattr(Fields({"f": value}), how)("f", *given)
        except ApiError as refused:
            return None if refused.status == 400 else refused

    assert taken("text") == (value if isinstance(value, str) else None)
    assert taken("needed") == (value if isinstance(value, str) and value.strip() else None)
    assert taken("flag", False) == (value if isinstance(value, bool) else False if value is None else None)
    numbers = isinstance(value, int | float) and not isinstance(value, bool) and -5 <= value <= 5
    assert taken("number", -5, 5) == (value if numbers else None)
    assert taken("whole", -5, 5) == (value if numbers and isinstance(value, int) else None)


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, "1", 10**400, float("nan"), 2])
def test_only_what_is_allowed_passes(value: Any) -> None:
    with pytest.raises(ApiError):
        Fields({"f": value}).only("f", (1, [], {"a": 2}), "no")


@pytest.mark.parametrize("value", [1, 1.0, [], {"a": 2}, None])
def test_what_asks_for_nothing_passes(value: Any) -> None:
    Fields({"f": value}).only("f", (1, [], {"a": 2}), "no")


# --- what is told of an error


@pytest.mark.parametrize(
    "kind",
    [
        library.CorruptMemoryError,
        library.MemoryBusyError,
        library.MemoryExistsError,
        library.MemoryIOError,
        library.MemoryNotFoundError,
        library.ModelMismatchError,
        library.NewerFormatError,
        library.CapacityError,
        library.BrokenFrameError,
        library.EverlongError,
        ValueError,
        TypeError,
        OverflowError,
        OSError,
        FileNotFoundError,
        PermissionError,
        RuntimeError,
    ],
)
@pytest.mark.parametrize(
    "said",
    [
        "catalog '/srv/all memories/lib/catalog.sqlite' is damaged",
        "/srv/all memories/.service/spool/0a/b.pdf holds no text",
        "[Errno 2] No such file or directory: '/srv/all memories/lib/x'",
        "there is no memory in memories/lib",
        "'./memories/lib': no",
        "read (/srv/all memories/lib)",
        "it lies at ~/memories, or /srv/other",
    ],
)
def test_no_refusal_tells_a_path(kind: type[Exception], said: str, caplog: pytest.LogCaptureFixture) -> None:
    hide_private_paths(Path("memories"))
    hide_private_paths(Path("/srv/all memories"))
    refusal = refusal_of(kind(said))
    assert not set(re.findall(r"srv|memories/|spool|lib|b\.pdf", refusal.message))
    assert refusal.message.strip()


@pytest.mark.parametrize(
    "said",
    ["block 7 does not exist", "time '2026/01/02': expected ISO 8601", "see https://example.org/a", "and/or", "a / b"],
)
def test_what_names_no_file_is_told_as_it_is(said: str) -> None:
    assert refusal_of(ValueError(said)).message == said
