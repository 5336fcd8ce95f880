"""The command line over a tiny model saved to disk: what it prints, and how it fails."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jinja2
import pytest
import torch
from typer.testing import CliRunner, Result

from everlong.cli import app as cli_app
from everlong.cli.app import app
from everlong.cli.batch_questions import questions_in
from everlong.generation.memory_model import MemoryModel
from everlong.generation.progress import track_tokens
from everlong.memory import Memory
from support import TINY_MEMORY, byte_tokenizer, tiny_model, tiny_text_model
from support.processes import everlong_command as everlong
from support.processes import run_script


@pytest.mark.slow
def test_read_then_ask_without_naming_the_model_again(saved_model: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    # Under the 64 pages from which the heads of a random model would have a say.
    book.write_text("once upon a time there was a fox. " * 60 + "The key is Zq7#Kx9. " + "and so on, and so on. " * 60)
    memory = tmp_path / "book.everlong"
    read = everlong("read", book, "--memory", memory, "--model", saved_model, "--json")
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout)[str(book)]["tokens"] == len(book.read_text())
    further = tmp_path / "further.txt"
    further.write_text("and a little more of it")
    read = everlong("read", further, "--memory", memory)
    assert read.returncode == 0, read.stderr
    ask = everlong("ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "3", "--json")
    assert ask.returncode == 0, ask.stderr
    answer = json.loads(ask.stdout)
    assert answer["tokens"] == 3
    assert any("Zq7#Kx9" in recall["text"] and recall["source"] == "book" for recall in answer["recalled"])
    survey = everlong("ask", "What is the key?", "--survey", "--memory", memory, "--max-new-tokens", "3", "--json")
    assert survey.returncode == 0, survey.stderr
    assert any("The key is Zq7#Kx9." in line for line in json.loads(survey.stdout)["quoted"])
    assert everlong("ask", "What?", "--survey", "--remember", "--memory", memory).returncode == 2


# Ctrl-C while the sixth chunk is computed.
_INTERRUPTED = """
import signal
from everlong.cli import main
from everlong.frame.kv_zones import KvZones
forward, passed = KvZones.compute, []
def interrupted(zones, *args, **how):
    passed.append(1)
    if len(passed) == 6:
        signal.raise_signal(signal.SIGINT)
    return forward(zones, *args, **how)
KvZones.compute = interrupted
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", [[], ["--source", "library"]])
def test_the_same_command_reads_on_where_it_stopped(source: list[str], saved_model: Path, tmp_path: Path) -> None:
    books = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for number, book in enumerate(books, 1):
        book.write_text("".join(f"Line {line} of book {number}. " for line in range(60 * number)))
    memory = tmp_path / "m.everlong"
    command = ["read", *books, "--memory", memory, "--model", saved_model, "--json", *source]
    cut = run_script(_INTERRUPTED, *command)
    assert cut.returncode == 130, cut.stderr
    asked = everlong("ask", "Line 4", "--memory", memory, "--max-new-tokens", "2", "--remember")
    assert asked.returncode == 0, asked.stderr
    again = everlong(*command)
    assert again.returncode == 0, again.stderr
    first, second = json.loads(again.stdout).values()
    sizes = [len(book.read_text()) for book in books]
    assert (first["tokens"], first["resumed_tokens"]) == (0, sizes[0])
    assert second["resumed_tokens"] > 0
    assert second["tokens"] + second["resumed_tokens"] == sizes[1]


@pytest.mark.slow
def test_ask_keeps_to_sources_tags_and_times(saved_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "m.everlong"
    for name, tag in [("old", "work"), ("new", "home")]:
        book = tmp_path / f"{name}.txt"
        book.write_text("once upon a time there was a fox. " * 20 + "The key is Zq7#Kx9. " + "and so on. " * 20)
        read = everlong("read", book, "--memory", memory, "--model", saved_model, "--tag", tag)
        assert read.returncode == 0, read.stderr
    for options, expected in [
        (["--source", "old"], {"old"}),
        (["--tag", "home", "--after", "1d"], {"new"}),
        (["--tag", "home", "--tag", "work"], set()),
        (["--before", "2020-01-01"], set()),
    ]:
        ask = everlong("ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "2", "--json", *options)
        assert ask.returncode == 0, ask.stderr
        assert {recall["source"] for recall in json.loads(ask.stdout)["recalled"]} == expected
    wrong = everlong("ask", "Zq7#Kx9", "--memory", memory, "--after", "yesterday")
    assert wrong.returncode == 1
    assert "yesterday" in wrong.stderr


@pytest.mark.slow
def test_chat_remembers_lists_and_forgets(saved_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "talk.everlong"
    book = tmp_path / "book.txt"
    book.write_text("once upon a time there was a fox. " * 30)
    assert everlong("read", book, "--memory", memory, "--model", saved_model).returncode == 0
    typed = "hello there\n\n/sources\n/forget book\n/sources\n/what\n"
    picture = tmp_path / "talk.png"
    chat = everlong("chat", "--memory", memory, "--max-new-tokens", "4", "--timeline", picture, typed=typed)
    assert picture.stat().st_size > 10_000
    assert chat.returncode == 0, chat.stderr
    assert "book: 1,020 tokens" in chat.stdout
    assert "2 blocks forgotten" in chat.stdout
    assert chat.stdout.count("book: ") == 1
    assert "/forget NAME" in chat.stdout
    inspected = json.loads(everlong("inspect", memory, "--blocks", "--json").stdout)
    (conversation,) = inspected["sources"]
    assert conversation["name"] == "conversation"
    assert (
        conversation["tokens"]
        == len("hello there") + 4
        == sum(b["span"][1] - b["span"][0] for b in inspected["blocks"])
    )
    typed = "hello there\n/sources\n"
    chat = everlong("chat", "--memory", memory, "--max-new-tokens", "4", "--json", typed=typed)
    turn, listed = map(json.loads, chat.stdout.splitlines())
    assert turn["question"] == "hello there"
    assert (listed["command"], listed["text"].split(":")[0]) == ("/sources", "conversation")


def test_ask_beside_a_process_that_reads(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "m.everlong", tmp_path / "book.txt"
    book.write_text("The key is Zq7#Kx9. " + "once upon a time there was a fox. " * 80)
    assert everlong("read", book, "--memory", memory, "--model", saved_model).returncode == 0
    command = ["ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "3"]
    with Memory.open(memory):  # as a reading process holds it
        ask = everlong(*command)
        assert ask.returncode == 0, ask.stderr
        assert "[book, 20" in ask.stdout
        kept = everlong(*command, "--remember")
        assert kept.returncode == 1
        assert "is being written" in kept.stderr


def test_ask_about_text_that_is_still_in_the_frame_cites_nothing(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "m.everlong", tmp_path / "book.txt"
    book.write_text("The key is Zq7#Kx9. " + "once upon a time there was a fox. " * 4)
    assert everlong("read", book, "--memory", memory, "--model", saved_model).returncode == 0
    ask = everlong("ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "3")
    assert ask.returncode == 0, ask.stderr
    assert "nothing came back: all of the text is in the frame" in ask.stdout
    assert "[book, 20" not in ask.stdout


@pytest.mark.slow
def test_a_memory_that_is_unsure_says_so(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "m.everlong", tmp_path / "book.txt"
    book.write_text("The key is Zq7#Kx9. " + "once upon a time there was a fox. " * 40)
    assert everlong("read", book, "--memory", memory, "--model", saved_model).returncode == 0
    ask = ["ask", "~~ ^^ || of quantum physics", "--memory", memory, "--max-new-tokens", "2", "--no-remember"]
    answer = json.loads(everlong(*ask, "--json").stdout)
    assert 0 < answer["confidence"] < 0.5
    said = f"[memory unsure: the answer is among these with {100 * answer['confidence']:.0f} % probability]"
    asked = everlong(*ask)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines().count(said) == 1
    assert "unsure" not in everlong(*ask, "--no-recall").stdout
    chat = everlong("chat", "--memory", memory, "--max-new-tokens", "2", typed="~~ ^^ || of quantum physics\n")
    assert chat.returncode == 0, chat.stderr
    assert "[memory unsure: " in chat.stderr
    assert "unsure" not in chat.stdout


@pytest.mark.slow
def test_what_an_answer_is_told_besides(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "m.everlong", tmp_path / "book.txt"
    book.write_text("The key is Zq7#Kx9. " + "once upon a time there was a fox. " * 40)
    assert everlong("read", book, "--memory", memory, "--model", saved_model, "--device", "cpu").returncode == 0
    command = ["ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "1"]
    told = everlong(*command, "--device", "cpu", "--chat-template-kwargs", '{"enable_thinking": false}')
    assert told.returncode == 0, told.stderr
    elsewhere = everlong(*command, "--source", "letters")
    assert "nothing came back: nothing was read that may come back" in elsewhere.stdout
    for wrong, why in [("{enable", "is no JSON"), ("[1]", "expected an object")]:
        refused = everlong(*command, "--chat-template-kwargs", wrong)
        assert refused.returncode == 1
        assert why in refused.stderr


def test_inspect_shows_what_a_memory_holds(saved_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "book.everlong"
    book = tmp_path / "book.txt"
    book.write_text("once upon a time there was a fox. " * 30)
    everlong("read", book, "--memory", memory, "--model", saved_model)
    shown = everlong("inspect", memory, "--blocks")
    assert shown.returncode == 0, shown.stderr
    for part in ("1,020 tokens in 2 blocks", str(saved_model), "book", ": tokens 509-1,020, book", "not calibrated"):
        assert part in shown.stdout
    report = json.loads(everlong("inspect", memory, "--json").stdout)
    assert report["stats"]["tokens"] == 1020
    assert report["geometry"]["kv_heads"] == 2
    assert "blocks" not in report


@pytest.mark.slow
def test_blocks_come_back_as_detail_tokens_where_that_is_asked_for(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "book.everlong", tmp_path / "book.txt"
    book.write_text("once upon a time there was a fox. " * 60 + "The key is Zq7#Kx9. " + "and so on, and so on. " * 60)
    written = ["--memory", memory, "--set", "writer.tokens=4"]
    assert everlong("read", book, *written, "--model", saved_model).returncode == 0
    assert "MB of Detail Tokens" in everlong("inspect", memory).stdout
    assert json.loads(everlong("inspect", memory, "--json").stdout)["stats"]["detail_bytes"] > 0
    asking = ["ask", "Zq7#Kx9", *written, "--set", "answer.recall_mode=detail", "--max-new-tokens", "3"]
    assert ", as Detail Tokens]" in everlong(*asking).stdout
    recalled = json.loads(everlong(*asking, "--json").stdout)["recalled"]
    assert recalled[0]["as_details"]
    assert "Zq7#Kx9" in recalled[0]["text"]
    refused = everlong("ask", "Zq7#Kx9", "--memory", memory, "--set", "answer.recall_mode=detail")
    assert refused.returncode == 1
    assert "expected a part that writes them" in refused.stderr


def test_names_are_shown_as_they_are(saved_model: Path, tmp_path: Path) -> None:
    memory, book = tmp_path / "book.everlong", tmp_path / "[draft] book.txt"
    book.write_text("once upon a time there was a fox. " * 10)
    everlong("read", book, "--memory", memory, "--model", saved_model)
    everlong("read", book, "--memory", memory, "--model", saved_model, "--source", "[/b]")
    shown = everlong("inspect", memory)
    assert shown.returncode == 0, shown.stderr
    for name in ("[draft] book", "[/b]"):
        assert name in shown.stdout
        with track_tokens(name, enabled=True) as advance:
            assert advance is not None
            advance(1, 1)


def test_a_bar_is_drawn_on_standard_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    with MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        mm.read("word " * 200, source="book", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "book" in shown.err
    assert "1000/1000" in shown.err


@pytest.mark.slow
def test_chat_prints_json_alone_to_a_terminal_s_pipe(saved_model: Path, tmp_path: Path) -> None:
    """Typed at a terminal, printed into a pipe: `everlong chat --json | jq`."""
    terminal, typed = os.openpty()
    command = "from everlong.cli import main; main()"
    arguments = ["chat", "--memory", tmp_path / "m.everlong", "--model", saved_model, "--max-new-tokens", "2"]
    os.write(terminal, b"hello\n/sources\n/quit\n")
    run = subprocess.run(
        [sys.executable, "-c", command, *map(str, arguments), "--json"],
        stdin=typed,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(typed)
    os.close(terminal)
    assert run.returncode == 0, run.stderr
    said = [json.loads(line) for line in run.stdout.splitlines()]
    keys = ["question", "text", "recalled", "confidence", "unfinished"]
    assert [list(turn) for turn in said] == [keys, ["command", "text"]]


# Ctrl-C while the third token of an answer is computed.
_INTERRUPTED_ANSWER = """
import signal
from everlong.cli import main
from everlong.frame.kv_zones import KvZones
forward, said = KvZones.compute, []
def interrupted(zones, chunk, **how):
    if len(chunk) == 1:
        said.append(1)
        if len(said) == 3:
            signal.raise_signal(signal.SIGINT)
    return forward(zones, chunk, **how)
KvZones.compute = interrupted
main()
"""


def test_chat_goes_on_after_an_answer_that_was_cut_short(saved_model: Path, tmp_path: Path) -> None:
    """Ctrl-C ends an answer and no conversation: what was said of it stays said."""
    memory = tmp_path / "talk.everlong"
    arguments = ["chat", "--memory", memory, "--model", saved_model, "--max-new-tokens", "12", "--json"]
    chat = run_script(_INTERRUPTED_ANSWER, *arguments, typed="hello there\nand then?\n")
    assert chat.returncode == 0, chat.stderr
    first, second = map(json.loads, chat.stdout.splitlines())
    assert (first["question"], second["question"]) == ("hello there", "and then?")
    with Memory.open(memory) as kept:
        ids = kept.core.blocks.token_ids(0, 0, kept.core.blocks.stream_end(0)).tolist()
        assert kept.verify().damage == ()
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(ids[:11]) == "hello there"
    assert tokenizer.decode(ids[14:23]) == "and then?"
    assert len(ids) == 11 + 3 + 9 + 12
    assert tokenizer.decode(ids[11:14]).startswith(first["text"])
    assert second["text"] == tokenizer.decode(ids[23:], skip_special_tokens=True)


def test_chat_forgets_what_was_said_by_the_name_that_it_lists(saved_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "talk.everlong"
    typed = "hello there\n/sources\n/forget conversation\n/sources\n"
    chat = everlong("chat", "--memory", memory, "--model", saved_model, "--max-new-tokens", "4", typed=typed)
    assert chat.returncode == 0, chat.stderr
    assert "2 blocks forgotten" in chat.stdout  # question and answer
    assert chat.stdout.count("conversation: 15 tokens") == 1
    assert "nothing yet" in chat.stdout


def here(*arguments: object) -> Result:
    """The same in this process, which has imported torch already."""
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def two_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory of `old` (tag work) and `new` (tag home), which both have the key; its model answers in letters."""
    folder = tmp_path_factory.mktemp("two")
    model, tokenizer = tiny_model(), byte_tokenizer()
    letters = tokenizer("abcdefghijklmnopqrstuvwxyz")["input_ids"]
    model.generation_config.suppress_tokens = [token for token in range(257) if token not in letters]
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    for name, tag in [("old", "work"), ("new", "home")]:
        book = folder / f"{name}.txt"
        book.write_text("once upon a time there was a fox. " * 20 + "The key is Zq7#Kx9. " + "and so on. " * 20)
        read = here("read", book, "--memory", folder / "m.everlong", "--model", folder / "model", "--tag", tag)
        assert read.exit_code == 0, read.output
    return folder / "m.everlong"


def test_a_model_is_rounded_while_it_is_loaded(saved_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("the bell rings at noon. " * 40)
    memory = ["--memory", tmp_path / "m.everlong", "--model", saved_model]
    read = here("read", text, *memory, "--weights", "int4")
    assert read.exit_code == 0, read.output
    other = here("ask", "when?", *memory)
    assert "loaded with weights='int4', and this one with no weights=" in str(other.exception)
    asked = here("ask", "when?", *memory, "--weights", "int4", "--max-new-tokens", "4")
    assert asked.exit_code == 0, asked.output


def test_a_file_of_questions_is_answered_line_by_line(
    two_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.models.loading._layer_seconds", lambda *_: 1.0)  # the same dtype for every load
    ask = ["ask", "--memory", two_sources, "--max-new-tokens", "24"]
    before = json.loads(here("inspect", two_sources, "--json").stdout)["sources"]
    alone = json.loads(here(*ask, "Zq7#Kx9", "--json", "--no-remember").stdout)
    asked: list[dict[str, Any]] = [
        {"question": "Zq7#Kx9"},
        {"question": "Zq7#Kx9", "source": "old", "answer": "no such words"},
        {"question": "Zq7#Kx9", "tags": ["home"], "answer": None},
        {"question": "Zq7#Kx9", "source": ["old", "new"], "tags": "work"},
        {"question": "Zq7#Kx9", "answer": f"<{alone['text'].upper()}>"},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n\n".join(map(json.dumps, asked)))
    told = here(*ask, "--questions", file)
    assert told.exit_code == 0, told.output
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [row["question"] for row in rows] == ["Zq7#Kx9"] * 5
    assert [{recall["source"] for recall in row["recalled"]} for row in rows] == [
        {"old", "new"},
        {"old"},
        {"new"},
        {"old"},
        {"old", "new"},
    ]
    assert [row.get("right") for row in rows] == [None, False, None, None, True]
    for row in rows:
        assert set(row) - {"right"} == {"question", "text", "recalled", "confidence", "seconds"}
        assert row["seconds"] >= 0
    assert sum(row["seconds"] for row in rows) > 0
    for row in (rows[0], rows[-1]):  # none finds in the memory what was asked before it
        assert row["text"] == alone["text"]
        named = ("span", "source", "score", "used", "passage")
        assert row["confidence"] == alone["confidence"]
        assert row["recalled"] == [{name: recall[name] for name in named} for recall in alone["recalled"]]
    assert json.loads(here("inspect", two_sources, "--json").stdout)["sources"] == before
    # What holds for all gives way to what a line says.
    for options, expected in ((["--source", "new"], [{"new"}, {"old"}]), (["--no-recall"], [set(), set()])):
        told = here(*ask, "--questions", file, *options)
        assert told.exit_code == 0, told.output
        rows = [json.loads(line) for line in told.stdout.splitlines()]
        assert [{recall["source"] for recall in row["recalled"]} for row in rows[:2]] == expected


def test_ask_remembers_as_generate_and_chat_do_unless_it_is_told_not_to(two_sources: Path) -> None:
    def roles() -> list[str]:
        with Memory.open(two_sources, read_only=True) as memory:
            return [block.role for block in memory.blocks()]

    before = roles()
    ask = ["ask", "Zq7#Kx9", "--memory", two_sources, "--max-new-tokens", "3"]
    assert here(*ask, "--no-remember").exit_code == 0
    assert roles() == before
    for option in ([], ["--remember"]):
        before = roles()
        assert here(*ask, *option).exit_code == 0
        assert roles() == [*before, "asked", "said"]


def test_a_question_may_name_roles(two_sources: Path) -> None:
    ask = ["ask", "Zq7#Kx9", "--memory", two_sources, "--max-new-tokens", "3", "--json"]
    assert {one["role"] for one in json.loads(here(*ask).output)["recalled"]} <= {"read", "said"}
    read_alone = json.loads(here(*ask, "--no-remember", "--role", "read").output)["recalled"]
    assert {one["role"] for one in read_alone} == {"read"}
    refused = here(*ask, "--role", "heard")
    assert refused.exit_code != 0
    assert "role is" in str(refused.exception)


def test_a_question_to_the_window_alone(two_sources: Path) -> None:
    ask = ["ask", "Zq7#Kx9", "--memory", two_sources, "--max-new-tokens", "3", "--no-recall"]
    assert json.loads(here(*ask, "--json").stdout)["recalled"] == []
    told = here(*ask)
    assert told.exit_code == 0, told.output
    assert "nothing came back" not in told.stdout, "nothing was to"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"question": "Who?"', "no JSON"),
        (b'{"question": "Wh\xff?"}', "no JSON"),
        (b'["Who?"]', "expected an object such as"),
        (b'{"question": "Who?", "tag": "work"}', "there is no 'tag', but question, source, tags, answer"),
        (b'{"source": "a"}', "expected a question"),
        (b'{"question": " "}', "expected a question"),
        (b'{"question": "Who?", "source": 7}', "source is 7, expected a name or a list of names"),
        (b'{"question": "Who?", "source": []}', "source is an empty list, which chooses nothing"),
        (b'{"question": "Who?", "tags": []}', "tags is an empty list, which chooses nothing"),
        (b'{"question": "Who?", "tags": ["a", 7]}', "expected a name or a list of names"),
        (b'{"question": "Who?", "answer": 7}', "answer is 7, expected text"),
        (b'{"question": "Who?", "answer": "..."}', "expected text with a letter or a digit"),
        (b'{"question": "Who \\ud800?"}', "half a surrogate pair"),
    ],
)
def test_a_line_that_is_no_question_is_told_before_a_model_is_loaded(
    line: bytes, why: str, two_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_bytes(b'{"question": "Where?"}\n\n' + line + b'\n{"question": "When?"}\n')
    monkeypatch.setattr("everlong.models.load", lambda *_, **__: pytest.fail("a model was loaded"))
    result = here("ask", "--questions", file, "--memory", two_sources)
    assert result.exit_code == 1
    assert str(result.exception).startswith(f"{file}, line 3: ")
    assert why in str(result.exception)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_questions_are_read_as_editors_write_them(encoding: str, tmp_path: Path) -> None:
    file, asked = tmp_path / "questions.jsonl", ["Wer fährt?", "One\u2028line?"]
    mark = "" if encoding in ("utf-8", "utf-8-sig", "utf-16") else "\ufeff"
    lines = [json.dumps({"question": one}, ensure_ascii=False) for one in asked]
    file.write_bytes((mark + "\r\n".join(lines)).encode(encoding))
    assert [one.question for one in questions_in(file)] == asked
    file.write_bytes(file.read_bytes()[:-1] if "16" in encoding else b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"questions\.jsonl"):
        questions_in(file)


def test_one_question_or_a_file_of_them(two_sources: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n")
    result = here("ask", "--questions", file, "--memory", two_sources)
    assert str(result.exception) == f"{file} has no question"
    for arguments in (
        [],
        ["Who?", "--questions", file],
        ["--questions", file, "--remember"],
        ["--questions", tmp_path / "nothing.jsonl"],
    ):
        assert here("ask", *arguments, "--memory", two_sources).exit_code == 2


def test_what_was_answered_before_ctrl_c_was_printed(two_sources: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question": "Who?"}\n' * 9)
    arguments = ["ask", "--questions", file, "--memory", two_sources, "--max-new-tokens", "2"]
    fifth = _INTERRUPTED_ANSWER.replace("== 3", "== 5")  # of two questions at once: the third is under way
    cut = run_script(fifth, *arguments, "--set", "answer.at_once=2")
    assert cut.returncode == 130, cut.stderr
    rows = [json.loads(line) for line in cut.stdout.splitlines()]
    assert 1 <= len(rows) <= 3
    assert {row["question"] for row in rows} == {"Who?"}
    with Memory.open(two_sources) as kept:
        assert kept.verify().damage == ()


def test_a_question_makes_no_memory(saved_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "nothing.everlong"
    result = everlong("ask", "who?", "--memory", memory, "--model", saved_model)
    assert result.returncode == 1
    assert "nothing.everlong" in result.stderr
    assert not memory.exists()


def test_failure_is_one_line_and_a_code(tmp_path: Path) -> None:
    result = everlong("ask", "who?", "--memory", tmp_path / "nothing.everlong")
    assert result.returncode == 1
    assert result.stderr.startswith("everlong: ")
    assert "nothing.everlong" in result.stderr
    assert "Traceback" not in result.stderr


def allocate_too_much() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def run_out_of_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def refuse_a_turn() -> None:
    jinja2.Environment().from_string("{% if %}")


def import_what_is_missing() -> None:
    importlib.import_module("no_such_package")


@pytest.mark.parametrize(
    ("fail", "told"),
    [
        (allocate_too_much, "DefaultCPUAllocator"),
        (run_out_of_gpu_memory, "CUDA out of memory"),
        (refuse_a_turn, "Expected an expression"),
        (import_what_is_missing, "no_such_package"),
    ],
)
def test_what_a_machine_or_a_template_refuses_is_one_line(
    fail: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_app, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli_app.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("everlong: ")
    assert told in said


def test_a_mistake_of_ours_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("size mismatch"), AssertionError(), TypeError("no")):
        monkeypatch.setattr(cli_app, "app", MagicMock(side_effect=error))
        with pytest.raises(type(error)):
            cli_app.main()


def test_a_gpu_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match=rf"--device {device}: torch .* sees 0 GPUs"):
            cli_app.on_device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="sees 1 GPUs"):
        cli_app.on_device("cuda:1")
    assert cli_app.on_device("cuda:0") == {"device_map": "cuda:0"}
    assert cli_app.on_device("cpu") == {"device_map": "cpu"}


@pytest.mark.parametrize(
    "command", [("read", "BOOK"), ("ask", "who?"), ("ask", "who?", "--set", "search.groups=2"), ("chat",)]
)
def test_a_memory_is_read_and_asked_in_the_dtype_that_is_named(two_sources: Path, command: tuple[str, ...]) -> None:
    book = two_sources.parent / "more.txt"
    book.write_text("More.")
    arguments = [book if argument == "BOOK" else argument for argument in command]
    result = here(*arguments, "--memory", two_sources, "--dtype", "fp17")
    assert isinstance(result.exception, ValueError)
    assert "dtype is 'fp17', expected" in str(result.exception)


@pytest.mark.slow
def test_eval_runs_a_task_and_plot_draws_its_report(saved_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "run"
    arguments = ["passkey", "--model", saved_model, "--lengths", "6000", "--count", "1", "--out", out]
    run = everlong("eval", *arguments, "--baseline", "window", "--baseline", "random", "--set", "search.index=lexical")
    assert run.returncode == 0, run.stderr
    assert "Right answers in 6,000 tokens" in run.stdout
    report = json.loads((out / "report.json").read_text())
    assert list(report["baselines"]) == ["window", "random"]
    drawn = everlong("plot", out / "report.json", "--out", tmp_path / "pictures")
    assert drawn.returncode == 0, drawn.stderr
    assert {Path(line).name for line in drawn.stdout.split()} == {
        "accuracy.png",
        "accuracy.svg",
        "tasks.png",
        "tasks.svg",
    }


def test_eval_prints_the_report_that_it_keeps_as_json(saved_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["passkey", "--model", saved_model, "--lengths", "6000", "--count", "1", "--out", out, "--json"]
    run = everlong("eval", *arguments, "--baseline", "window", "--set", "search.index=lexical")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert list(report["baselines"]) == ["window"]


@pytest.mark.slow
def test_niah_prints_rates_of_what_it_asked_as_json(saved_model: Path) -> None:
    """Every rate is that of its questions, counted again."""
    arguments = ["--tokens", "5000", "--facts", "2", "--kinds", "pass-key,uuid", "--seed", "3", "--json"]
    run = everlong("eval", "niah", "--model", saved_model, *arguments, "--set", "search.index=lexical")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    questions = report["questions"]
    assert len(questions) == 3 * 2 * 2
    for asked in questions:
        first, last = asked["span"]
        holding = [n for n, (begin, end) in enumerate(asked["groups"], 1) if begin <= first and last <= end]
        assert asked["recalled_rank"] == (holding[0] if holding else None)
        for reply, right in (("reply", "right"), ("oracle_reply", "oracle_right"), ("window_reply", "window_right")):
            assert asked[right] is (asked["answer"] in asked[reply])
    rates = {
        "accuracy": lambda asked: asked["right"],
        "oracle_accuracy": lambda asked: asked["oracle_right"],
        "window_accuracy": lambda asked: asked["window_right"],
        "recall_at_k": lambda asked: asked["recalled_rank"] is not None,
    }

    def counted(some: list[dict[str, Any]]) -> dict[str, float]:
        return {name: sum(map(of, some)) / len(some) for name, of in rates.items()}

    assert {name: report[name] for name in rates} == pytest.approx(counted(questions))
    assert 0 < report["recall_at_k"] <= 1
    for table, key_of in (
        ("by_length", lambda asked: str(asked["length"])),
        ("by_depth", lambda asked: f"{(int(asked['depth'] * 10) + 0.5) / 10:.3g}"),
        ("by_kind", lambda asked: asked["kind"]),
    ):
        groups: dict[str, list[dict[str, Any]]] = {}
        for asked in questions:
            groups.setdefault(key_of(asked), []).append(asked)
        assert report[table].keys() == groups.keys()
        assert len(groups) > 1
        for key, some in groups.items():
            assert report[table][key]["n"] == len(some)
            assert {name: report[table][key][name] for name in rates} == pytest.approx(counted(some))
    assert [int(length) for length in report["by_length"]] == sorted({asked["length"] for asked in questions})
    assert report["model"] == str(saved_model)
    config = report["config"]
    assert (config["tokens"], config["facts_per_kind"], config["kinds"]) == (5000, 2, ["pass-key", "uuid"])
    assert (config["seed"], config["memory"]["search"]["index"]) == (3, ["lexical"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["eval", "rulr"],
            "no suite or task 'rulr'; suites: niah, ppl, published, ruler, infinite, babi, dialogue, all, towers, ",
        ),
        (["eval", "all", "--baseline", "bm26"], "no baseline 'bm26'; there are everlong, "),
        (["eval", "all", "--lengths", "4X"], "length '4X': expected tokens such as"),
        (["eval", "all", "--set", "search.grups=2"], "search has no setting 'grups': is it 'groups'?"),
        (["eval", "niah", "--kinds", "pass"], "kinds is 'pass', expected one of pass-key, uuid"),
        (
            ["eval", "niah", "--tokens", "5000", "--lengths", "1K,2K"],
            "--tokens 5000 is not the longest of --lengths 1K,2K",
        ),
    ],
)
def test_eval_says_what_there_is_instead(arguments: list[str], told: str) -> None:
    wrong = everlong(*arguments)
    assert wrong.returncode == 1
    *before, last = wrong.stderr.splitlines()
    assert told in last
    assert before in ([], ["loading smollm2"])


@pytest.mark.slow
def test_a_model_that_cannot_be_spliced_is_served_by_text_alone(tmp_path: Path) -> None:
    tiny_text_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    text = tmp_path / "notes.txt"
    text.write_text("It rained all day. " * 60 + "The word of the day is Zq7#Kx9. " + "It rained all day. " * 60)
    memory = tmp_path / "m.everlong"
    read = ["read", text, "--memory", memory, "--model", tmp_path / "model"]
    refused = everlong(*read)
    assert refused.returncode == 1
    assert "--set answer.recall_mode=text" in refused.stderr
    assert not memory.exists()
    assert everlong(*read, "--set", "answer.recall_mode=text").returncode == 0
    # Whose memory it is, and what of, needs no saying again.
    asked = everlong("ask", "What is the word of the day?", "--memory", memory, "--max-new-tokens", 3, "--json")
    assert asked.returncode == 0, asked.stderr
    assert "Zq7#Kx9" in json.loads(asked.stdout)["recalled"][0]["text"]
    told = everlong("inspect", memory)
    assert "text alone" in told.stdout
    assert json.loads(everlong("inspect", memory, "--json").stdout)["geometry"]["layers"] == 0


@pytest.mark.slow
def test_a_setting_changes_what_is_recalled(saved_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("".join(f"Chapter {n}: it rained in town {n} all day. " + "And on. " * 40 for n in range(20)))
    memory = tmp_path / "m.everlong"
    assert everlong("read", text, "--memory", memory, "--model", saved_model).returncode == 0
    groups = []
    for settings in ([], ["--set", "search.groups=1"]):
        asked = everlong("ask", "Where did it rain?", "--memory", memory, "--max-new-tokens", 1, "--json", *settings)
        groups.append(len(json.loads(asked.stdout)["recalled"]))
    assert groups[0] > groups[1] == 1
    wrong = everlong("ask", "Where?", "--memory", memory, "--set", "search.group=1")
    assert wrong.returncode == 1
    assert "groups" in wrong.stderr


def test_a_file_that_is_no_text_leaves_no_memory(saved_model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"some words\0\xff")
    done = everlong("read", tmp_path / "notes.txt", "--memory", tmp_path / "m", "--model", saved_model)
    assert done.returncode == 1
    assert "not UTF-8" in done.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_chat_goes_on_after_a_line_that_is_no_text(saved_model: Path, tmp_path: Path) -> None:
    arguments = ["chat", "--memory", tmp_path / "m", "--model", saved_model, "--max-new-tokens", "2", "--json"]
    command = [sys.executable, "-c", "from everlong.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, input=b"caf\xe9\nhello\n/quit\n", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"half a surrogate pair" in done.stderr
    assert [json.loads(line)["question"] for line in done.stdout.splitlines()] == ["hello"]


def test_a_timeline_without_a_folder_is_told_before_the_talk(saved_model: Path, tmp_path: Path) -> None:
    timeline = tmp_path / "nowhere" / "t.json"
    done = everlong("chat", "--memory", tmp_path / "m", "--model", saved_model, "--timeline", timeline, typed="hello\n")
    assert done.returncode != 0
    assert "there is no folder" in done.stderr
    assert not (tmp_path / "m").exists()
