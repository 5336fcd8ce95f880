"""A running service over a tiny model, on a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from everlong import MemoryConfig
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.server import Server, configured
from everlong.serve.service import Service
from everlong.service_data.keys import Keys
from everlong.service_data.limits import Limits
from support.models import tiny_model
from support.settings import TINY_MEMORY
from support.tokenizer import byte_tokenizer

MODEL = "tiny"
SECONDS = 120.0  # that a busy machine may take for what takes none
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Frames of their own memory hold less than a page of text, so that every answer recalls.
SETTINGS = TINY_MEMORY.changed(archive={"least_tokens": 16, "host_bytes": 1 << 24})


def chat_tokenizer() -> Any:
    """Return the byte tokenizer, with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_loaded(config: MemoryConfig = SETTINGS) -> LoadedModel:
    """Return a tiny model as a service has it."""
    return LoadedModel(MODEL, tiny_model(), chat_tokenizer(), config)


@dataclasses.dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclasses.dataclass(frozen=True)
class Running:
    """A service that answers at `url`."""

    url: str
    service: Service

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


@contextlib.contextmanager
def running(
    root: Path,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    encoder: Any = None,
    loaded: LoadedModel | None = None,
    graceful: int = 5,
) -> Iterator[Running]:
    """Run a service in a thread of this process until the block ends.

    `graceful`: seconds in which answers under way end.
    """
    root.mkdir(parents=True, exist_ok=True)
    service = Service(loaded or tiny_loaded(), root, keys, limits, encoder)
    server = Server(service, configured(service, graceful=graceful))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="service of a test")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", service)
    finally:
        server.should_exit = True
        thread.join()


def client_of(service: Running, key: str) -> httpx.Client:
    """Return a client of `/v1` that has a key."""
    return httpx.Client(base_url=service.api, headers={"Authorization": f"Bearer {key}"}, timeout=SECONDS)


@contextlib.contextmanager
def waiting(service: Running, who: str, body: dict[str, Any], path: str = "/chat/completions") -> Iterator[None]:
    """Ask, and go at the end without the answer."""
    url = httpx.URL(service.api)
    assert url.port is not None
    connection = http.client.HTTPConnection(url.host, url.port, timeout=SECONDS)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {who}", "Content-Type": "application/json"}
        connection.request("POST", f"{url.path.rstrip('/')}{path}", json.dumps(body), headers)
        yield


def used_tokens(service: Running, name: str) -> int:
    """Return how many tokens a key of the service had in this minute."""
    keys = service.service.keys
    return keys.used(next(key for key in keys.all if key.name == name))


def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.01)


def write(http: httpx.Client, source: str, text: str, **more: Any) -> dict[str, Any]:
    """Have a text read into the memory `m`, and return what is told of that."""
    answer = http.post("/memories/m/sources", json={"source": source, "text": text, "wait": True, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(http: httpx.Client) -> list[str]:
    """Return the sources of the memory `m`."""
    return [one["name"] for one in http.get("/memories/m/sources").json()["data"]]
