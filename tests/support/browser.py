"""A headless Chromium, driven by W3C WebDriver."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
MISSING = "Chromium and its driver are not installed: apt-get install chromium chromium-driver"


def is_there() -> bool:
    """Return whether there is a Chromium to drive. In CI there is one."""
    return bool(os.environ.get("CI")) or all(map(shutil.which, ("chromium", "chromedriver")))


class Browser:
    """One window."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Send a command of WebDriver, and return its value."""
        answer = self._http.request(method, path, json=body if method == "POST" else None)
        value = answer.json()["value"]
        assert answer.is_success, value
        return value

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    def run(self, script: str, *given: Any) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.call("POST", "/execute/sync", script=script, args=list(given))

    def find(self, selector: str) -> str:
        """Return the first element of a selector."""
        return str(self.call("POST", "/element", using="css selector", value=selector)[_ELEMENT])

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/value", text=text)

    def press(self, keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": pressed}])

    def text(self, selector: str) -> str:
        """Return all visible text of a selector."""
        return str(
            self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')", selector)
        )

    def until(self, true: Callable[[], object], seconds: float = 120) -> None:
        """Wait until something is true."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "the page did not come so far"
            time.sleep(0.05)

    def resize(self, width: int, height: int) -> None:
        self.call("POST", "/window/rect", width=width, height=height)

    def picture(self, file: Path) -> None:
        """Write what the window shows as PNG."""
        file.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextlib.contextmanager
def browser(folder: Path, *, dark: bool = False) -> Iterator[Browser]:
    """Open a window with a profile of its own in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    arguments += [
        f"--user-data-dir={folder / 'profile'}",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            _until_ready(http)
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in made, made
            http.base_url = httpx.URL(f"http://127.0.0.1:{port}/session/{made['sessionId']}")
            yield Browser(http)
            http.delete("")
    finally:
        driver.terminate()
        driver.wait()


def _until_ready(http: httpx.Client) -> None:
    for _ in range(2400):  # two minutes: a busy machine starts it late
        with contextlib.suppress(httpx.TransportError):
            if http.get("/status").json()["value"]["ready"]:
                return
        time.sleep(0.05)
    raise AssertionError("chromedriver did not start")
