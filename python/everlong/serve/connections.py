"""Connections that come to no request, or take no answer, are closed: uvicorn itself waits for them for ever."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from everlong.service_data.limits import Limits

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LINGER = 60.0  # seconds in which a caller takes what is left for him; then the connection is cut


def connections_within(limits: Limits) -> type[H11Protocol]:
    """Return the class of a server's connections, with its limits."""
    return type("Connection", (_Connection,), {"limits": limits})


class _Connection(H11Protocol):
    """A connection of uvicorn with further limits.

    - A request's headers are whole `Limits.header_seconds` after their first byte, or after the connection was made.
    - What comes behind a refusal, as the rest of a body that is too large, is taken for no longer either.
    - `Limits.connections` are open at once, and half of them from one address. This machine's own may have all.
    - What is not taken is cut off: closing alone would wait for the caller.
    """

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._until_headers: asyncio.TimerHandle | None = None
        self._until_taken: asyncio.TimerHandle | None = None
        self.site = ""  # where it comes from

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.site = site_of(self.client[0] if self.client else "")
        others = [one for one in self.connections if isinstance(one, _Connection) and one.site == self.site]
        full = bool(self.site) and len(others) > max(1, self.limits.connections // 2)
        if full or len(self.connections) > self.limits.connections:
            transport.write(_BUSY)
            self._end()
            return
        self._expect(begun=True)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._expect(begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        else:
            self._expect(begun=bool(self.conn.trailing_data[0]))

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._until_taken = self._until_taken or self.loop.call_later(_LINGER, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._until_taken = _forget(self._until_taken)

    def connection_lost(self, exc: Exception | None) -> None:
        self._until_headers, self._until_taken = _forget(self._until_headers), _forget(self._until_taken)
        super().connection_lost(exc)

    def _expect(self, *, begun: bool) -> None:
        """Let the next request have its time; `begun`: it has begun to come. One under way needs none here."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._until_headers = _forget(self._until_headers)
        elif begun and self._until_headers is None:
            self._until_headers = self.loop.call_later(self.limits.header_seconds, self._end)

    def _end(self) -> None:
        """Close it, and cut it off where what is left is not taken."""
        self._until_headers = _forget(self._until_headers)
        self.transport.close()
        self._until_taken = self._until_taken or self.loop.call_later(_LINGER, self.transport.abort)


def site_of(address: str) -> str:
    """Return what stands for an address where they are counted: of IPv6 its network; "" for this machine's own."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return site_of(str(found.ipv4_mapped))
        if not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return "" if found.is_loopback else str(found)


def _forget(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer. Return what stands in its place: none."""
    if timer is not None:
        timer.cancel()
    return None
