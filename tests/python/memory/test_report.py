"""The page of a memory: its facts, as text, in one file that asks for nothing."""

from __future__ import annotations

import html.parser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import everlong
from everlong.cli import main
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.repository import REPOSITORY

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}{% for a in b %}", "</style><b>"]


class Page(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_has_the_facts_and_hostile_names_are_text(tmp_path: Path) -> None:
    folder, file = tmp_path / "m<b>.everlong", tmp_path / "out.html"
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, SMALL) as mm:
        for number, name in enumerate(HOSTILE):
            mm.read(random_text(900, seed=number), source=name, tags=[f"tag {name}"], happened=1e9 + 1e7 * number)
        mm.generate("what?", max_new_tokens=3)
        page = Page(mm.memory.report(mm.trace()))
        stats = mm.memory.stats()
    plain = " ".join(page.words.split())
    for name in HOSTILE:
        assert " ".join(name.split()) in plain
        assert f"tag {name}" in page.words
    for count in (stats.tokens, stats.blocks):
        assert f"{count:,}" in page.words
    assert "2001-09-09" in page.words
    assert "No trace was given" not in page.words
    assert not {"script", "img", "b", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not any(name in ("src", "href") or name.startswith("on") for _, attrs in page.tags for name in attrs)
    with pytest.raises(SystemExit, match="0"):
        run("inspect", str(folder), "--html", str(file))
    written = file.read_text(encoding="utf-8")
    assert "http" not in written
    assert "url(" not in written
    assert "No trace was given" in written


def run(*arguments: str) -> None:
    import sys

    before, sys.argv = sys.argv, ["everlong", *arguments]
    try:
        main()
    finally:
        sys.argv = before
    raise SystemExit(0)


def test_an_empty_memory_has_a_page() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL) as mm:
        assert Page(mm.memory.report()).words.count("Nothing was read yet.") == 2


def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    """With EVERLONG_PICTURES=1 the picture of docs is made anew."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium here")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL) as mm:
        for number, name in enumerate(["letters.txt", "minutes of the harbour board.txt", "logbook.md"]):
            for part in range(4):
                when = 1.7e9 + 4e6 * number + 9e5 * part
                mm.read(
                    random_text(400 + 300 * part, seed=9 * number + part), source=name, tags=[name[:7]], happened=when
                )
        mm.generate("where?", max_new_tokens=3)
        file = tmp_path / "page.html"
        file.write_text(mm.memory.report(mm.trace()), encoding="utf-8")
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=960,1080"]
    command = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    if done.returncode != 0 or not picture.exists():
        pytest.skip("Chromium drew nothing here")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    if os.environ.get("EVERLONG_PICTURES"):
        shutil.copy(picture, REPOSITORY / "docs/pictures/report.png")
