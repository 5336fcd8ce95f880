"""Who may do what, and what no honest client sends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.serve.app import MEMORY_ROUTES
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.limits import Limits
from everlong.service_data.memory_registry import NO_MEMORY_STATE
from support import random_text
from support.service import MODEL, Clock, Running, client_of, running, until

pytestmark = pytest.mark.slow

CLOCK = Clock()
KEYS = Keys(
    (
        Key("ada", hash_of("ada"), memories=("hers",)),
        Key("ben", hash_of("ben"), memories=("his",)),
        Key("eve", hash_of("eve"), write=False),
        Key("short", hash_of("short"), memories=("hers",), tokens_per_minute=5),
        Key("small", hash_of("small"), memories=("hers",), max_bytes=250_000, keep_seconds=0.01),
    ),
    CLOCK,
)
LIMITS = Limits(body_bytes=50_000, upload_bytes=60_000, headers=40, body_seconds=5.0)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("memories"), keys=KEYS, limits=LIMITS) as there:
        for who, name in (("ada", "hers"), ("ben", "his")):
            with client_of(there, who) as http:
                http.post("/memories", json={"name": name}).raise_for_status()
                text = f"The word of {who} is amaranth. {random_text(900)}"
                body = {"source": who, "text": text, "wait": True}
                assert http.post(f"/memories/{name}/sources", json=body).json()["status"] == "done"
        yield there


def requests_to(memory: str) -> Iterator[tuple[str, str]]:
    """Yield (method, path) of every request to a memory that the service knows."""
    for route in MEMORY_ROUTES:
        parameters: dict[str, Any] = {"name": memory, "file": "a.txt", "id": "1", "block": 1}
        own = {name: value for name, value in parameters.items() if name in route.param_convertors}
        path = str(route.url_path_for(route.name, **own)).removeprefix("/v1")
        for method in sorted(route.methods - {"HEAD"}):
            yield method, f"{path}?source=ada" if (method, path.count("/")) == ("DELETE", 3) else path


def chat(http: httpx.Client, memory: str) -> httpx.Response:
    turn = {"role": "user", "content": "What is the word?"}
    return http.post("/chat/completions", json={"model": memory, "messages": [turn], "max_tokens": 2})


def test_without_a_key_there_is_health_alone(service: Running) -> None:
    assert httpx.get(f"{service.url}/health").status_code == 200
    assert httpx.get(f"{service.url}/ready").json() == {"status": "ready"}
    assert httpx.get(service.url).status_code == 200
    for path in ("/v1/models", "/v1/memories", "/metrics", "/v1/memories/hers", "/mcp", "/page/../v1/models"):
        assert httpx.get(service.url + path).status_code in (401, 404), path
    refused = httpx.get(f"{service.url}/v1/models", headers={"Authorization": "Bearer nobody"})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


def test_a_key_sees_its_memories_alone(service: Running) -> None:
    with client_of(service, "ada") as ada, client_of(service, "ben") as ben:
        assert [row["id"] for row in ada.get("/models").json()["data"]] == [MODEL, "hers"]
        assert chat(ada, "hers").status_code == 200
        assert chat(ben, "hers").status_code == 404
        for method, path in requests_to("hers"):
            answer = ben.request(method, path, json={"query": "word", "source": "a", "text": "b"})
            assert answer.status_code == 404, (method, path, answer.text)
            assert answer.json()["error"]["code"] == "memory_not_found", (method, path)
            assert "amaranth" not in answer.text
        # It is told in the same words as what does not exist.
        assert ben.get("/memories/hers").json() == json.loads(ben.get("/memories/none").text.replace("none", "hers"))


def test_a_response_is_its_keys_own(service: Running) -> None:
    with client_of(service, "ada") as ada, client_of(service, "ben") as ben:
        made = ada.post("/responses", json={"model": "hers", "input": "What?", "max_output_tokens": 2}).json()
        assert ben.get(f"/responses/{made['id']}").status_code == 404
        body = {"model": "his", "input": "And?", "previous_response_id": made["id"]}
        assert ben.post("/responses", json=body).status_code == 404
        assert ada.get(f"/responses/{made['id']}").json() == made


def test_a_key_that_reads_does_not_write(service: Running) -> None:
    with client_of(service, "eve") as eve:
        assert chat(eve, "his").status_code == 200
        for method, path in [
            ("POST", "/memories"),
            ("POST", "/memories/his/sources"),
            ("PUT", "/memories/his/files/a.txt"),
            ("DELETE", "/memories/his/sources?source=ben"),
            ("DELETE", "/memories/his"),
            ("POST", "/memories/his/compact"),
        ]:
            body = {"name": "new", "source": "a", "text": "b"}
            assert eve.request(method, path, json=body).status_code == 403, path


def test_tokens_of_a_key_are_limited_whatever_they_are_for(service: Running) -> None:
    with client_of(service, "short") as short, client_of(service, "ada") as ada:
        write = {"source": "short", "text": random_text(900), "wait": True}
        begun = short.post("/memories/hers/sources", json=write)
        assert begun.status_code == 202  # it goes on when the minute is over
        assert begun.json()["status"] == "waiting"
        assert "tokens of this minute" in begun.json()["error"]
        for refused in (
            chat(short, "hers"),
            short.post("/memories/hers/sources", json=write),
            short.put("/memories/hers/files/a.txt", content=b"a"),
        ):
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert chat(ada, "hers").status_code == 200
        place = f"/memories/hers/readings/{begun.json()['id']}"
        assert short.delete(place).json()["status"] == "cancelled"
        assert ada.delete("/memories/hers/sources", params={"source": "short"}).status_code == 200
        CLOCK.seconds += 60
        assert chat(short, "hers").status_code == 200
        assert chat(short, "hers").status_code == 429


def test_bytes_and_time_of_a_key_are_limited(service: Running) -> None:
    with client_of(service, "small") as small, client_of(service, "ada") as ada:
        write = {"source": "hers too", "text": random_text(300), "wait": True}
        assert small.post("/memories/hers/sources", json=write).json()["status"] == "done"
        full = small.post("/memories/hers/sources", json={**write, "source": "more", "text": "a" * 30_000})
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "quota_exceeded"
        long = {"source": "long", "text": random_text(20_000, seed=4), "wait": True}
        service.service.sweep()
        cut = small.post("/memories/hers/sources", json=long)
        assert cut.status_code == 202  # it was accepted, and waits for room
        assert cut.json()["status"] == "waiting"
        assert "bytes on disk" in cut.json()["error"]
        assert cut.json()["tokens"] < 2000
        place = f"/memories/hers/readings/{cut.json()['id']}"
        assert small.delete(place).status_code == 200
        until(lambda: small.get(place).json()["status"] == "cancelled")  # it may just be tried again
        for _ in range(100):  # what it wrote is older than it may become, or will be at once
            service.service.sweep()
            names = [row["name"] for row in ada.get("/memories/hers/sources").json()["data"]]
            if names == ["ada"]:
                break
            time.sleep(0.05)
        assert names == ["ada"]
        taken = {"source": "b", "text": "c", "tags": ["by:ada"]}
        assert small.post("/memories/hers/sources", json=taken).status_code == 400


def test_texts_that_wait_answers_and_copies_count_as_bytes_of_their_key(service: Running) -> None:
    quotas, small = service.service.quotas, KEYS.all[-1]
    before = quotas.bytes_left("small")
    assert before is not None
    id, _ = service.service.spool.begin("a", "small", 1000)
    service.service.kept.keep("r", "small", "", NO_MEMORY_STATE, {"text": "b" * 500}, [])
    assert before - 1600 < quotas.bytes_left("small") < before - 1500  # type: ignore[operator]
    service.service.spool.remove(id)
    assert service.service.kept.delete("r", "small")
    assert quotas.bytes_left("small") == before
    with quotas.copy(small, 200_000):
        with pytest.raises(ApiError), quotas.copy(small, 60_000):
            pass
        with quotas.copy(small, 50_000), pytest.raises(ApiError), quotas.copy(small, 1):
            pass
    with quotas.copy(small, 250_000):
        pass
    assert quotas.bytes_left("nobody") is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "evil.example"}, 421),
        ({f"X-{n}": "a" for n in range(50)}, 431),
    ],
)
def test_pages_of_other_sites_and_floods_of_headers_are_refused(
    service: Running, headers: dict[str, str], status: int
) -> None:
    with client_of(service, "ada") as ada:
        content = json.dumps({"name": "forged"})
        sent = ada.post("/memories", content=content, headers={"Content-Type": "application/json", **headers})
        assert sent.status_code == status
        assert "access-control-allow-origin" not in sent.headers
        assert ada.get("/memories/forged").status_code == 404


def test_preflights_are_not_granted(service: Running) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{service.api}/memories", headers=asked)
    assert answer.status_code >= 400
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_large_and_deep_bodies_are_refused(service: Running) -> None:
    with client_of(service, "ada") as ada:
        large = {"model": "hers", "messages": [{"role": "user", "content": "a" * 60_000}]}
        assert ada.post("/chat/completions", json=large).status_code == 413

        def chunks() -> Iterator[bytes]:
            for _ in range(100):
                yield b" " * 1000

        json_ = {"Content-Type": "application/json"}
        assert ada.post("/chat/completions", content=chunks(), headers=json_).status_code == 413
        assert ada.put("/memories/hers/files/a.txt", content=chunks()).status_code == 413
        deep = b'{"model": "hers", "messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
        told = ada.post("/chat/completions", content=deep, headers=json_)
        assert (told.status_code, told.json()["error"]["code"]) == (400, "json_too_deep")
    assert list((service.service.folder.path / "spool").iterdir()) == []


def test_garbage_and_slow_callers_stop_nobody(service: Running) -> None:
    host, port = "127.0.0.1", int(service.url.rpartition(":")[2])

    def sends(data: bytes) -> bytes:
        with socket.create_connection((host, port), timeout=30) as line:
            line.sendall(data)
            return line.recv(4096)

    assert b"400" in sends(b"\x00\xff garbage\r\n\r\n").split(b"\r\n")[0]
    slow = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ada\r\n"
    slow += b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    answered: list[bytes] = []
    thread = threading.Thread(target=lambda: answered.append(sends(slow)))
    thread.start()
    with client_of(service, "ada") as ada:
        assert chat(ada, "hers").status_code == 200
    thread.join()
    assert b" 408 " in answered[0].split(b"\r\n")[0]


def test_logs_and_the_audit_have_ids_and_no_content(service: Running, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(service, "ada") as ada, caplog.at_level("INFO", logger="everlong"):
        turn = {"role": "user", "content": "unheard-of question"}
        body = {"model": "hers", "messages": [turn], "max_tokens": 2, "user": "ada@example.org"}
        answer = ada.post("/chat/completions", json=body, headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        forged = ada.get("/models", headers={"X-Request-Id": "a b{}"})
        assert forged.headers["x-request-id"] != "a b{}"
    audit = (service.service.folder.path / "audit.log").read_text()
    rows = [json.loads(line) for line in audit.splitlines()]
    mine = [row for row in rows if row["request"] == "mine-1"]
    assert [(row["key"], row["did"], row["memory"]) for row in mine] == [("ada", "ask", "hers")]
    assert {"make", "write", "ask"} <= {row["did"] for row in rows}
    logged = [vars(record) for record in caplog.records]
    assert any(row.get("request") == "mine-1" and row.get("status") == 200 for row in logged)
    assert len(mine[0]["user"]) == 16
    for text in (audit, str(logged)):
        assert "example.org" not in text
        assert "unheard-of" not in text
        assert "amaranth" not in text
        assert "Bearer" not in text


def test_what_is_counted(service: Running) -> None:
    with client_of(service, "ada") as ada:
        assert chat(ada, "hers").status_code == 200
        text = ada.get(f"{service.url}/metrics").text
    for name in (
        *("tokens_read_total", "tokens_generated_total", "queue ", "queue_seconds_bucket", "answer_seconds_bucket"),
        *(
            "recalls_total",
            "disk_bytes",
            "evictions_total",
            "errors_total",
            "requests_total",
            "first_token_seconds_sum",
        ),
    ):
        assert f"everlong_{name}" in text, name
    generated: Any = [line for line in text.splitlines() if line.startswith("everlong_tokens_generated_total")]
    assert float(generated[0].split()[-1]) >= 2


def test_a_dead_disk_is_told(service: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def dead(*given: Any, **named: Any) -> None:
        raise OSError(5, "Input/output error")

    with client_of(service, "ada") as ada, monkeypatch.context() as patched:
        patched.setattr(service.service.readings.spool, "begin", dead)
        told = ada.post("/memories/hers/sources", json={"source": "a", "text": "b"})
        assert (told.status_code, told.json()["error"]["code"]) == (507, "disk_error")
        assert chat(ada, "hers").status_code == 200
