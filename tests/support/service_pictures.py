"""Pictures of the service's page for the docs, with SmolLM2 in a headless Chromium.

`python -m support.service_pictures docs/pictures`, run with tests/ on the path.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import httpx

from everlong import MemoryConfig
from everlong.data import shipped_books
from everlong.models import load
from everlong.serve.loaded_model import LoadedModel
from support.browser import Browser, browser
from support.service import Running, running

ENTER = "\ue007"
QUESTIONS = ("What is the pass key for the garden shed?", "Which animal did Alice follow down the hole?")


def asked(page: Browser, question: str) -> None:
    before = page.run("return document.querySelectorAll('.assistant details').length")
    page.type("#question", question + ENTER)
    page.until(lambda: page.run("return document.querySelectorAll('.assistant details').length") > before, 120)


def pictures(service: Running, folder: Path, out: Path) -> None:
    with browser(folder / "light") as page:
        page.resize(1100, 900)
        page.open(service.url)
        page.until(lambda: "library" in page.text("#memory"))
        for question in QUESTIONS:
            asked(page, question)
        page.click(".assistant summary")
        page.run("window.scrollTo(0, 0)")
        page.picture(out / "service-chat.png")
        page.click(".cited button")
        page.until(lambda: page.run("return document.getElementById('passage').open"))
        page.picture(out / "service-passage.png")
        page.press("\ue00c")
        page.click("[data-view=sources]")
        page.type("#query", "pass key" + ENTER)
        page.until(lambda: page.text("#found") != "")
        page.run("window.scrollTo(0, 0)")
        page.picture(out / "service-sources.png")
        page.click("[data-view=overview]")
        page.until(lambda: page.text("#facts") != "")
        page.picture(out / "service-overview.png")
    with browser(folder / "dark", dark=True) as page:
        page.resize(390, 844)
        page.open(service.url)
        page.until(lambda: "library" in page.text("#memory"))
        asked(page, QUESTIONS[0])
        page.run("window.scrollTo(0, 0)")
        page.picture(out / "service-phone.png")


def main(out: Path) -> None:
    model, tokenizer = load("smollm2")
    config = MemoryConfig.fitting(2048).changed(archive={"graph": True, "tagger": "keyphrases"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with running(folder / "memories", loaded=LoadedModel("smollm2", model, tokenizer, config)) as service:
            http = httpx.Client(base_url=service.api, timeout=600)
            http.post("/memories", json={"name": "library"}).raise_for_status()
            for number, book in enumerate(shipped_books()[:3]):
                fact = "\n\nThe pass key for the garden shed is 48213.\n\n" if number == 0 else ""
                body = {"source": book.name, "text": book.text[:4000] + fact + book.text[4000:9000], "wait": True}
                assert http.post("/memories/library/sources", json=body).json()["status"] == "done"
            pictures(service, folder, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
