"""Races and hostile callers that once broke a promise of the service."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.errors import MemoryBusyError
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.memory.memory import MEMORY_ID
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.service_folder import ServiceFolder
from support import random_text
from support.service import MODEL, Clock, Running, client_of, names, running, until

pytestmark = pytest.mark.slow

KEYS = Keys(
    (
        Key("ada", hash_of("ada")),
        Key("short", hash_of("short"), tokens_per_minute=20),
        Key("small", hash_of("small"), max_bytes=3_000),
        Key("old", hash_of("old"), keep_seconds=0.01),
    ),
    Clock(),
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "memories", keys=KEYS) as there:
        yield there


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with client_of(service, "ada") as client:
        client.post("/memories", json={"name": "m"}).raise_for_status()
        yield client


def sent(http: httpx.Client, source: str, text: str, **more: Any) -> str:
    answer = http.post("/memories/m/sources", json={"source": source, "text": text, **more})
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["id"])


def state(http: httpx.Client, id: str) -> str:
    return str(http.get(f"/memories/m/readings/{id}").json()["status"])


def failing(http: httpx.Client, monkeypatch: pytest.MonkeyPatch, source: str = "a") -> str:
    """Return the reading of a text that failed by a fault of the service."""
    monkeypatch.setattr("everlong.serve.readings._LONGEST_PAUSE", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryModel, "read", lambda *given, **named: 1 / 0)
        id = sent(http, source, random_text(200))
        until(lambda: state(http, id) == "failed")
    return id


def test_a_text_is_tried_again_once_however_many_ask(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = failing(http, monkeypatch)
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        asked = [several.submit(http.post, f"/memories/m/readings/{id}") for _ in range(8)]
    assert sorted(one.result().status_code for one in asked) == [200, *[409] * 7]
    until(lambda: state(http, id) == "done")
    assert names(http) == ["a"]
    assert list(service.service.folder.spool.iterdir()) == []


def test_what_could_not_be_taken_back_is_not_said_to_be(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with service.service.registry.write_lock("m"):
        id = sent(http, "a", random_text(100))
        with monkeypatch.context() as patched:
            patched.setattr(service.service.records, "change", full)
            assert http.delete(f"/memories/m/readings/{id}").status_code == 507
        assert state(http, id) == "waiting"
        assert http.delete(f"/memories/m/readings/{id}").status_code == 200
        until(lambda: state(http, id) == "cancelled")  # the reading thread may just look whether it has the memory
    assert service.service.spool.waiting_jobs() == []
    assert list(service.service.folder.spool.iterdir()) == []


def test_an_earlier_answer_that_is_forgotten_while_the_next_question_waits_is_not_kept_in_it(
    service: Running, http: httpx.Client
) -> None:
    sent(http, "a", random_text(300), wait=True)
    body = {"model": "m", "input": "Where?", "max_output_tokens": 4}
    first = http.post("/responses", json=body).json()["id"]
    go_on = threading.Event()

    def hold() -> None:
        assert go_on.wait(60)

    held = service.service.engine.soon(hold)
    with concurrent.futures.ThreadPoolExecutor(2) as several:
        later = several.submit(http.post, "/responses", json={**body, "previous_response_id": first})
        until(lambda: len(service.service.engine.queue) == 1)
        with Memory.open(service.service.registry.root / "m") as memory:
            assert memory.forget(source="a") > 0
        go_on.set()
        assert later.result().status_code == 409
    held.result(60)
    assert http.get(f"/responses/{first}").status_code == 404


def test_names_are_bounded_and_what_is_kept_counts(service: Running, http: httpx.Client) -> None:
    for more in ({"source": "a" * 1001}, {"tags": ["a" * 1001]}, {"source": "conversation"}):
        body = {"source": "a", "text": "b", **more}
        assert http.post("/memories/m/sources", json=body).status_code == 400
        assert http.put("/memories/m/files/a.txt", params={"source": body["source"]}).status_code in (202, 400)
    with client_of(service, "small") as small:
        body = {"model": MODEL, "input": "a " * 400, "max_output_tokens": 2}
        answers = [small.post("/responses", json=body) for _ in range(8)]
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert answers[-1].status_code == 429
    assert service.service.kept.bytes_of("small") <= 3000


def test_of_questions_at_once_no_more_are_answered_than_the_tokens_of_a_minute_allow(service: Running) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 30}
    with client_of(service, "short") as short, concurrent.futures.ThreadPoolExecutor(12) as several:
        asked = [several.submit(short.post, "/chat/completions", json=body) for _ in range(12)]
        codes = sorted(one.result().status_code for one in asked)
    assert codes == [200, *[429] * 11]


def test_who_waits_for_the_records_does_not_stop_the_others(service: Running, http: httpx.Client) -> None:
    records, has_it, release = service.service.records, threading.Event(), threading.Event()

    def hold() -> None:
        with records._lock:
            has_it.set()
            release.wait(60)

    with concurrent.futures.ThreadPoolExecutor(8) as several:
        held = several.submit(hold)
        assert has_it.wait(60)
        waiting = [several.submit(sent, http, f"s{number}", "text") for number in range(6)]
        try:
            with httpx.Client(base_url=service.url, timeout=20) as others:
                for _ in range(5):
                    assert others.get("/health").status_code == 200
            assert not any(one.done() for one in waiting)
        finally:
            release.set()
        held.result(60)
        assert len({one.result(60) for one in waiting}) == 6


def test_a_folder_that_takes_the_place_of_another_is_another(service: Running, http: httpx.Client) -> None:
    sent(http, "kept", random_text(300), wait=True)
    root = service.service.registry.root
    shutil.copytree(root / "m", root.parent / "backup")
    sent(http, "later", "The heron of Loch Arden stands on one leg. " * 8 + random_text(200), wait=True)
    body = {"model": "m", "messages": [{"role": "user", "content": "Where does the heron stand?"}], "max_tokens": 2}
    assert "heron" in str(http.post("/chat/completions", json=body).json()["everlong"]["recall"])
    shutil.rmtree(root / "m")
    (root.parent / "backup").rename(root / "m")
    assert names(http) == ["kept"]
    assert "heron" not in str(http.post("/chat/completions", json=body).json()["everlong"]["recall"])


def test_an_older_copy_of_a_memory_brings_no_kept_answer_back(service: Running, http: httpx.Client) -> None:
    sent(http, "secret", "The heron of Loch Arden stands on one leg. " * 8 + random_text(200), wait=True)
    root = service.service.registry.root
    shutil.copytree(root / "m", root.parent / "backup")
    sent(http, "other", random_text(100), wait=True)
    http.delete("/memories/m/sources", params={"source": "other"}).raise_for_status()
    body = {"model": "m", "input": "Where does the heron stand?", "max_output_tokens": 4}
    kept = http.post("/responses", json=body).json()["id"]
    shutil.rmtree(root / "m")
    (root.parent / "backup").rename(root / "m")
    http.delete("/memories/m/sources", params={"source": "secret"}).raise_for_status()
    assert http.get(f"/responses/{kept}").status_code == 404
    assert list(service.service.folder.responses.iterdir()) == []


def test_a_body_that_ends_late_goes_into_no_other_memory(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in, go_on = threading.Event(), threading.Event()
    id_of = service.service.registry.id

    def noted(name: str) -> str:
        found = id_of(name)
        let_in.set()
        return found

    def body() -> Iterator[bytes]:
        yield b'{"source": "mine", "text": "'
        assert go_on.wait(60)
        yield b'a text of mine"}'

    monkeypatch.setattr(service.service.registry, "id", noted)
    with concurrent.futures.ThreadPoolExecutor(1) as several:
        kind = {"Content-Type": "application/json"}
        late = several.submit(http.post, "/memories/m/sources", content=body(), headers=kind)
        assert let_in.wait(60)  # as for the memory that goes now
        with client_of(service, "ada") as other:
            assert other.delete("/memories/m").status_code == 200
            assert other.post("/memories", json={"name": "m"}).status_code == 201
        go_on.set()
        assert late.result().status_code == 404
    assert names(http) == []


def test_threads_of_the_service_live_through_a_disk_that_refuses(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    records = service.service.records
    with service.service.registry.write_lock("m"):
        gone = sent(http, "a", random_text(100))
        with monkeypatch.context() as patched:
            patched.setattr("everlong.serve.readings._NOTED", 0.05)
            patched.setattr(service.service.spool, "remove", full)
            patched.setattr(service.service.registry, "id", full)
            # Last, so that it is undone first: where texts can be removed again, none may seem to be gone.
            patched.setattr(service.service.readings, "_is_gone", lambda reading: True)
            time.sleep(1.0)  # the reading thread meets it some times
    with monkeypatch.context() as patched:
        for name in ("change", "rows", "memories", "overwrite"):
            patched.setattr(records, name, full)
        service.service.sweep()
    until(lambda: state(http, gone) == "done")
    assert httpx.get(f"{service.url}/ready", timeout=20).status_code == 200


def test_a_conversation_that_could_not_be_forked_leaves_no_folder(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Memory.fork

    def refused(self: Memory, folder: Any) -> Memory:
        real(self, folder).close()
        raise OSError(errno.ENOSPC, "No space left on device")

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    body = {"model": "m", "messages": turns, "max_tokens": 2}
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "fork", refused)
        assert http.post("/chat/completions", json=body).status_code == 507
    assert list(service.service.folder.conversations.iterdir()) == []
    assert http.post("/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("name", ["audit.log", "spool", "responses", "service.sqlite3"])
def test_links_in_the_services_own_folder_lead_nowhere(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "memories", tmp_path / "elsewhere"
    (root / ".service").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    (root / ".service" / name).symlink_to(elsewhere if name in ("spool", "responses") else elsewhere / "new")
    with running(root) as there:
        assert httpx.post(f"{there.api}/memories", json={"name": "m"}, timeout=60).status_code == 201
    assert [file.name for file in elsewhere.iterdir()] == ["mine"]


def test_a_link_is_no_folder_for_a_service(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".service").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MemoryBusyError, match="link"):
        ServiceFolder(tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_service_that_shares_the_memories_leaves_no_word(tmp_path: Path) -> None:
    own = ServiceFolder(tmp_path, alone=False)
    own.spool.mkdir()
    (own.spool / "a").write_text("a word")
    own.close()
    assert [path.name for path in own.path.iterdir()] == ["lock"]


def test_a_sweep_that_looked_too_early_takes_nothing(service: Running, http: httpx.Client) -> None:
    """It saw no memory of that name; before it goes on there is one again."""
    sent(http, "a", random_text(300), wait=True)
    kept = http.post("/responses", json={"model": "m", "input": "Where?", "max_output_tokens": 4}).json()["id"]
    with service.service.registry.write_lock("m"):
        waiting = sent(http, "b", random_text(100))
        service.service._drop_rows("m", None)
        assert state(http, waiting) == "waiting"
    assert http.get(f"/responses/{kept}").status_code == 200
    until(lambda: names(http) == ["a", "b"])


def test_a_memory_of_an_earlier_release_gets_an_id(service: Running, http: httpx.Client) -> None:
    folder = service.service.registry.root / "m"
    with Memory.open(folder) as memory:
        memory.core.set_attribute(MEMORY_ID, "")
    assert Memory.id_of(folder) == ""
    sent(http, "a", random_text(100), wait=True)
    assert Memory.id_of(folder)
    assert names(http) == ["a"]


def test_an_answer_of_a_memory_that_a_key_may_not_see_any_more_is_none_to_it(tmp_path: Path) -> None:
    def keys(*memories: str) -> Keys:
        return Keys((Key("ada", hash_of("ada"), memories=memories),))

    with running(tmp_path / "m", keys=keys("m")) as there, client_of(there, "ada") as ada:
        ada.post("/memories", json={"name": "m"}).raise_for_status()
        kept = ada.post("/responses", json={"model": "m", "input": "Where?", "max_output_tokens": 2}).json()["id"]
    with running(tmp_path / "m", keys=keys("other")) as there, client_of(there, "ada") as ada:
        assert ada.get(f"/responses/{kept}").status_code == 404
        body = {"model": "m", "input": "Where?", "previous_response_id": kept}
        assert ada.post("/responses", json=body).status_code == 404


def test_texts_that_failed_go_when_the_keys_time_is_over(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(service, "old") as old:
        failing(old, monkeypatch)
        service.service.sweep()
        assert old.get("/memories/m/readings").json()["data"] == []
    assert list(service.service.folder.spool.iterdir()) == []


def test_a_text_that_another_process_forgot_when_it_was_half_read_is_not_read_on(
    service: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.serve.readings._LEAST_TURN", 0.0)
    monkeypatch.setattr("everlong.serve.readings._MOST_WANTED", 60.0)

    def is_wanted(name: str) -> bool:  # from the middle of the text on
        return any(one.tokens > 1000 for one in list(service.service.readings._live.values()))

    monkeypatch.setattr(service.service.registry, "has_waiting_writer", is_wanted)
    id = sent(http, "a", random_text(30_000))

    def is_half_read() -> bool:
        told = http.get(f"/memories/m/readings/{id}").json()
        return bool(told["tokens"] > 1000 and told["status"] == "waiting")

    until(is_half_read)
    with Memory.open(service.service.registry.root / "m") as memory:
        assert memory.forget(source="a") > 0
    monkeypatch.undo()
    until(lambda: not service.service.spool.waiting_jobs())
    assert names(http) == []


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39, 1e-10])
def test_a_tiny_temperature_takes_the_likeliest_tokens(service: Running, temperature: float) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with client_of(service, "ada") as ada:
        answers = [ada.post("/chat/completions", json={**body, "temperature": one}) for one in (0, temperature)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1


def test_no_descriptor_stays_of_what_was_refused(service: Running, http: httpx.Client) -> None:
    def refused() -> None:
        http.put("/memories/none/files/a.txt", content=b"a")
        http.put("/memories/m/files/a.txt", params={"tag": "by:ben"}, content=b"a")
        with client_of(service, "small") as small:
            small.put("/memories/m/files/a.txt", content=b"a" * 5000)

    for _ in range(3):
        refused()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        refused()
    # The service hears after its callers that they have closed their connections.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
    assert list(service.service.folder.spool.iterdir()) == []
