"""No command that prints lets what a file, a model or a memory holds drive the terminal."""

from __future__ import annotations

import ast
import json
import pathlib

import pytest

import everlong
from everlong.cli.app import main
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.hostile_text import ESCAPES, require_harmless, run
from support.processes import run_script


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a model that says control characters, a hostile file, and a memory `m` of it, in part unread."""
    folder = tmp_path_factory.mktemp("hostile")
    model, tokenizer = tiny_model(), byte_tokenizer()
    said = tokenizer(ESCAPES)["input_ids"]
    model.generation_config.suppress_tokens = [token for token in range(257) if token not in said]
    for part in (model, tokenizer):
        part.save_pretrained(folder / f"model{ESCAPES[:5]}")
    file = folder / f"note{ESCAPES}.txt"
    file.write_text((f"It rained {ESCAPES} all day. " * 60), encoding="utf-8")
    network, _ = everlong.models.load(str(folder / f"model{ESCAPES[:5]}"), dtype="float32")
    config = TINY_MEMORY.changed(archive={"graph": True, "tagger": "keyphrases"})

    def stop(done: int, total: int | None) -> None:
        if done >= 512:
            raise KeyboardInterrupt

    with everlong.MemoryModel(network, tokenizer, folder / "m", config) as mm:
        mm.read(file, tags=ESCAPES)
        with pytest.raises(KeyboardInterrupt):
            mm.read(f"Another. {ESCAPES}" * 90, source=f"cut{ESCAPES}", tags=ESCAPES, progress=stop)
    return folder


def model_of(folder: pathlib.Path) -> pathlib.Path:
    return next(folder.glob("model*"))


@pytest.mark.parametrize("options", [[], ["--blocks"], ["--json"], ["--blocks", "--json"]])
def test_inspect(options: list[str], hostile: pathlib.Path) -> None:
    printed = run("inspect", hostile / "m", *options)
    assert "owned" in printed
    assert "unfinished" in printed


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_graph(options: list[str], hostile: pathlib.Path) -> None:
    assert "owned" in run("graph", hostile / "m", *options)
    run("graph", hostile / "m", "--graphml", hostile / f"graph{ESCAPES}.xml")


@pytest.mark.parametrize("options", [[], ["--json"], ["--no-recall"]])
def test_ask(options: list[str], hostile: pathlib.Path) -> None:
    memory = ["--memory", hostile / "m", "--max-new-tokens", "12", "--dtype", "float32", "--no-remember"]
    printed = run("ask", f"Rain? {ESCAPES}", *memory, *options)
    assert "owned" in printed or "--no-recall" in options


def test_ask_many_and_chat(hostile: pathlib.Path) -> None:
    memory = ["--memory", hostile / "m", "--max-new-tokens", "12", "--dtype", "float32"]
    file = hostile / "questions.jsonl"
    file.write_text(json.dumps({"question": f"Rain? {ESCAPES}"}) + "\n")
    run("ask", "--questions", file, *memory)
    typed = f"Rain? {ESCAPES}\n/sources\n/forget {ESCAPES}\n"
    assert "owned" in run("chat", *memory, typed=typed)
    run("chat", "--json", *memory, typed=typed)


def test_read_and_rebuild(hostile: pathlib.Path) -> None:
    file = next(hostile.glob("note*"))
    where = ["--model", model_of(hostile), "--dtype", "float32"]
    assert "owned" in run("read", file, "--memory", hostile / f"new{ESCAPES}", "--tag", ESCAPES, *where)
    assert "owned" in run("rebuild", hostile / f"new{ESCAPES}", "--memory", hostile / f"again{ESCAPES}", *where)


@pytest.mark.parametrize(
    "wrong",
    [
        ["read", f"there is no{ESCAPES}.txt", "--memory", "m"],
        ["read", "FOLDER", "--memory", "m"],
        ["inspect", f"--no{ESCAPES}"],
        [f"no{ESCAPES}"],
        ["rebuild", f"no{ESCAPES}", "--memory", "m"],
        ["ask", "--questions", f"no{ESCAPES}.jsonl", "--memory", "m"],
    ],
)
def test_a_wrong_command_line(wrong: list[str], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / f"folder{ESCAPES}"
    folder.mkdir()
    assert "owned" in run(*[folder if word == "FOLDER" else word for word in wrong], code=2)


@pytest.mark.parametrize(
    "wrong",
    [
        ["inspect", f"no{ESCAPES}"],
        ["ask", "Rain?", "--memory", f"no{ESCAPES}"],
        ["eval", f"no{ESCAPES}"],
        ["plot", f"no{ESCAPES}"],
        ["ask", "Rain?", "--memory", "MEMORY", "--after", ESCAPES],
        ["ask", "Rain?", "--memory", "MEMORY", "--set", f"search.groups={ESCAPES}"],
    ],
)
def test_what_is_refused(
    wrong: list[str], hostile: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["everlong", *(str(hostile / "m") if word == "MEMORY" else word for word in wrong)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    require_harmless(printed.out + printed.err)
    assert "owned" in printed.err


def test_warnings_logs_and_tracebacks() -> None:
    script = f"""
import logging, sys, warnings
from everlong.cli import app as cli_app
sys.warnoptions = ["default"]
def fail():
    warnings.warn({ESCAPES!r})
    logging.getLogger("everlong").warning({ESCAPES!r})
    raise RuntimeError({ESCAPES!r})
cli_app.app = fail
try:
    cli_app.main()
except RuntimeError:
    sys.excepthook(*sys.exc_info())
"""
    done = run_script(script)
    assert done.stderr.count("owned") >= 3
    require_harmless(done.stderr)


def test_everything_prints_through_one_module() -> None:
    """No other file of the package prints or opens a console; JSON is printed in ASCII."""
    package = pathlib.Path(str(everlong.__file__)).parent
    found = []
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            named = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if named in ("print", "Console", "typer.echo", "typer.secho", "rich.print", "sys.stdout.write"):
                found.append((str(file.relative_to(package)), ast.unparse(node)[:22]))
    assert sorted(found) == [
        ("cli/app.py", "print(json.dumps(_fini"),
        ("cli/app.py", "print(json.dumps(_fini"),
        ("text/terminal.py", "Console(stderr=stderr,"),
        ("text/terminal.py", "print(escape_controls("),
    ]
