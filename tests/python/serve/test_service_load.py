"""Fifty callers, twenty memories, a thousand questions: none lost, none from another's memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from everlong.service_data.limits import Limits
from support import random_text
from support.service import Running, running, until

pytestmark = pytest.mark.slow

MEMORIES, CALLERS, REQUESTS = 20, 50, 1000
RAM = 64 << 20
LIMITS = Limits(open_memories=12, host_bytes=RAM, waiting=40, waiting_each=40)


def fact_of(number: int) -> str:
    return f"The keeper of tower {number:02d} is called Amaranth{number:02d}."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("memories"), limits=LIMITS) as there:
        with httpx.Client(base_url=there.api, timeout=60) as http:
            for number in range(MEMORIES):
                http.post("/memories", json={"name": f"tower-{number}"}).raise_for_status()
                text = f"{random_text(400, seed=number)} {fact_of(number)} {random_text(700, seed=100 + number)}"
                body = {"source": f"tower {number}", "text": text, "wait": True}
                assert http.post(f"/memories/tower-{number}/sources", json=body).status_code == 200
        yield there


async def caller(http: httpx.AsyncClient, number: int, count: int, seconds: list[float], refused: list[int]) -> int:
    """Ask `count` questions of drawn memories. Return how many answers proved whose they are."""
    rng, right = Random(number), 0
    for turn in range(count):
        tower = rng.randrange(MEMORIES)
        question = {"role": "user", "content": f"Who is the keeper of tower {tower:02d}?"}
        body = {"model": f"tower-{tower}", "messages": [question], "max_tokens": 2, "stream": turn % 2 == 0}
        started = time.monotonic()
        while (answer := await http.post("/chat/completions", json=body)).status_code == 429:
            refused.append(int(answer.headers["retry-after"]))
            await asyncio.sleep(rng.uniform(0.3, 1.0))
        seconds.append(time.monotonic() - started)
        assert answer.status_code == 200, answer.text
        recall = everlong_of(answer)["recall"]
        assert {one["source"] for one in recall} == {f"tower {tower}"}
        right += any(fact_of(tower) in one["text"] for one in recall)
    return right


def everlong_of(answer: httpx.Response) -> dict[str, Any]:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return dict(answer.json()["everlong"])
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return dict(next(json.loads(one)["everlong"] for one in events[:-1] if '"everlong"' in one))


async def troublemaker(url: str, number: int, ended: asyncio.Event) -> None:
    """Send garbage, stop in the middle of a request, or go in the middle of an answer, until all others are done."""
    host, port = "127.0.0.1", int(url.rpartition(":")[2])
    rng = Random(1000 + number)
    body = json.dumps(
        {
            "model": f"tower-{number}",
            "messages": [{"role": "user", "content": "Who?"}],
            "max_tokens": 500,
            "stream": True,
        }
    )
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    while not ended.is_set():
        try:
            reader, writer = await asyncio.open_connection(host, port)
            kind = rng.randrange(3)
            if kind == 0:
                writer.write(bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n")
            elif kind == 1:
                writer.write((head + body[:20]).encode())
                await asyncio.sleep(0.3)
            else:
                writer.write((head + body).encode())
                await asyncio.wait_for(reader.read(100), 1)
            await writer.drain()
            writer.transport.abort()
        except (OSError, TimeoutError):
            continue
        await asyncio.sleep(1)


def test_nobody_is_lost_and_nobody_gets_anothers_memory(service: Running) -> None:
    seconds: list[float] = []
    refused: list[int] = []

    async def load() -> int:
        limits = httpx.Limits(max_connections=CALLERS)
        async with httpx.AsyncClient(base_url=service.api, timeout=120, limits=limits) as http:
            ended = asyncio.Event()
            trouble = [asyncio.create_task(troublemaker(service.url, number, ended)) for number in range(MEMORIES)]
            each = [caller(http, number, REQUESTS // CALLERS, seconds, refused) for number in range(CALLERS)]
            right = sum(await asyncio.gather(*each))
            ended.set()
            await asyncio.gather(*trouble)
            return right

    assert asyncio.run(load()) == REQUESTS
    assert len(seconds) == REQUESTS
    assert all(wait >= 1 for wait in refused)
    engine = service.service.engine
    until(lambda: not engine.active_jobs and not len(engine.queue))  # of troublemakers, who have gone
    engine.soon(lambda: None).result(60)
    # Asked by the thread that alone may: nothing is at work any more.
    seats = service.service.answers.pool.models
    assert len(seats) <= LIMITS.open_memories + LIMITS.at_once
    stats = [seat.mm.memory.stats() for seat in seats]
    assert sum(one.host_bytes + one.index_bytes for one in stats) <= RAM
    ordered = sorted(seconds)
    told = {"p50": statistics.median(ordered), "p99": ordered[int(0.99 * REQUESTS)], "refused": len(refused)}
    print("load:", json.dumps(told))
    if out := os.environ.get("EVERLONG_LOAD"):
        Path(out).write_text(json.dumps(told))
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2]))) as line:
        line.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in line.recv(100)
