"""A connection that comes to no request, or takes no answer, is closed: it holds no place of another caller."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

import everlong.serve.connections as connections
from everlong.serve.connections import connections_within, site_of
from everlong.service_data.limits import Limits
from support.service import until

LIMITS = Limits(header_seconds=0.3, connections=6)
WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = b"a" * (64 << 20)  # more than the machine takes between two programs that do not read


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/refused":  # before the body came
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    while (await receive()).get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"here"
    if scope["path"] == "/later":
        await asyncio.sleep(2 * LIMITS.header_seconds)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for at in range(0, len(body), 1 << 16):
        await send({"type": "http.response.body", "body": body[at : at + (1 << 16)], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@dataclasses.dataclass(frozen=True)
class Served:
    port: int
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Give a minute to headers of who connects in this block: on a busy machine 0.3 s are over before his turn."""
        kind: Any = self.server.config.http
        quick = kind.limits
        kind.limits = dataclasses.replace(quick, header_seconds=60.0)
        try:
            yield
        finally:
            kind.limits = quick

    def connect(self, first: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        made.sendall(first)
        return made

    def until_closed(self) -> None:
        until(lambda: not self.server.server_state.connections)


@contextlib.contextmanager
def served(limits: Limits) -> Iterator[Served]:
    config = uvicorn.Config(
        application,
        port=0,
        http=connections_within(limits),
        log_config=None,
        lifespan="off",
        timeout_keep_alive=60,
        limit_concurrency=limits.connections,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Served(server.servers[0].sockets[0].getsockname()[1], server)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def there() -> Iterator[Served]:
    with served(LIMITS) as found:
        yield found


def ended(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes. A test that waits 30 s for that fails."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            came += piece
    connection.close()
    return came


def answer_of(connection: socket.socket) -> bytes:
    """Return what comes up to the end of an answer."""
    came = b""
    while not came.endswith(b"0\r\n\r\n"):
        piece = connection.recv(1 << 16)
        assert piece, f"it was closed before its answer was whole: {came!r}"
        came += piece
    return came


def answered_once(there: Served) -> socket.socket:
    """Return a connection of which one request was answered. It may wait: no time runs until the next one begins."""
    with there.patient():
        connection = there.connect(WHOLE)
        assert b"200 OK" in answer_of(connection)
    return connection


def is_closed_while_it_drips(connection: socket.socket) -> bool:
    """Send letter by letter. Return whether the other side closes before half a minute is over."""
    with connection:
        for _ in range(3000):
            try:
                connection.sendall(b"a")
            except OSError:
                return True
            time.sleep(0.01)
    return False


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_headers_that_never_end_hold_no_connection(there: Served, sent: bytes) -> None:
    several = [there.connect(sent) for _ in range(LIMITS.connections)]
    assert all(ended(one) == b"" for one in several)
    there.until_closed()
    with there.patient():
        assert httpx.get(there.url, timeout=60).status_code == 200


def test_headers_that_come_letter_by_letter_do_not_hold_it_either(there: Served) -> None:
    dripping = there.connect(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ")
    assert is_closed_while_it_drips(dripping)


def test_between_two_requests_it_is_the_same(there: Served) -> None:
    kept = answered_once(there)
    kept.sendall(b"GET / HTTP/1.1\r\nHo")
    assert ended(kept) == b""
    piped = answered_once(there)
    piped.sendall(WHOLE + b"GET / HTTP/1.1\r\nHo")
    assert ended(piped).count(b"200 OK") == 1


def test_a_kept_connection_that_sends_nothing_is_no_beginning(there: Served) -> None:
    with httpx.Client(base_url=there.url, timeout=60) as client:
        with there.patient():
            client.get("/")
        first = client.get("/")
        time.sleep(2 * LIMITS.header_seconds)
        second = client.get("/")
        assert first.status_code == second.status_code == 200
        assert first.extensions["network_stream"] is second.extensions["network_stream"]  # one connection


@pytest.mark.slow
def test_an_answer_may_take_longer_than_headers(there: Served) -> None:
    with answered_once(there) as slow:
        slow.sendall(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"here" in answer_of(slow)
        slow.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
        for letter in (b"a", b"b", b"c"):
            time.sleep(0.6 * LIMITS.header_seconds)
            slow.sendall(letter)
        assert b"200 OK" in answer_of(slow)


def test_a_body_that_was_refused_is_not_taken_for_ever(there: Served) -> None:
    dripping = answered_once(there)
    dripping.sendall(b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
    assert b" 413 " in dripping.recv(1 << 16)
    assert is_closed_while_it_drips(dripping)


def test_who_takes_no_answer_is_cut_off(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LINGER", 0.2)
    with there.patient(), there.connect(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n") as taking:
        assert taking.recv(1)  # it was there, however soon it is cut off
        there.until_closed()
        assert len(ended(taking)) < len(LARGE)


def test_who_takes_an_answer_slowly_gets_all_of_it(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LINGER", 5.0)
    with there.patient(), httpx.stream("GET", f"{there.url}/large", timeout=60) as answer:
        assert sum(map(len, answer.iter_raw())) == len(LARGE)


def test_one_address_has_half_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "site_of", lambda address: "192.0.2.7")
    with served(dataclasses.replace(LIMITS, header_seconds=60.0)) as there:
        held = [there.connect() for _ in range(LIMITS.connections // 2)]
        while len(there.server.server_state.connections) < len(held):
            time.sleep(0.01)
        assert b" 503 " in ended(there.connect())
        held.pop().close()
        while len(there.server.server_state.connections) > len(held):
            time.sleep(0.01)
        assert httpx.get(there.url, timeout=60).status_code == 200
        for one in held:
            one.close()


def test_there_are_no_more_connections_than_that() -> None:
    with served(dataclasses.replace(LIMITS, header_seconds=60.0)) as there:
        held = [there.connect() for _ in range(LIMITS.connections)]
        while len(there.server.server_state.connections) < len(held):
            time.sleep(0.01)
        assert b" 503 " in ended(there.connect())
        for one in held:
            one.close()


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("", ""),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_of_ipv6_counts_by_its_network(address: str, site: str) -> None:
    assert site_of(address) == site
