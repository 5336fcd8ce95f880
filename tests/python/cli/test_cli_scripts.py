"""What scripts rely on: exit codes, one JSON object on standard output and nothing else, keys as documented."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

import everlong
from support import REPOSITORY, TINY_MEMORY
from support.processes import everlong_command, run_script

PAGE = (REPOSITORY / "docs" / "cli.md").read_text()


def documented(command: str) -> set[str]:
    """The keys that the page names first for a command, or for what it lists."""
    (row,) = re.findall(rf"^\| {re.escape(command)} \| (.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row.split(";")[-1 if "each has" in row else 0]))


def only_json(*command: object) -> Any:
    done = everlong_command(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def memory(saved_model: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("scripts")
    model, tokenizer = everlong.models.load(str(saved_model), dtype="float32")
    with everlong.MemoryModel(model, tokenizer, folder / "m", TINY_MEMORY) as mm:
        mm.read("once upon a time there was a fox. " * 40 + "The key is Zq7#Kx9. " * 9, source="book")

        def stop(done: int, total: int | None) -> None:
            if done >= 256:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mm.read("and so on. " * 90, source="cut", progress=stop)
    return folder / "m"


def test_asking_in_a_script(memory: pathlib.Path) -> None:
    ask = ["ask", "--memory", memory, "--max-new-tokens", "2", "--dtype", "float32"]
    answer = only_json(*ask, "Zq7#Kx9", "--json", "--no-remember")
    assert set(answer) == documented("`ask --json`")
    assert answer["recalled"]
    assert all(set(one) == documented("each of `recalled`") for one in answer["recalled"])
    assert [set(one) for one in answer["unfinished"]] == [documented("each of `unfinished`")]
    (memory.parent / "questions").write_text('{"question": "Zq7#Kx9"}\n')
    told = everlong_command(*ask, "--questions", memory.parent / "questions")
    assert set(json.loads(told.stdout)) == documented("`ask --questions`")


def test_looking_in_a_script(memory: pathlib.Path) -> None:
    report = only_json("inspect", memory, "--json")
    assert set(report) == documented("`inspect --json`")
    assert {*report, "blocks"} == set(only_json("inspect", memory, "--json", "--blocks"))
    assert all(set(one) == documented("each of `sources`") for one in report["sources"])
    assert report["unfinished"] == [{"sources": ["cut"], "origins": [], "tags": [], "tokens": 256}]


def test_reading_and_talking_in_a_script(saved_model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f.txt").write_text("It rained. " * 9)
    new = ["--memory", tmp_path / "m", "--model", saved_model, "--dtype", "float32"]
    (report,) = only_json("read", tmp_path / "f.txt", *new, "--json").values()
    assert set(report) == documented("`read --json`")
    chat = everlong_command("chat", *new, "--json", "--max-new-tokens", "1", typed="Rain?\n/sources\n")
    turn, listed = map(json.loads, chat.stdout.splitlines())
    assert set(turn) == documented("`chat --json`")
    assert set(listed) == {"command", "text"}
    assert chat.stderr == ""


# Ctrl-C as soon as a memory is to be opened.
STOPPED = """
import signal
from everlong.cli import main
from everlong.memory import Memory
Memory.open = lambda *_, **__: signal.raise_signal(signal.SIGINT)
main()
"""


def test_exit_codes_are_those_of_the_page(memory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    seen = {
        everlong_command("inspect", memory).returncode,
        everlong_command("inspect", tmp_path / "nothing").returncode,
        everlong_command("inspect").returncode,
        everlong_command("inspekt", memory).returncode,
        everlong_command("read", tmp_path / "nothing", "--memory", tmp_path / "m").returncode,
        run_script(STOPPED, "ask", "Rain?", "--memory", memory).returncode,
    }
    assert seen == {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
