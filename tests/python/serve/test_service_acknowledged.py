"""What was acknowledged is there: through a busy memory, a full queue, a restart, a text that ends the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.errors import MemoryBusyError
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.serve.service import Service
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.limits import Limits
from everlong.service_data.service_folder import ServiceFolder
from everlong.service_data.spool import TextMetadata
from support import random_text
from support.service import Running, names, running, tiny_loaded, until

pytestmark = pytest.mark.slow

KEYS = Keys((Key("ada", hash_of("ada"), memories=("m", "busy")), Key("ben", hash_of("ben"), memories=("m",))))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "memories") as there:
        httpx.post(f"{there.api}/memories", json={"name": "m"}, timeout=60).raise_for_status()
        yield there


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.api, timeout=60) as client:
        yield client


def sent(http: httpx.Client, source: str, text: str, **more: Any) -> dict[str, Any]:
    answer = http.post("/memories/m/sources", json={"source": source, "text": text, **more})
    assert answer.status_code in (200, 202), answer.text
    return dict(answer.json())


def told(http: httpx.Client, reading: dict[str, Any]) -> dict[str, Any]:
    return dict(http.get(f"/memories/m/readings/{reading['id']}").json())


@pytest.mark.parametrize(
    "name", ["order.json", "service.sqlite3", "lock", ".service", "audit.log", "spool", "..json", "%00"[1:], "ä.txt"]
)
def test_the_content_of_a_file_is_read_whatever_it_is_called(http: httpx.Client, service: Running, name: str) -> None:
    order = '{"memory": "m", "file": "/etc/hostname", "text": "the heron stands in the reeds"} ' + random_text(100)
    answer = http.put(f"/memories/m/files/{name}?wait=true&source=mine", content=order.encode())
    assert answer.json()["status"] == "done", answer.text
    found = http.post("/memories/m/search", json={"query": "heron reeds"}).json()["data"]
    assert any("the heron stands in the reeds" in one["text"] for one in found)
    assert list(service.service.folder.spool.iterdir()) == []


def test_a_busy_memory_is_waited_for(http: httpx.Client, service: Running) -> None:
    with Memory.open(service.service.registry.root / "m"):  # as another process has it
        waiting = sent(http, "a", random_text(300), wait=True)
        assert (waiting["status"], waiting["attempts"]) == ("waiting", 1)
        assert waiting["error"]
        assert http.delete("/memories/m/sources", params={"source": "b"}).status_code == 409
    until(lambda: told(http, waiting)["status"] == "done")
    assert told(http, waiting)["error"] is None
    assert names(http) == ["a"]


def test_more_than_may_wait_are_taken_up_again(tmp_path: Path) -> None:
    limits = Limits(readings=2, readings_each=2)
    root = tmp_path / "memories"
    root.mkdir()
    first = Service(tiny_loaded(), root, limits=limits)
    with first.loaded.opened_memory(root / "m"):
        pass
    for number in range(5):  # as when the reading thread had taken three of them
        id, file = first.spool.begin("a.txt")
        file.write(random_text(200, seed=number).encode())
        order = first.spool.accept(id, file, "m", "local", TextMetadata(f"text {number}", plain=True))
        if number < 2:
            first.readings.put(order)
    first.records.close()
    with running(root, limits=limits) as there, httpx.Client(base_url=there.api, timeout=60) as http:
        until(lambda: len(names(http)) == 5)
        assert names(http) == [f"text {number}" for number in range(5)]


def test_a_text_that_ends_the_process_twice_is_set_aside_and_may_be_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "memories"
    root.mkdir()
    service = Service(tiny_loaded(), root)
    with service.loaded.opened_memory(root / "m"):
        pass
    ids = []
    for name in ("deadly", "other"):
        id, file = service.spool.begin("a.txt")
        file.write(random_text(200).encode())
        service.readings.put(service.spool.accept(id, file, "m", "local", TextMetadata(name, plain=True)))
        ids.append(id)
    service.spool.note(ids[0], state="reading")
    service.records.close()
    again = Service(tiny_loaded(), root)  # it ended once while "deadly" was read: that is tried again, last
    assert [again.readings.queue.take(wait=0).job.id for _ in ids] == [ids[1], ids[0]]  # type: ignore[union-attr]
    assert [order.id for order in again.spool.waiting_jobs()] == [ids[1], ids[0]]
    again.spool.note(ids[0], state="reading")
    again.records.close()
    with running(root) as there, httpx.Client(base_url=there.api, timeout=60) as http:
        until(lambda: names(http) == ["other"])
        aside = told(http, {"id": ids[0]})
        assert aside["status"] == "failed"
        assert "set aside" in aside["error"]
        assert http.post(f"/memories/m/readings/{ids[1]}").status_code == 409  # that one was read
        assert http.post(f"/memories/m/readings/{ids[0]}").json()["status"] != "failed"
        until(lambda: names(http) == ["other", "deadly"])


def test_a_text_that_fails_by_a_fault_of_the_service_is_tried_some_times_and_stays(
    http: httpx.Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.serve.readings._LONGEST_PAUSE", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryModel, "read", lambda *given, **named: 1 / 0)
        failing = sent(http, "a", random_text(200))
        until(lambda: told(http, failing)["status"] == "failed")
    assert told(http, failing)["attempts"] == 5
    assert len(list(service.service.folder.spool.iterdir())) == 1
    assert http.post(f"/memories/m/readings/{failing['id']}").status_code == 200
    until(lambda: told(http, failing)["status"] == "done")
    assert names(http) == ["a"]
    assert list(service.service.folder.spool.iterdir()) == []


def test_a_text_goes_into_the_memory_that_it_was_sent_to_and_no_other_of_its_name(tmp_path: Path) -> None:
    with (
        running(tmp_path / "memories", keys=KEYS) as there,
        httpx.Client(base_url=there.api, timeout=60, headers={"Authorization": "Bearer ada"}) as ada,
        httpx.Client(base_url=there.api, timeout=60, headers={"Authorization": "Bearer ben"}) as ben,
    ):
        for name in ("m", "busy"):
            ada.post("/memories", json={"name": name}).raise_for_status()
        ada.post("/memories/busy/sources", json={"source": "long", "text": random_text(20_000)}).raise_for_status()
        waiting = sent(ada, "diary", "ada tells nobody of it. " * 8)
        assert ada.delete("/memories/m").status_code == 200
        assert ben.post("/memories", json={"name": "m"}).status_code == 201
        assert ben.get("/memories/m/readings").json()["data"] == []
        assert ben.get(f"/memories/m/readings/{waiting['id']}").status_code == 404
        until(lambda: not len(there.service.readings.queue))
        sent(ben, "his", random_text(200), wait=True)
        assert names(ben) == ["his"]


def test_what_a_killed_removal_and_a_killed_export_left_goes_at_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "memories"
    with running(root) as there:
        httpx.post(f"{there.api}/memories", json={"name": "m"}, timeout=60).raise_for_status()
        own = there.service.folder
        trash, copy, waiting = own.new_in(own.trash), own.new_in(own.exports), own.new_in(own.spool)
    (root / "m").rename(trash)
    copy.write_bytes(b"a")
    waiting.write_bytes(b"a")
    (root / ".service" / "of-another-release").mkdir()
    with running(root) as there:
        assert not any(path.exists() for path in (trash, copy, waiting, root / ".service" / "of-another-release"))
        assert httpx.post(f"{there.api}/memories", json={"name": "m"}, timeout=60).status_code == 201
        assert httpx.delete(f"{there.api}/memories/m", timeout=60).status_code == 200
        assert list(there.service.folder.trash.iterdir()) == []


def test_two_services_do_not_share_their_own_folder(tmp_path: Path) -> None:
    """Another process may use the memories for one client all the same, by a folder of its own."""
    import subprocess
    import sys

    held = ServiceFolder(tmp_path)
    code = (
        "import sys; from pathlib import Path; from everlong.service_data.service_folder import ServiceFolder\n"
        "try: ServiceFolder(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(ServiceFolder(Path(sys.argv[1]), alone=False).path.name)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [MemoryBusyError.__name__, ".service-2"]
    (tmp_path / ".service-2" / "conversations").mkdir()  # as one that was killed leaves it
    held.clean_abandoned()
    assert {path.name for path in (tmp_path / ".service-2").iterdir()} == {"lock"}
    held.close()


def test_who_waits_for_a_reading_holds_no_thread_and_is_told_when_the_service_ends(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, answers = threading.Event(), threading.Event(), []
    real = MemoryModel.read

    def slow(*given: Any, **named: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return real(*given, **named)

    monkeypatch.setattr(MemoryModel, "read", slow)

    def wait(number: int) -> None:
        body = {"source": f"s{number}", "text": "x y z", "wait": True}
        answers.append(httpx.post(f"{service.api}/memories/m/sources", json=body, timeout=60))

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    with httpx.Client(base_url=service.api, timeout=20) as http:
        until(lambda: len(http.get("/memories/m/readings").json()["data"]) == 50)
        assert http.post("/memories/m/search", json={"query": "x"}).status_code == 200
    service.service.readings.end_waits()
    go_on.set()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 202}
    assert {answer.json()["status"] for answer in answers} <= {"waiting", "reading", "done"}


def test_a_forgetting_does_not_wait_for_a_long_reading_which_goes_on(http: httpx.Client) -> None:
    sent(http, "short", random_text(600), wait=True)
    long = sent(http, "long", random_text(60_000, seed=7))
    until(lambda: told(http, long)["tokens"] > 0)
    assert http.delete("/memories/m/sources", params={"source": "short"}).status_code == 200
    assert told(http, long)["status"] in ("reading", "waiting")
    until(lambda: told(http, long)["status"] == "done")
    sizes = {one["name"]: one["tokens"] for one in http.get("/memories/m/sources").json()["data"]}
    assert sizes == {"long": 60_000}


def test_who_forgets_all_the_time_does_not_keep_a_reading_from_its_end(
    http: httpx.Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.serve.readings._MOST_WANTED", 0.2)
    monkeypatch.setattr("everlong.serve.readings._LEAST_TURN", 0.2)
    ended = threading.Event()

    def forget() -> None:
        with httpx.Client(base_url=service.api, timeout=60) as other:
            while not ended.is_set():
                other.delete("/memories/m/sources", params={"source": "nothing"})

    threads = [threading.Thread(target=forget) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        reading = sent(http, "long", random_text(6000, seed=7))
        until(lambda: told(http, reading)["status"] == "done")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [one["tokens"] for one in http.get("/memories/m/sources").json()["data"]] == [6000]


def test_a_reading_is_done_when_its_vectors_are_there(tmp_path: Path) -> None:
    from support.service import SETTINGS

    loaded = tiny_loaded(SETTINGS.changed(search={"index": ("lexical", "encoder")}))
    text = " ".join(f"The heron number {number} stands by the old mill." for number in range(60))
    with running(tmp_path / "memories", loaded=loaded) as there:
        with httpx.Client(base_url=there.api, timeout=120) as http:
            http.post("/memories", json={"name": "m"}).raise_for_status()
            assert sent(http, "a", text, wait=True)["status"] == "done"
        with Memory.open(there.service.registry.root / "m", read_only=True) as memory:
            blocks = memory.core.blocks
            stored = [list(blocks.tensor_shapes(info.id)) for info in blocks.infos()]
    assert stored
    assert all(any(name.startswith("encoder.") for name in of_block) for of_block in stored)
