"""What stands in front of every request: who asks, from where, how much; and what is noted of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import ipaddress
import logging
import re
import time
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong.serve.logs import id_of, request_id
from everlong.serve.metrics import Metrics
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Keys
from everlong.service_data.limits import Limits

_LOGGER = logging.getLogger("everlong.serve")
_SEND_SECONDS = 60.0  # a caller who takes nothing for so long is given up
_UPLOAD = re.compile(r"/v1/memories/[^/]+/files/[^/]+")
# Two of these would mean one thing to a proxy in front, and another here.
_ONCE = frozenset({b"host", b"origin", b"sec-fetch-site", b"content-length", b"authorization", b"content-type"})
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")
_SAFE = ("GET", "HEAD")
_OWN_PAGES = ("none", "same-origin")  # of Sec-Fetch-Site: nobody's page, or the service's own
# Whoever may reach the service may ask for these without a key: they tell nothing of a memory.
OPEN = frozenset({"/", "/health", "/ready"})
OPEN_BELOW = "/page/"

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class AnswerCutError(Exception):
    """Ends a request whose answer nobody takes, or may not have the rest of."""


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        limits: Limits,
        metrics: Metrics,
        hosts: Collection[str],
        sites: Collection[str] = (),
    ) -> None:
        """`hosts`: names under which the service is asked; addresses always pass.

        `sites`: whose pages are the service's own, whatever Host a proxy in front of it passes: names, with a port
        where the browser shows one.
        """
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._hosts = {_without_port(host.lower()) for host in hosts} - {""} | {"localhost"}
        self._sites = frozenset(site.lower() for site in sites) - {""}  # pages that hide where they are say "null"
        self._tracer = _tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            # Some clients end each path with a slash. A redirect would name the host that a proxy passed.
            # One that is spelled as %2F is of a name, and stays.
            path, raw = scope["path"], scope.get("raw_path") or scope["path"].encode()
            slashes = len(raw) - len(raw.rstrip(b"/"))
            await self._request({**scope, "path": path[: len(path) - slashes] or "/"}, receive, send)
        else:  # there is nothing to connect to, and a page of another site may ask for it
            await send({"type": "websocket.close", "code": 1008})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        asked = request_id.set(id_of(headers.get("x-request-id")))
        started, status = time.monotonic(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name for name, _ in message["headers"]}
                own = [(name, value) for name, value in _HEADERS if name not in there]
                message["headers"] = [*message["headers"], *own, (b"x-request-id", request_id.get().encode())]
            try:
                await asyncio.wait_for(send(message), _SEND_SECONDS)
            except (TimeoutError, ConnectionError) as error:
                raise AnswerCutError from error

        try:
            with self._span(scope):
                await self._checked(scope, headers, receive, sending)
        except (AnswerCutError, ClientDisconnect):
            status = 499
        finally:
            self._note(scope, status, time.monotonic() - started)
            request_id.reset(asked)

    async def _checked(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        try:
            upload = scope["method"] == "PUT" and _UPLOAD.fullmatch(scope["path"])
            most = self._limits.upload_bytes if upload else self._limits.body_bytes
            self._require(scope, headers, most)
            scope.setdefault("state", {})["key"] = self._key(scope, headers)
        except ApiError as error:
            self._metrics.errors.labels(error.code or "error").inc()
            await send_error(error, send)
            return
        await self._app(scope, self._limited(receive, most), send)

    def _key(self, scope: Scope, headers: dict[str, str]) -> Any:
        path = scope["path"]
        if path in OPEN or path.startswith(OPEN_BELOW):
            return None
        return self._keys.bearer(headers.get("authorization"))

    def _require(self, scope: Scope, headers: dict[str, str], most: int) -> None:
        """Raise ApiError for what no honest client sends."""
        if len(scope["headers"]) > self._limits.headers:
            raise ApiError(431, f"expected at most {self._limits.headers} headers", "too_many_headers")
        names = [name for name, _ in scope["headers"] if name in _ONCE]
        if len(set(names)) < len(names):
            raise ApiError(400, "a header that is to stand once stands twice", "invalid_header")
        for given in (scope.get("raw_path") or b"", scope["query_string"]):
            try:
                unquote_to_bytes(given).decode("utf-8")
            except UnicodeDecodeError:
                raise ApiError(400, "the address is no UTF-8", "invalid_address") from None
        host = headers.get("host", "")
        if not self._is_mine(host):  # the name of another site that leads here
            raise ApiError(421, f"this service is not {host[:100]!r}: --allow-host adds a name", "unknown_host")
        if not _opens_page(scope, headers) and (why := _foreign(headers, {host.lower(), *self._sites})):
            raise ApiError(
                403,
                f"requests of pages of other sites are refused: {why}, and the service is asked as {host[:100]!r}. "
                "Where that is its own page, a proxy passes another Host: let it pass the browser's, or name the "
                "page's site with --allow-host",
                "cross_origin",
            )
        length = headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,19}", length) or int(length) > most:
            raise ApiError(413, f"the body has {length[:20]} bytes: expected at most {most:,}", "body_too_large")

    def _is_mine(self, host: str) -> bool:
        name = _without_port(host.lower())
        if name in self._hosts:
            return True
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return False

    def _limited(self, receive: Receive, most: int) -> Receive:
        """Return what receives a body of at most `most` bytes, which neither pauses for long nor comes too slowly."""
        seen, waited, whole = 0, 0.0, False

        async def receiving() -> Message:
            nonlocal seen, waited, whole
            if whole:
                return await receive()
            began, patience = time.monotonic(), self._limits.body_seconds
            left = patience + seen / self._limits.body_rate - waited
            try:
                message = await asyncio.wait_for(receive(), min(patience, left))
            except TimeoutError:
                raise ApiError(408, "the body came too slowly", "body_too_slow") from None
            waited += time.monotonic() - began
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > most:
                raise ApiError(413, f"the body has more than {most:,} bytes", "body_too_large")
            return message

        return receiving

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("endpoint"), "__name__", "none")
        key = getattr(scope.get("state", {}).get("key"), "name", "")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        told = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000), "key": key}
        _LOGGER.info("request", extra={"request": request_id.get(), **told})

    def _span(self, scope: Scope) -> contextlib.AbstractContextManager[Any]:
        """Return a span of OpenTelemetry, where that is installed."""
        if self._tracer is None:
            return contextlib.nullcontext()
        attributes = {"http.request.method": scope["method"], "everlong.request_id": request_id.get()}
        span: contextlib.AbstractContextManager[Any] = self._tracer.start_as_current_span(
            "everlong.request", attributes=attributes
        )
        return span


def _without_port(host: str) -> str:
    """Return the name, or the address, of a Host; "" for what is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]


def _foreign(headers: dict[str, str], own: Collection[str]) -> str:
    """Return why a page of another site, or of nobody knows which, has its visitor's browser send this; "" for none.

    `own`: the sites whose pages may.
    """
    site, origin, referer = headers.get("sec-fetch-site", "none"), headers.get("origin"), headers.get("referer", "")
    if origin is not None and origin.partition("://")[2].lower() not in own:
        return f"this one is of {origin[:100]!r}"
    if site.lower() not in _OWN_PAGES:
        return f"the browser says that this one is {site[:20]!r}"
    _, named, page = referer.partition("://")
    return f"this one is of {referer[:100]!r}" if named and page.partition("/")[0].lower() not in own else ""


def _opens_page(scope: Scope, headers: dict[str, str]) -> bool:
    """Return whether a link leads to the service's own page. It tells nothing, and nobody reads it from outside."""
    mode, place = headers.get("sec-fetch-mode", "navigate"), headers.get("sec-fetch-dest", "document")
    is_link = "origin" not in headers and mode == "navigate" and place == "document"
    return scope["path"] == "/" and scope["method"] in _SAFE and is_link


async def send_error(error: ApiError, send: Send) -> None:
    """Send a refusal, outside of any route."""
    from starlette.responses import JSONResponse

    response = JSONResponse(error.body, error.status, error.headers)
    await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


def _tracer() -> Any:
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    return importlib.import_module("opentelemetry.trace").get_tracer("everlong")
