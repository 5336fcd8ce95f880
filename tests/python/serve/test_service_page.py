"""The page in a headless Chromium: chat, citations, sources; keys of the keyboard; and nothing of a memory runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from everlong.service_data.limits import Limits
from support import random_text
from support.browser import MISSING, Browser, browser, is_there
from support.service import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_there(), reason=MISSING)]

ATTACK = "<img src=x onerror=\"window.ran='image'\"><script>window.ran='script'</script>{{7*7}}"
TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("memories"), limits=Limits(default_tokens=60)) as there:
        with httpx.Client(base_url=there.api, timeout=60) as http:
            http.post("/memories", json={"name": "garden"}).raise_for_status()
            text = f"{random_text(500)} The key of the shed hangs behind the clock. {ATTACK} {random_text(900, seed=2)}"
            for source in ("notes", ATTACK):
                body = {"source": source, "text": text, "tags": [ATTACK], "wait": True}
                assert http.post("/memories/garden/sources", json=body).status_code == 200
        yield there


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.resize(1100, 900)
        yield opened


@pytest.fixture
def page(service: Running, window: Browser) -> Iterator[Browser]:
    window.open(service.url)
    window.until(lambda: "garden" in window.text("#memory"))
    yield window
    errors = [one["message"] for one in window.call("POST", "/se/log", type="browser") if one["level"] == "SEVERE"]
    assert not errors
    assert window.run("return window.ran ?? null") is None


def ask(page: Browser, question: str) -> None:
    before = page.run("return document.querySelectorAll('.assistant details').length")
    page.type("#question", question + ENTER)
    page.until(lambda: page.run("return document.querySelectorAll('.assistant details').length") > before)


def test_an_answer_streams_and_its_citation_opens_the_passage(page: Browser) -> None:
    ask(page, "Where is the key of the shed?")
    page.click(".cited button")
    page.until(lambda: page.run("return document.getElementById('passage').open"))
    assert page.text("#passage mark")
    assert len(page.text("#passage-text")) > len(page.text("#passage mark"))
    page.press("\ue00c")  # Escape
    page.until(lambda: not page.run("return document.getElementById('passage').open"))
    ask(page, "And the clock?")
    page.click("#again")
    page.until(lambda: page.run("return !document.getElementById('again').disabled"))
    assert page.run("return document.querySelectorAll('#turns > li').length") == 4


def test_nothing_that_comes_from_a_memory_runs(page: Browser) -> None:
    ask(page, ATTACK)
    assert ATTACK in page.run("return document.querySelector('.user .said').textContent")
    page.click("summary")
    page.click("[data-view=sources]")
    page.until(lambda: ATTACK in page.text("#listed"))
    page.type("#query", "key shed clock" + ENTER)
    page.until(lambda: "behind the clock" in page.text("#found"))
    page.click("#found button")
    page.until(lambda: page.run("return document.getElementById('passage').open"))
    page.press("\ue00c")
    page.click("[data-view=overview]")
    page.until(lambda: "onerror" in page.text("#topics"))
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0


def test_the_policy_stops_what_would_run(page: Browser) -> None:
    """Should a string become HTML by a mistake, the browser refuses it."""
    for script, wants in [
        ("document.body.innerHTML = '<b>x</b>'", "TrustedHTML"),
        ("document.body.setAttribute('onclick', 'window.ran = 1')", "TrustedScript"),
        ("document.createElement('script').src = '/x.js'", "TrustedScriptURL"),
    ]:
        with pytest.raises(AssertionError, match=wants):
            page.run(script)
    page.call("POST", "/se/log", type="browser")  # what was provoked here is no fault of the page


def test_a_source_is_read_followed_and_forgotten_after_a_question(page: Browser, service: Running) -> None:
    page.click("[data-view=sources]")
    page.type("#source", "new")
    page.type("#text", random_text(400, seed=8))
    page.click("#write button")
    page.until(lambda: "new" in page.text("#listed"))
    page.click("#listed tr:last-child button")
    page.until(lambda: page.run("return document.getElementById('sure').open"))
    assert "Forget new?" in page.text("#sure")
    page.click("#sure button[value=no]")
    assert "new" in page.text("#listed")
    page.click("#listed tr:last-child button")
    page.click("#sure button[value=yes]")
    page.until(lambda: "new" not in page.text("#listed"))
    assert len(httpx.get(f"{service.api}/memories/garden/sources").json()["data"]) == 2


def test_it_works_by_the_keyboard_and_has_names_for_all(page: Browser) -> None:
    seen = []
    for _ in range(8):
        page.press(TAB)
        seen.append(page.run("return document.activeElement.id || document.activeElement.textContent"))
    assert seen[:3] == ["Skip to the content", "memory", "make"]
    assert "question" in seen
    nameless = page.run(
        "return [...document.querySelectorAll('button, input, select, textarea')].filter(one => "
        "!one.textContent.trim() && !one.labels?.length && !one.ariaLabel).map(one => one.outerHTML)"
    )
    assert nameless == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_the_dark(service: Running, tmp_path: Path, dark: bool) -> None:
    with browser(tmp_path, dark=dark) as page:
        page.resize(390, 844)
        page.open(service.url)
        page.until(lambda: "garden" in page.text("#memory"))
        ask(page, "Where is the key?")
        for view in ("chat", "sources", "overview"):
            page.click(f"[data-view={view}]")
            wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, view
        light = page.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        assert light == dark
        if out := os.environ.get("EVERLONG_PICTURES"):
            page.click("[data-view=chat]")
            page.picture(Path(out) / f"service-phone-{'dark' if dark else 'light'}.png")


def test_it_asks_nobody_else(page: Browser, service: Running) -> None:
    ask(page, "Where?")
    for view in ("sources", "overview"):
        page.click(f"[data-view={view}]")
    asked = page.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert asked
    assert all(name.startswith(service.url) for name in asked)
