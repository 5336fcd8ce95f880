"""Pages of other sites, and what no honest client sends, are refused before anything is done."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import pytest

from everlong.serve.guard import Guard
from everlong.serve.metrics import Metrics
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Keys
from everlong.service_data.limits import Limits

HOST = "127.0.0.1:8000"
NAVIGATES = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
PATHS = ("/v1/memories/lib/export", "/v1/memories/lib", "/v1/memories", "/metrics", "/v1/models", "/mcp", "/health")


def asked(
    path: str,
    headers: dict[str, str] | list[tuple[str, str]],
    *,
    method: str = "GET",
    body: tuple[bytes, ...] = (b"",),
    limits: Limits | None = None,
    pause: float = 0.0,
    kind: str = "http",
    sites: tuple[str, ...] = (),
    host: str = HOST,
) -> tuple[int, bytes]:
    """Return the status that a request gets, and the body that came through to the application."""
    came: list[bytes] = []
    sent: list[dict[str, Any]] = []
    left = list(body)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            came.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [*([("host", host)] if host else []), *(headers.items() if isinstance(headers, dict) else headers)]
    path, _, query = path.partition("?")
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given],
    }
    guard = Guard(application, Keys(()), limits or Limits(), Metrics(), sites, sites)
    try:
        asyncio.run(guard(scope, receive, send))
    except Exception as error:  # the application's framework answers for it
        return int(getattr(error, "status", 500)), b"".join(came)
    if sent[0]["type"] != "http.response.start":
        return 0, b"".join(came)
    return int(sent[0]["status"]), b"".join(came)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize("path", [*PATHS, "/"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-site": "another", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket", "upgrade": "websocket"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": f"http://{HOST}", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
    ],
)
def test_nothing_is_done_for_a_page_of_another_site(method: str, path: str, headers: dict[str, str]) -> None:
    assert asked(path, headers, method=method)[0] == 403


@pytest.mark.parametrize("path", PATHS)
def test_a_link_of_another_site_opens_the_page_and_nothing_else(path: str) -> None:
    link = {"sec-fetch-site": "cross-site", **NAVIGATES}
    assert asked("/", link)[0] == 200
    assert asked("/", {**link, "referer": "https://evil.example/links"})[0] == 200
    assert asked(path, link)[0] == 403
    assert asked("/", link, method="POST")[0] == 403


def test_a_browser_that_says_no_more_than_the_page_it_comes_from_is_refused() -> None:
    assert asked("/v1/memories/lib/export", {"referer": "https://evil.example/page"})[0] == 403
    assert asked("/v1/memories/lib/export", {"referer": f"http://{HOST}/"})[0] == 200
    assert asked("/v1/memories/lib/export", {"referer": "about:blank"})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://memory.example.org", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://Memory.Example.org"}, 200),
        ({"origin": "https://memory.example.org:8443", "referer": "https://memory.example.org:8443/"}, 200),
        ({"referer": "https://memory.example.org/"}, 200),
        ({"origin": "https://memory.example.org", "sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://memory.example.org:9999"}, 403),
        ({"origin": "https://evil.memory.example.org"}, 403),
        ({"origin": "https://memory.example.org", "referer": "https://evil.example/memory.example.org"}, 403),
        ({"origin": "https://localhost"}, 403),
    ],
)
def test_the_page_behind_a_proxy_is_the_services_own_where_its_site_is_named(
    headers: dict[str, str], status: int
) -> None:
    sites = ("memory.example.org", "memory.example.org:8443")
    assert asked("/v1/models", headers, sites=sites)[0] == status
    assert asked("/v1/models", headers)[0] == 403
    for host in (*sites, "memory.example.org:8000"):
        assert asked("/v1/models", [("host", host)], sites=sites, host="")[0] == 200
    assert asked("/v1/models", [("host", "memory.example.org")], host="")[0] == 421


@pytest.mark.parametrize("origin", ["null", "", "file://", "http://"])
def test_an_empty_name_is_no_site(origin: str) -> None:
    assert asked("/v1/models", {"origin": origin}, sites=("",))[0] == 403
    assert asked("/v1/models", {}, sites=("",), host="")[0] == 421


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("[::1]", 200),
        ("[::1]:8000", 200),
        ("127.0.0.1:8000", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]evil.example", 421),
        ("[::1", 421),
        ("[127.0.0.1x", 421),
        ("[evil.example]", 421),
        ("localhost:evil.example", 421),
        ("localhost.evil.example", 421),
        (":8000", 421),
    ],
)
def test_a_host_is_a_name_of_the_service_or_an_address(host: str, status: int) -> None:
    assert asked("/v1/models", [("host", host)], host="", sites=("::1",))[0] == status


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/models///", "/v1/models"),
        ("//", "/"),
        ("/v1/memories/lib/files/a%2F", "/v1/memories/lib/files/a/"),  # of a name, which is to be refused
        ("/v1/memories/lib/files/%2F/", "/v1/memories/lib/files//"),
    ],
)
def test_slashes_at_the_end_of_an_address_mean_nothing(raw: str, path: str) -> None:
    came = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        came.append(scope["path"])

    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": [(b"host", HOST.encode())]}
    named = {"path": unquote(raw), "raw_path": raw.encode()}
    asyncio.run(Guard(application, Keys(()), Limits(), Metrics(), ())({**scope, **named}, _nothing, _nothing))
    assert came == [path]


def test_a_refused_page_is_told_why() -> None:
    with pytest.raises(ApiError) as refused:
        Guard(_nothing, Keys(()), Limits(), Metrics(), ())._require(
            {"method": "POST", "path": "/v1/models", "headers": [], "query_string": b""},
            {"host": HOST, "origin": "https://memory.example.org", "sec-fetch-site": "same-origin"},
            1,
        )
    for told in ("'https://memory.example.org'", repr(HOST), "proxy", "--allow-host"):
        assert told in refused.value.message


async def _nothing(*args: Any) -> None:
    pass


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "none", **NAVIGATES},
        {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "origin": f"http://{HOST}"},
        {"origin": f"https://{HOST}"},
    ],
)
def test_the_services_own_page_and_programs_are_answered(path: str, headers: dict[str, str]) -> None:
    assert asked(path, headers)[0] == 200


def test_what_is_neither_a_request_nor_the_services_life_is_closed() -> None:
    assert asked("/v1/models", {}, kind="websocket") == (0, b"")


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("origin", f"http://{HOST}", "https://evil.example"),
        ("sec-fetch-site", "none", "cross-site"),
        ("content-length", "1", "2"),
        ("authorization", "Bearer a", "Bearer b"),
        ("host", HOST, HOST),
    ],
)
def test_a_header_that_decides_stands_once(name: str, one: str, two: str) -> None:
    assert asked("/v1/models", [(name, one), (name, two)])[0] == 400


@pytest.mark.parametrize("path", ["/v1/memories/%ff", "/v1/memories/lib/sources?source=%ed%a0%80", "/v1/models?%c3"])
def test_an_address_is_utf_8(path: str) -> None:
    assert asked(path, {})[0] == 400
    assert asked("/v1/memories/%C3%A4?source=%e2%82%ac%20%00", {})[0] == 200


@pytest.mark.parametrize("length", ["-1", "1e3", "\xb2", "9" * 25, "9" * 5000, " ", "0x10"])
def test_a_length_is_a_number(length: str) -> None:
    assert asked("/v1/models", {"content-length": length})[0] == 413


@pytest.mark.parametrize(
    ("method", "path", "upload"),
    [
        ("PUT", "/v1/memories/lib/files/a.txt", True),
        ("PUT", "/v1/memories/files/files/files", True),
        ("POST", "/v1/memories/lib/files/a.txt", False),
        ("POST", "/v1/memories/files/search", False),
        ("PUT", "/v1/memories/files/search", False),
        ("PUT", "/v1/memories/a/files/b/search", False),
        ("POST", "/v1/chat/completions/files/a", False),
        ("PUT", "/files/a", False),
    ],
)
def test_only_a_file_that_is_sent_may_be_large(method: str, path: str, upload: bool) -> None:
    limits, large = Limits(body_bytes=10, upload_bytes=1000), (b"a" * 400, b"a" * 400)
    for headers in ({}, {"content-length": "800"}):
        status, came = asked(path, headers, method=method, body=large, limits=limits)
        assert (status == 200 and len(came) == 800) if upload else (status == 413 and came == b"")


def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    drops = tuple(b"a" for _ in range(200))
    quick = Limits(body_seconds=10.0, body_rate=1 << 20)
    assert asked("/v1/chat/completions", {}, method="POST", body=drops, limits=quick)[0] == 200
    slow = Limits(body_seconds=0.25, body_rate=1 << 20)
    status, came = asked("/v1/chat/completions", {}, method="POST", body=drops, limits=slow, pause=0.02)
    assert status == 408
    assert 0 < len(came) < 200
