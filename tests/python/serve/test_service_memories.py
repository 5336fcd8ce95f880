"""Memories behind HTTP: texts and files are read in the background, found, forgotten, kept through kill -9."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.cli import main
from everlong.memory import Memory
from support import random_text, tiny_model
from support.processes import PROCESSES
from support.service import Running, chat_tokenizer, names, running, write

pytestmark = pytest.mark.slow
# As support.service has them, for the command line.
SETS = [
    *[("frame", f"{zone}_tokens", tokens) for zone, tokens in (("sink", 4), ("recalled", 256), ("rolling", 256))],
    *[("frame", "tokens", 768), ("frame", "evict_tokens", 64), ("frame", "chunk_tokens", 128)],
    *[("archive", "block_tokens", 128), ("archive", "least_tokens", 16), ("search", "index", "lexical")],
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "memories") as there:
        yield there


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.api, timeout=60) as client:
        client.post("/memories", json={"name": "m"}).raise_for_status()
        yield client


def test_texts_and_files_are_read_listed_found_and_forgotten(http: httpx.Client) -> None:
    write(http, "plain", "The heron of Loch Arden stands on one leg. " + random_text(900))
    sent = http.put("/memories/m/files/notes.md?tag=work&wait=true", content=b"# Ferry\n\nThe ferry leaves at dawn.\n")
    assert sent.json()["status"] == "done", sent.text
    assert names(http) == ["plain", "notes.md"] or names(http) == ["plain", "notes"]
    found = http.post("/memories/m/search", json={"query": "Where does the heron stand?", "source": "plain"}).json()
    assert any("heron of Loch Arden" in one["text"] for one in found["data"])
    assert {one["source"] for one in found["data"]} == {"plain"}
    only = http.post("/memories/m/search", json={"query": "heron ferry", "tags": "work"}).json()["data"]
    assert {one["source"] for one in only} == {names(http)[1]}
    block = http.get(f"/memories/m/blocks/{found['data'][0]['block_id']}").json()
    assert block["source"] == "plain"
    listed = http.get("/memories/m/sources").json()
    first = http.get("/memories/m/sources", params={"limit": 1}).json()
    rest = http.get("/memories/m/sources", params={"limit": 1, "after": first["next"]}).json()
    assert listed["next"] is None is rest["next"]
    assert first["data"] + rest["data"] == listed["data"]
    for wrong in ({"limit": 0}, {"limit": "x"}, {"after": -1}, {"limit": "9" * 30}, {"before": 1}):
        assert http.get("/memories/m/sources", params=wrong).status_code == 400, wrong
    overview = http.get("/memories/m").json()
    assert len(overview["sources"]) == 2
    assert sum(bar["read"] for bar in overview["timeline"]) == overview["stats"]["tokens"]
    assert http.post("/memories/m/verify").json()["damage"] == []
    assert http.delete("/memories/m/sources", params={"source": "plain"}).json()["blocks"] > 0
    assert http.delete("/memories/m/sources", params={"source": "plain"}).status_code == 404
    assert len(names(http)) == 1
    again = http.post("/memories/m/search", json={"query": "heron of Loch Arden"}).json()["data"]
    assert not any("heron" in one["text"] for one in again)


@pytest.mark.parametrize("block", [99, 1 << 31, 1 << 63, 10**30])
def test_a_block_that_is_not_there_is_not_found(http: httpx.Client, block: int) -> None:
    answer = http.get(f"/memories/m/blocks/{block}")
    assert answer.status_code == 404, answer.text


@pytest.mark.parametrize(("method", "path"), [("PUT", "/memories/m/files/a%2F"), ("GET", "/memories/m%2F")])
def test_no_answer_sends_the_caller_elsewhere(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, content=b"text")
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert names(http) == []


@pytest.mark.parametrize("field", ["source", "tags"])
def test_a_search_of_no_names_is_refused(http: httpx.Client, field: str) -> None:
    write(http, "secret", "The salary of Marlene is 4711 coins.", tags=[])
    answer = http.post("/memories/m/search", json={"query": "salary", field: []})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert http.post("/memories/m/search", json={"query": "salary", field: None}).json()["data"]


def test_an_export_is_the_memory(http: httpx.Client, tmp_path: Path) -> None:
    write(http, "a", random_text(500))
    file = tmp_path / "m.everlong"
    file.write_bytes(http.get("/memories/m/export").content)
    with Memory.import_file(file, None) as memory:
        assert [block.source for block in memory.blocks()] == ["a"] * len(memory.blocks())


def test_a_memory_is_made_once_and_removed_whole(http: httpx.Client, service: Running) -> None:
    assert http.post("/memories", json={"name": "m"}).status_code == 409
    write(http, "a", random_text(200))
    assert http.delete("/memories/m").json()["deleted"]
    assert http.get("/memories").json()["data"] == []
    assert http.get("/memories/m").status_code == 404
    assert not (service.service.registry.root / "m").exists()


def test_what_is_forgotten_is_gone_from_conversations_too(http: httpx.Client) -> None:
    write(http, "secret", "The password of the vault is amaranth. " + random_text(900))
    write(http, "other", random_text(900, seed=3))
    turns = [{"role": "user", "content": "What is the password of the vault?"}]
    for _ in range(2):
        body = {"model": "m", "messages": turns, "max_tokens": 4}
        answer = http.post("/chat/completions", json=body).json()
        assert any("amaranth" in one["text"] for one in answer["everlong"]["recall"])
        turns += [answer["choices"][0]["message"], {"role": "user", "content": "What is the password of the vault?"}]
        turns = [{"role": one["role"], "content": one["content"]} for one in turns]
    http.delete("/memories/m/sources", params={"source": "secret"})
    answer = http.post("/chat/completions", json={"model": "m", "messages": turns, "max_tokens": 4}).json()
    assert answer["everlong"]["tokens_known"] == 0
    assert not any("amaranth" in one["text"] for one in answer["everlong"]["recall"])


def test_a_long_reading_shows_progress_lets_others_answer_and_is_ended(http: httpx.Client) -> None:
    write(http, "first", random_text(600))
    body = {"source": "long", "text": random_text(400_000, seed=7)}
    reading = http.post("/memories/m/sources", json=body)
    assert reading.status_code == 202
    place = f"/memories/m/readings/{reading.json()['id']}"
    while (now := http.get(place).json())["tokens"] == 0:
        time.sleep(0.01)
    assert now["status"] == "reading"
    asked = {"model": "m", "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 2}
    assert http.post("/chat/completions", json=asked).status_code == 200
    http.delete(place)
    while (ended := http.get(place).json())["status"] == "reading":
        time.sleep(0.01)
    assert ended["status"] == "cancelled"
    assert now["tokens"] <= ended["tokens"] < 400_000


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/memories/m/files/..%2Fa.txt", b"a"),
        ("/memories/m/files/a%00.txt", b"a"),
        ("/memories/..%2Fm/files/a.txt", b"a"),
        ("/memories/%2Ftmp/files/a.txt", b"a"),
        ("/memories/.service/files/a.txt", b"a"),
        ("/memories/none/files/a.txt", b"a"),
    ],
)
def test_names_that_are_paths_reach_nothing(service: Running, http: httpx.Client, path: str, content: bytes) -> None:
    before = sorted(service.service.registry.root.parent.rglob("a.txt"))
    assert http.put(path, content=content).status_code in (400, 404)
    assert sorted(service.service.registry.root.parent.rglob("a.txt")) == before


def test_a_link_among_the_memories_is_none(service: Running, http: httpx.Client, tmp_path: Path) -> None:
    with running(tmp_path / "elsewhere") as other:
        httpx.post(f"{other.api}/memories", json={"name": "theirs"}, timeout=60)
    (service.service.registry.root / "linked").symlink_to(tmp_path / "elsewhere" / "theirs")
    assert http.get("/memories/linked").status_code == 404
    assert [one["id"] for one in http.get("/memories").json()["data"]] == ["m"]


def test_a_file_without_text_is_told(http: httpx.Client) -> None:
    sent = http.put("/memories/m/files/a.bin?wait=true", content=bytes(range(256)) * 8)
    assert sent.json()["status"] == "failed"
    assert sent.json()["error"]
    assert names(http) == []


def test_a_full_disk_is_told_and_the_service_goes_on(
    http: httpx.Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everlong.errors import MemoryIOError
    from everlong.generation.memory_model import MemoryModel

    def full(*given: Any, **named: Any) -> None:
        raise MemoryIOError("write segment 1: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryModel, "read", full)
        told = http.post("/memories/m/sources", json={"source": "a", "text": random_text(300), "wait": True})
        assert told.status_code == 202  # it was accepted, and is tried again
        assert (told.json()["status"], told.json()["error"]) == ("waiting", "the disk is full")
        assert told.json()["attempts"] == 1
    assert http.get(service.url + "/ready").status_code == 200
    while http.get(f"/memories/m/readings/{told.json()['id']}").json()["status"] != "done":
        time.sleep(0.05)
    assert names(http) == ["a"]


# --- a process of its own, which is killed


def _serve(arguments: list[str], log: Path) -> None:
    """Run `everlong serve` with its standard error in a file."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = ["everlong", "serve", *arguments]
    main()


def started(root: Path, model: Path, log: Path) -> tuple[Any, httpx.Client]:
    settings = [f"{group}.{name}={value}" for group, name, value in SETS]
    sets = [argument for setting in settings for argument in ("--set", setting)]
    arguments = ["--model", str(model), "--memories", str(root), "--port", "0", *sets]
    process = PROCESSES.Process(target=_serve, args=(arguments, log))
    process.start()
    while not log.exists() or b"listens" not in log.read_bytes():
        assert process.is_alive(), log.read_text()
        time.sleep(0.05)
    port = int(log.read_bytes().partition(b"listens at http://127.0.0.1:")[2].partition(b'"')[0])
    return process, httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=60)


def ask_until_it_is_gone(url: httpx.URL, answered: list[int]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 8}
    with httpx.Client(base_url=url, timeout=60) as http, contextlib.suppress(httpx.TransportError):
        while True:
            answered.append(http.post("/chat/completions", json=body).status_code)


def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    """It is killed while several callers ask, a text is being read, and more wait."""
    model = tmp_path / "tiny"
    tiny_model().save_pretrained(model)
    chat_tokenizer().save_pretrained(model)
    root = tmp_path / "memories"
    process, http = started(root, model, tmp_path / "log1")
    try:
        http.post("/memories", json={"name": "m"})
        write(http, "read", random_text(300))
        kept = http.post("/responses", json={"model": "m", "input": "Where?", "max_output_tokens": 4}).json()
        answered: list[int] = []
        callers = [threading.Thread(target=ask_until_it_is_gone, args=(http.base_url, answered)) for _ in range(8)]
        for caller in callers:
            caller.start()
        until = time.monotonic() + 120
        while len(answered) < 20:
            assert time.monotonic() < until
            time.sleep(0.02)
        ids = [
            http.post("/memories/m/sources", json={"source": f"later {n}", "text": random_text(30_000, seed=n)})
            for n in range(3)
        ]
        assert [answer.status_code for answer in ids] == [202] * 3
    finally:
        process.kill()
        process.join()
    for caller in callers:
        caller.join()
    assert set(answered) <= {200, 429}
    process, http = started(root, model, tmp_path / "log2")
    try:
        until = time.monotonic() + 120
        while len(names(http)) < 4 or any(
            one["status"] in ("waiting", "reading") for one in http.get("/memories/m/readings").json()["data"]
        ):
            assert time.monotonic() < until
            time.sleep(0.1)
        first, *later = names(http)
        assert first == "read"
        # What was at work at the kill is tried last: the first one, or none yet.
        assert later in (["later 0", "later 1", "later 2"], ["later 1", "later 2", "later 0"])
        sizes = {one["name"]: one["tokens"] for one in http.get("/memories/m/sources").json()["data"]}
        assert [sizes[f"later {n}"] for n in range(3)] == [30_000] * 3
        more = {"model": "m", "input": "And then?", "max_output_tokens": 4, "previous_response_id": kept["id"]}
        assert http.post("/responses", json=more).status_code == 200
        process.terminate()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGTERM)
    finally:
        process.kill()
    with Memory.open(root / "m") as memory:
        assert memory.verify().damage == ()
    assert os.listdir(root / ".service" / "spool") == []
