"""A request for many vectors: bounded, counted before the work, and a few texts at a time between those of others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from everlong.serve.embeddings import _in_turns
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.limits import Limits
from support.encoder import CountingEncoder
from support.service import Clock, Running, running, used_tokens

CLOCK = Clock()
KEYS = Keys(tuple(Key(name, hash_of(name), tokens_per_minute=10_000_000) for name in ("ada", "mallory")), CLOCK)
TEXTS = [f"{number} {'word ' * 20}" for number in range(300)]


class Watched(CountingEncoder):
    """Tells of each go before it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.goes: list[list[str]] = []
        self.told: Callable[[list[str]], None] = lambda sentences: None

    def encode(self, sentences: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.goes.append(sentences)
        self.told(sentences)
        return super().encode(sentences)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    limits = Limits(embedded_bytes=100_000)
    with running(tmp_path_factory.mktemp("memories"), keys=KEYS, limits=limits, encoder=Watched()) as there:
        yield there


@pytest.fixture
def encoder(service: Running) -> Iterator[Watched]:
    found: Watched = service.service.encoder
    found.goes.clear()
    yield found
    found.told = lambda sentences: None


def vectors(service: Running, texts: list[str], who: str = "ada", timeout: Any = 60) -> httpx.Response:
    body = {"model": "counting", "input": texts}
    headers = {"Authorization": f"Bearer {who}"}
    return httpx.post(f"{service.api}/embeddings", json=body, headers=headers, timeout=timeout)


@pytest.mark.slow
def test_the_vectors_of_many_goes_are_those_of_one(service: Running, encoder: Watched) -> None:
    rows = vectors(service, TEXTS).json()["data"]
    assert len(encoder.goes) > 5
    assert [row["index"] for row in rows] == list(range(len(TEXTS)))
    expected = CountingEncoder().encode(TEXTS)
    assert np.array_equal(np.array([row["embedding"] for row in rows], dtype=np.float32), expected)


@pytest.mark.slow
@pytest.mark.parametrize("texts", [["a" * 100_001], ["\u20ac" * 200] * 200, ["a" * 60_000] * 2])
def test_too_much_text_is_refused_before_any_work(service: Running, encoder: Watched, texts: list[str]) -> None:
    before = used_tokens(service, "ada")
    assert vectors(service, texts).status_code == 413
    assert encoder.goes == []
    assert used_tokens(service, "ada") == before


@pytest.mark.slow
def test_tokens_are_counted_before_they_are_encoded(service: Running, encoder: Watched) -> None:
    CLOCK.seconds += 60
    counted: list[int] = []
    encoder.told = lambda sentences: counted.append(used_tokens(service, "ada"))
    told = vectors(service, TEXTS).json()["usage"]["prompt_tokens"]
    sizes = [sum(map(len, go)) for go in encoder.goes]  # a token a byte
    assert counted == [sum(sizes[: number + 1]) for number in range(len(sizes))]
    assert told == counted[-1]


@pytest.mark.slow
def test_another_caller_has_his_between_two_goes(service: Running, encoder: Watched) -> None:
    began, go_on = threading.Event(), threading.Event()

    def told(sentences: list[str]) -> None:
        began.set()
        go_on.wait(60)

    encoder.told = told
    mallory = threading.Thread(target=vectors, args=(service, TEXTS, "mallory"))
    ada = threading.Thread(target=vectors, args=(service, ["mine"]))
    mallory.start()
    assert began.wait(60)
    ada.start()
    while "ada" not in service.service.encoding._waiting:
        time.sleep(0.01)
    go_on.set()
    ada.join()
    mallory.join()
    assert ["mine"] in encoder.goes[1:3]
    assert len(encoder.goes) > 5


@pytest.mark.slow
def test_the_rest_is_not_encoded_for_a_caller_who_has_gone(service: Running, encoder: Watched) -> None:
    go_on = threading.Event()
    encoder.told = lambda sentences: [go_on.wait(60), None][1]
    with contextlib.suppress(httpx.HTTPError):
        vectors(service, TEXTS, timeout=httpx.Timeout(60, read=0.3))
    time.sleep(0.5)  # until the service has heard of it
    go_on.set()
    encoder.told = lambda sentences: None
    assert vectors(service, ["after"]).status_code == 200
    assert len(encoder.goes) < 5


@pytest.mark.parametrize(
    "texts", [["a"], ["a"] * 100, ["a" * 50_000, "b", "c"], ["b", "a" * 50_000], ["\u20ac" * 9000] * 3]
)
def test_goes_are_small_and_whole(texts: list[str]) -> None:
    goes = list(_in_turns(texts))
    assert [text for go in goes for text in go] == texts
    assert all(len(go) == 1 or (len(go) <= 32 and sum(len(text.encode()) for text in go) <= 1 << 14) for go in goes)
    assert all(goes)
