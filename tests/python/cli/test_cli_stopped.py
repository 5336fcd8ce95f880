"""Ctrl-C says what is kept and which command goes on; a reading that was cut short is told until it is finished."""

from __future__ import annotations

import json
import pathlib
import shlex
from typing import Any

import pytest

import everlong
from everlong.cli.unfinished import stored_in, unfinished_notes
from everlong.memory.unfinished import unfinished_in
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.processes import everlong_command, run_script

# Ctrl-C while chunk or token number NUMBER is computed.
INTERRUPTED = """
import signal
from everlong.cli import main
from everlong.frame.kv_zones import KvZones
forward, passed = KvZones.compute, []
def interrupted(zones, *args, **how):
    passed.append(1)
    if len(passed) == NUMBER:
        signal.raise_signal(signal.SIGINT)
    return forward(zones, *args, **how)
KvZones.compute = interrupted
main()
"""


def interrupted(number: int, *command: object) -> tuple[int, str, str]:
    done = run_script(INTERRUPTED.replace("NUMBER", str(number)), *command)
    return done.returncode, done.stdout, done.stderr


def told(stderr: str) -> tuple[str, list[str]]:
    """What is kept, and the command that goes on, as a list of words."""
    *_, kept, go_on = stderr.splitlines()
    assert kept.startswith("everlong: stopped. ")
    return kept.removeprefix("everlong: stopped. "), shlex.split(go_on.partition(": ")[2])


@pytest.fixture
def book(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "my book.txt"
    file.write_text("".join(f"Line {line} of the book. " for line in range(200)))
    return file


def test_a_reading_that_was_stopped_goes_on_as_it_says(
    saved_model: pathlib.Path, tmp_path: pathlib.Path, book: pathlib.Path
) -> None:
    memory = tmp_path / "a memory"
    command = ["read", book, "--memory", memory, "--model", saved_model, "--tag", "draft"]
    code, out, err = interrupted(3, *command)
    assert (code, out) == (130, "")
    kept, go_on = told(err)
    assert go_on == ["everlong", *map(str, command)]
    with everlong.Memory.open(memory, read_only=True) as opened:
        tokens = opened.stats().tokens
        assert 0 < tokens < len(book.read_text())
        (note,) = unfinished_notes(opened, memory)
    assert kept == f"{tokens:,} tokens of my book are kept in {memory}"
    shown = everlong_command("inspect", memory)
    assert note in shown.stdout.splitlines()
    report = json.loads(everlong_command("inspect", memory, "--json").stdout)
    named = {"sources": ["my book"], "origins": [str(book)], "tags": ["draft"], "tokens": tokens}
    assert report["unfinished"] == [named]
    ask = ["ask", "Line 4", "--memory", memory, "--max-new-tokens", "1", "--no-remember"]
    assert note in everlong_command(*ask).stdout.splitlines()
    assert json.loads(everlong_command(*ask, "--json").stdout)["unfinished"] == [named]
    chat = ["chat", "--memory", memory, "--max-new-tokens", "1"]
    assert note in everlong_command(*chat).stderr.splitlines()
    words = shlex.split(note.rstrip("]").partition("go on with: ")[2])
    assert (
        words == ["everlong", "read", str(book), "--memory", str(memory), "--tag", "draft", "--source", "my book"][:-2]
    )
    done = everlong_command(*words[1:])
    assert done.returncode == 0, done.stderr
    assert f"after {tokens:,} that were there" in done.stdout
    for looked in (everlong_command("inspect", memory), everlong_command(*ask), everlong_command(*chat)):
        assert "unfinished" not in looked.stdout + looked.stderr


def test_stopped_before_anything_was_kept(
    saved_model: pathlib.Path, tmp_path: pathlib.Path, book: pathlib.Path
) -> None:
    code, _, err = interrupted(1, "doctor", saved_model, "--tokens", "64")
    if code != 130:  # the doctor computes by other ways
        pytest.skip("no chunk was computed")
    kept, go_on = told(err)
    assert kept == "Nothing of it is kept"
    assert go_on == ["everlong", "doctor", str(saved_model), "--tokens", "64"]


@pytest.mark.slow
def test_an_answer_that_was_stopped(saved_model: pathlib.Path, tmp_path: pathlib.Path, book: pathlib.Path) -> None:
    memory = tmp_path / "m"
    assert everlong_command("read", book, "--memory", memory, "--model", saved_model).returncode == 0
    command = ["ask", "Which line's end? $HOME", "--memory", memory, "--max-new-tokens", "8"]
    for options in ([], ["--json"]):
        code, out, err = interrupted(3, *command, *options)
        assert (code, out) == (130, "")
        kept, go_on = told(err)
        assert kept == f"{memory} keeps what it had"
        assert go_on == ["everlong", *map(str, command), *options]


# Ctrl-C at the prompt.
AT_THE_PROMPT = """
import builtins, signal
from everlong.cli import main
lines = iter(["hello"])
def typed(prompt):
    for line in lines:
        return line
    signal.raise_signal(signal.SIGINT)
builtins.input = typed
main()
"""


def test_a_chat_that_was_stopped_at_its_prompt(saved_model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    memory, timeline = tmp_path / "m", tmp_path / "t.json"
    command = ["chat", "--memory", memory, "--model", saved_model, "--max-new-tokens", "2", "--timeline", timeline]
    done = run_script(AT_THE_PROMPT, *command)
    assert done.returncode == 130
    kept, _ = told(done.stderr)
    assert kept == f"{len('hello') + 2} tokens are kept in {memory}"
    assert json.loads(timeline.read_text())["events"]


def test_unfinished_readings_are_counted_by_their_texts(tmp_path: pathlib.Path) -> None:
    def stop(most: int) -> Any:
        def progress(done: int, total: int | None) -> None:
            if done >= most:
                raise KeyboardInterrupt

        return progress

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", TINY_MEMORY) as mm:
        assert unfinished_in(mm.memory) == []
        assert stored_in(tmp_path / "m") == ""
        mm.read("whole. " * 50, source="whole")
        mm.read("first. " * 40, source="first", more=True, tags="x")
        with pytest.raises(KeyboardInterrupt):
            mm.read("second. " * 90, source="second", progress=stop(256))
        with pytest.raises(KeyboardInterrupt):
            mm.read("third. " * 90, source="third", progress=stop(384))
        both, third = unfinished_in(mm.memory)
        assert (both.sources, both.tags, both.tokens) == (("first", "second"), ("x",), 280 + 256)
        assert (third.sources, third.tokens) == (("third",), 384)
        assert both.origins == third.origins == ()
        assert "read the same text under the same name" in unfinished_notes(mm.memory, tmp_path / "m")[0]
        mm.memory.forget(source="third")
        assert unfinished_in(mm.memory) == [both]
        mm.read("first. " * 40, source="first", more=True, tags="x")
        mm.read("second. " * 90, source="second")
        assert unfinished_in(mm.memory) == []


@pytest.mark.parametrize(
    "noted", ["", "no JSON", "[1]", '{"0": 1}', '{"0": [[["a"]]]}', '{"x": [[[0, 9]]]}', '{"0": [[[]]]}']
)
def test_a_damaged_note_of_readings_hides_nothing_else(noted: str, tmp_path: pathlib.Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", TINY_MEMORY) as mm:
        mm.read("It rained. " * 40, source="rain")
        mm.memory.core.set_attribute("readings", noted)
    done = everlong_command("inspect", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert "rain" in done.stdout
