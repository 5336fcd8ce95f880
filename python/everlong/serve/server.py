"""A service on a port, until it is told to end."""

from __future__ import annotations

import ipaddress
import logging
import socket

import uvicorn

from everlong.serve.app import application
from everlong.serve.connections import connections_within
from everlong.serve.service import Service

_LOGGER = logging.getLogger("everlong.serve")
_ANYWHERE = ("0.0.0.0", "::", "")


def serve(service: Service, host: str, port: int, hosts: tuple[str, ...] = ()) -> None:
    """Serve until SIGINT or SIGTERM. Answers under way end, and what was acknowledged is on disk."""
    config = configured(service, host, port, hosts)
    listening = config.bind_socket()
    listening.listen(config.backlog)  # who reads the line below may connect at once, and waits until it is served
    name = f"[{host}]" if ":" in host else host
    _LOGGER.info("listens at http://%s:%d", name, listening.getsockname()[1])
    Server(service, config).run([listening])


class Server(uvicorn.Server):
    """A server that ends waits before it waits for requests to end."""

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.readings.end_waits()
        await super().shutdown(sockets)


def configured(
    service: Service, host: str = "127.0.0.1", port: int = 0, hosts: tuple[str, ...] = (), *, graceful: int = 30
) -> uvicorn.Config:
    """Return how a service is served. `hosts` as in `Guard`, and their pages are its own.

    `graceful`: seconds in which answers under way end.
    """
    return uvicorn.Config(
        application(service, (*hosts, host), hosts),
        host=host,
        port=port,
        http=connections_within(service.limits),
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,  # all headers of a request
        timeout_keep_alive=30,
        timeout_graceful_shutdown=graceful,
        limit_concurrency=service.limits.connections,
        ws="none",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host. ValueError for a name that leads nowhere."""
    if host in _ANYWHERE:
        return False
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ValueError(f"--host {host}: {error}") from None
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
