"""What was forgotten is gone from every holder, whoever forgot it: answers, conversations, files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from everlong.errors import MemoryIOError
from everlong.memory import Memory
from support import random_text
from support.service import MODEL, Running, chat_tokenizer, running, until, write

pytestmark = pytest.mark.slow

SECRET = "The password of the vault is amaranth"
QUESTION = "What is the password of the vault?"
TURN = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "memories") as there:
        yield there


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.api, timeout=60) as client:
        client.post("/memories", json={"name": "m"}).raise_for_status()
        write(client, "other", random_text(300, seed=3))
        write(client, "secret", f"{SECRET}. " * 8 + random_text(300))
        yield client


def respond(http: httpx.Client, **more: Any) -> httpx.Response:
    body = {"model": "m", "input": QUESTION, "max_output_tokens": 4, "temperature": 0, **more}
    return http.post("/responses", json=body)


def chat(http: httpx.Client, turns: list[dict[str, str]]) -> httpx.Response:
    return http.post("/chat/completions", json={"model": "m", "messages": turns, "max_tokens": 4, "temperature": 0})


def conversation(http: httpx.Client) -> list[dict[str, str]]:
    """Return turns that the service knows as a conversation, with one question more."""
    turns = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        said = chat(http, turns).json()["choices"][0]["message"]["content"]
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": QUESTION}]
    assert chat(http, turns).json()["everlong"]["tokens_known"] > 0
    return turns


def by_the_service(there: Running, http: httpx.Client) -> None:
    assert http.delete("/memories/m/sources", params={"source": "secret"}).json()["blocks"] > 0


def by_another_process(there: Running, http: httpx.Client) -> None:
    with Memory.open(there.service.registry.root / "m") as memory:
        assert memory.forget(source="secret") > 0
        memory.compact()


def by_a_service_whose_disk_refuses(there: Running, http: httpx.Client) -> None:
    def refusing(*given: Any) -> int:
        raise MemoryIOError("cannot write the segment: Input/output error")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Memory, "compact", refusing)
        assert http.delete("/memories/m/sources", params={"source": "secret"}).status_code == 507


def by_removing_it(there: Running, http: httpx.Client) -> None:
    assert http.delete("/memories/m").status_code == 200
    http.post("/memories", json={"name": "m"}).raise_for_status()


FORGOTTEN = [by_the_service, by_another_process, by_a_service_whose_disk_refuses, by_removing_it]
Forget = Callable[[Running, httpx.Client], None]


@pytest.mark.parametrize("forget", FORGOTTEN)
def test_kept_answers_and_conversations_tell_nothing_of_it(
    service: Running, http: httpx.Client, forget: Forget
) -> None:
    kept = respond(http).json()
    assert "amaranth" in json.dumps(kept)
    turns = conversation(http)
    forget(service, http)
    assert http.get(f"/responses/{kept['id']}").status_code == 404
    assert respond(http, previous_response_id=kept["id"]).status_code == 404
    anew = chat(http, turns)
    for answer in (anew, respond(http), http.post("/memories/m/search", json={"query": QUESTION})):
        assert answer.status_code == 200
        assert "amaranth" not in answer.text
    said = {"role": "assistant", "content": anew.json()["choices"][0]["message"]["content"]}
    assert anew.json()["everlong"]["tokens_known"] == 0
    assert chat(http, [*turns, said, *TURN]).json()["everlong"]["tokens_known"] > 0


@pytest.mark.parametrize("forget", FORGOTTEN)
def test_an_answer_under_way_ends_and_is_not_kept(service: Running, http: httpx.Client, forget: Forget) -> None:
    begun, told = threading.Event(), []

    def listen() -> None:
        body = {"model": "m", "input": QUESTION, "max_output_tokens": 4000, "temperature": 1.5, "stream": True}
        with httpx.stream("POST", f"{service.api}/responses", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    told.append(json.loads(line.removeprefix("data: ")))
                    if told[-1]["type"] == "response.output_text.delta":
                        begun.set()

    service.service.loaded.model.generation_config.eos_token_id = None
    listener = threading.Thread(target=listen)
    listener.start()
    assert begun.wait(60)
    forget(service, http)
    listener.join()
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["error"]["code"] in ("memory_changed", "memory_not_found")
    assert http.get(f"/responses/{told[0]['response']['id']}").status_code == 404
    assert "amaranth" not in respond(http).text


def test_texts_that_wait_are_forgotten_under_their_names(service: Running, http: httpx.Client) -> None:
    http.post("/memories/m/sources", json={"source": "long", "text": random_text(200_000)}).raise_for_status()
    waiting = [
        http.post("/memories/m/sources", json={"source": "secret", "text": SECRET, "tags": ["x"]}),
        http.put("/memories/m/files/secret.txt", content=SECRET.encode()),
        http.put("/memories/m/files/mine.txt?tag=y", content=b"mine"),
    ]
    assert [answer.status_code for answer in waiting] == [202] * 3
    assert http.delete("/memories/m/sources", params={"source": "secret"}).status_code == 200
    states = [http.get(f"/memories/m/readings/{answer.json()['id']}").status_code for answer in waiting]
    assert states == [404, 404, 200]
    assert http.delete("/memories/m/sources", params={"tag": "y"}).status_code == 200
    assert http.delete("/memories/m/sources", params={"source": "long"}).status_code == 200
    left = [one["source"] for one in http.get("/memories/m/readings").json()["data"]]
    assert left == ["other"]
    assert list(service.service.folder.spool.iterdir()) == []


def bytes_of(text: str) -> list[bytes]:
    """Return what a text may look like in a file: letters, and token ids of several widths."""
    ids = chat_tokenizer()(text)["input_ids"]
    return [text.encode(), *(np.asarray(ids, dtype).tobytes() for dtype in (np.int64, np.int32, np.int16))]


def files_with(folder: Path, text: str) -> set[str]:
    needles, found = bytes_of(text), set()
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the service may remove it meanwhile
            data = file.read_bytes() if file.is_file() else b""
            if any(needle in data for needle in needles):
                found.add(str(file.relative_to(folder)))
    return found


@pytest.mark.parametrize("forget", [by_the_service, by_removing_it])
def test_no_byte_of_the_service_has_its_words(
    tmp_path: Path, forget: Forget, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("SQLITE_TMPDIR", str(scratch))
    with running(tmp_path / "memories") as service, httpx.Client(base_url=service.api, timeout=60) as http:
        http.post("/memories", json={"name": "m"}).raise_for_status()
        write(http, "other", random_text(300, seed=3))
        write(http, "secret", f"{SECRET}. " * 8 + random_text(300))
        respond(http)
        conversation(http)
        http.get("/memories/m/export")
        assert len(files_with(tmp_path, "amaranth")) > 2  # segments, forks, kept answers
        forget(service, http)
        assert files_with(tmp_path, "amaranth") == set()
        assert files_with(tmp_path, "secret") == set()
    assert files_with(tmp_path, "amaranth") == set()
    assert not any("amaranth" in said for said in capfd.readouterr())


def test_an_export_that_is_being_sent_is_cut_off(service: Running, http: httpx.Client) -> None:
    write(http, "long", random_text(12_000, seed=5))
    host, port = "127.0.0.1", int(service.url.rpartition(":")[2])
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, port))
        slow.sendall(f"GET /v1/memories/m/export HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = slow.recv(1000)
        promised = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        by_the_service(service, http)
        assert list(service.service.folder.exports.iterdir()) == []
        taken = 0
        with contextlib.suppress(ConnectionError):
            while some := slow.recv(1 << 20):
                taken += len(some)
        assert taken < promised
    assert http.get("/memories/m/export").status_code == 200


def test_a_sweep_hears_what_another_process_forgot(service: Running, http: httpx.Client) -> None:
    respond(http)
    conversation(http)
    by_another_process(service, http)
    service.service.sweep()
    service.service.engine.soon(lambda: None).result(60)
    assert files_with(service.service.folder.path, "amaranth") == set()
    assert len(service.service.answers.conversations) == 0


def test_bytes_that_a_disk_kept_go_in_a_sweep_and_those_of_a_killed_process_at_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "memories"
    for forget in (by_a_service_whose_disk_refuses, lambda there, http: None):
        with running(root) as service, httpx.Client(base_url=service.api, timeout=60) as http:
            http.post("/memories", json={"name": "m"})
            write(http, "secret", f"{SECRET}. " * 8 + random_text(300))
            forget(service, http)
            assert files_with(root / "m", "amaranth")
            service.service.sweep()
            assert bool(files_with(root / "m", "amaranth")) == (forget is not by_a_service_whose_disk_refuses)
    with Memory.open(root / "m") as memory:
        assert memory.forget(source="secret") > 0
    with running(root) as service:
        until(lambda: not files_with(root / "m", "amaranth"))


def test_an_answer_of_the_model_alone_is_kept_whatever_is_forgotten(service: Running, http: httpx.Client) -> None:
    kept = respond(http, model=MODEL).json()
    by_the_service(service, http)
    assert http.get(f"/responses/{kept['id']}").status_code == 200


def test_descriptors_threads_and_files_are_as_before(service: Running, http: httpx.Client) -> None:
    def use(number: int) -> None:
        write(http, f"s{number}", random_text(200, seed=number))
        respond(http)
        chat(http, [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "."}, *TURN])
        http.get("/memories/m/export")
        http.delete("/memories/m/sources", params={"source": f"s{number}"})

    def counted() -> tuple[int, int, int]:
        files = sum(1 for _ in service.service.folder.path.rglob("*"))
        return len(os.listdir("/proc/self/fd")), threading.active_count(), files

    for number in range(3):
        use(number)
    before = counted()
    for number in range(3, 12):
        use(number)
    after = counted()
    assert all(new <= old + 4 for old, new in zip(before, after, strict=True)), (before, after)
