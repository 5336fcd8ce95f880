"""A service that is full says when to come again; one that ends lets answers end; none is open to all without keys."""

from __future__ import annotations

import itertools
import json
import threading
import types
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong.service_data.keys import Key, Keys, hash_of, load_keys
from everlong.service_data.limits import Limits
from support.processes import everlong_command
from support.service import MODEL, running, tiny_loaded, until, waiting

pytestmark = pytest.mark.slow


def body(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": tokens, "stream": stream}


def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    limits = Limits(at_once=1, waiting=1, waiting_each=1)
    with running(tmp_path / "m", limits=limits) as there, httpx.Client(base_url=there.api, timeout=60) as http:
        with http.stream("POST", "/chat/completions", json=body(4000, stream=True)) as first:
            lines = first.iter_lines()
            next(lines)
            codes: list[int] = []
            thread = threading.Thread(
                target=lambda: codes.append(
                    httpx.post(f"{there.api}/chat/completions", json=body(2), timeout=60).status_code
                )
            )
            thread.start()
            until(lambda: len(there.service.engine.queue) == 1)
            refused = httpx.post(f"{there.api}/chat/completions", json=body(2), timeout=60)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
        thread.join()  # the first caller has gone, so the second one's turn has come
        assert codes == [200]


def test_a_question_whose_caller_has_gone_gives_up_its_place(tmp_path: Path) -> None:
    limits = Limits(at_once=1, waiting=1, waiting_each=1)
    keys = Keys((Key("ada", hash_of("ada")),))
    headers = {"Authorization": "Bearer ada"}
    loaded = tiny_loaded()
    loaded.model.generation_config.eos_token_id = None
    with (
        running(tmp_path / "m", limits=limits, keys=keys, loaded=loaded) as there,
        httpx.stream("POST", f"{there.api}/chat/completions", json=body(4000, stream=True), headers=headers) as first,
    ):
        lines = first.iter_lines()  # the caller has gone when this is
        next(lines)
        for _ in range(3):
            with waiting(there, "ada", body(2)):
                until(lambda: len(there.service.engine.queue) == 1)
            until(lambda: not len(there.service.engine.queue))


def test_a_question_that_waited_too_long_is_refused_and_an_answer_that_takes_too_long_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(at_once=1, queue_seconds=0.0)
    with running(tmp_path / "m", limits=limits) as there:
        late = httpx.post(f"{there.api}/chat/completions", json=body(2), timeout=60)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
        assert "retry-after" in late.headers
    looks = itertools.count()  # a second passes between two looks at the clock, and with each piece there is one
    clock = types.SimpleNamespace(monotonic=lambda: float(next(looks)))
    monkeypatch.setattr("everlong.serve.answering.time", clock)
    with running(tmp_path / "m", limits=Limits(answer_seconds=50.0)) as there:
        long = httpx.post(f"{there.api}/chat/completions", json=body(4000), timeout=60).json()
        assert long["choices"][0]["finish_reason"] == "length"
        assert 0 < long["usage"]["completion_tokens"] < 4000


def test_an_answer_under_way_ends_whole_when_the_service_ends(tmp_path: Path) -> None:
    told: list[str] = []

    def ask(url: str, begun: threading.Event) -> None:
        with httpx.stream("POST", f"{url}/chat/completions", json=body(200, stream=True), timeout=60) as answer:
            for line in answer.iter_lines():
                begun.set()
                told.append(line)

    begun = threading.Event()
    with running(tmp_path / "m", graceful=60) as there:
        thread = threading.Thread(target=ask, args=(there.api, begun))
        thread.start()
        assert begun.wait(60)
    thread.join()
    events = [line.removeprefix("data: ") for line in told if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_keys_it_is_for_this_machine_alone(tmp_path: Path, host: str) -> None:
    done = everlong_command("serve", "--memories", tmp_path, "--host", host)
    assert done.returncode == 1
    assert "--keys" in done.stderr
    assert not (tmp_path / ".service").exists()


def test_a_key_is_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    done = everlong_command("key", "ada", "--keys", file, "--memory", "garden", "--keep-days", 2, "--read-only")
    assert done.returncode == 0, done.stderr
    key = load_keys(file).bearer(f"Bearer {done.stdout.strip()}")
    assert (key.name, key.memories, key.write, key.keep_seconds) == ("ada", ("garden",), False, 172800)
    again = everlong_command("key", "ada", "--keys", file)
    assert again.returncode == 1
    assert "ada" in again.stderr
    wrong = everlong_command("key", "../ada", "--keys", file)
    assert wrong.returncode == 1
    assert json.loads(file.read_text())["keys"][0]["name"] == "ada"
