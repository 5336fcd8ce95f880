"""What a command imports before it says its first word, and what it never imports."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import pytest

import everlong
from everlong import _native
from everlong.cli import version
from everlong.cli.app import startup_status
from support import TINY_MEMORY, byte_tokenizer, tiny_model

HEAVY = {"torch", "transformers", "numpy"}

# Ends with the heavy modules that were imported, as the last line of standard error.
IMPORTED = f"""
import sys
sys.argv[0] = "everlong"
from everlong.cli import main
try:
    main()
finally:
    print(*sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)
"""


def started(*arguments: object, code: int = 0, **environment: str) -> tuple[str, list[str]]:
    """Run a command in a new Python. Return standard output, and which heavy modules it imported."""
    command = [sys.executable, "-c", IMPORTED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.splitlines()[-1].split()


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("light") / "m"
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, TINY_MEMORY) as mm:
        mm.read("It rained all day. " * 40, source="rain")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [[], ["read"], ["ask"], ["chat"], ["inspect"], ["train"], ["doctor"], ["demo"], ["eval"], ["eval", "niah"]],
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    out, heavy = started(*command, "--help")
    assert "Usage: everlong" in out
    assert heavy == []


@pytest.mark.slow
def test_versions_are_those_that_are_installed() -> None:
    out, heavy = started("--version")
    assert heavy == []
    said = dict(line.split(" ", 1) for line in out.splitlines())
    assert list(said) == ["everlong", "torch", "transformers", "device", "compiler"]
    for package in ("everlong", "torch", "transformers"):
        assert said[package] == importlib.metadata.version(package)
    assert said["compiler"] == _native.build_in(_native.PACKAGE).get("compiler", "unknown")
    assert said["device"] == version.device()


def test_the_device_is_the_gpu_that_the_driver_lists(tmp_path: pathlib.Path) -> None:
    assert version.device(tmp_path) == version.device(tmp_path / "nothing")
    for number, name in enumerate(["NVIDIA H100", "NVIDIA H200"]):
        card = tmp_path / str(number) / "information"
        card.parent.mkdir()
        card.write_text(f"Model: \t\t {name}\nIRQ:   1\n")
    assert version.device(tmp_path) == "NVIDIA H100, NVIDIA H200"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json", "--blocks"], ["graph"], ["graph", "--json"]])
def test_looking_into_a_memory_imports_no_torch(command: list[str], memory: pathlib.Path) -> None:
    name, *options = command
    out, heavy = started(name, memory, *options)
    assert out
    assert heavy == ["numpy"]
    if "--json" in options:
        assert isinstance(json.loads(out), dict)


@pytest.mark.slow
def test_plotting_imports_no_torch(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    curves = {policy: [2.0, 1.5] for policy in ("window", "random", "recent", "prompt", "full")}
    report = {"by_position": curves, "model": "m", "places": [{}], "config": {"prefix_tokens": 9}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert started("plot", tmp_path / "report.json")[1] == ["numpy"]
    assert (tmp_path / "perplexity.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_without_torch(shell: str) -> None:
    words = {"COMP_WORDS": "everlong ins", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "everlong ins"}
    out, heavy = started(**words, _TYPER_COMPLETE_FISH_ACTION="get-args", _EVERLONG_COMPLETE=f"complete_{shell}")
    assert "inspect" in out
    assert "graph" not in out
    assert heavy == []


@pytest.mark.slow
def test_completion_can_be_installed(tmp_path: pathlib.Path) -> None:
    named = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is named here
    _, heavy = started("--install-completion", "bash", **named)
    assert heavy == []
    assert "_EVERLONG_COMPLETE" in (tmp_path / ".bash_completions" / "everlong.sh").read_text()


# Stops where the first line is said, with what was imported by then as the exit code's sign.
FIRST_LINE = """
import sys
from everlong.cli import main
from everlong.text import terminal
class Stream:
    def write(self, text):
        if "loading" in text:
            sys.stdout.write(" ".join(sorted({"torch", "transformers"} & sys.modules.keys())) or "none")
            sys.stdout.flush()
            import os; os._exit(0)
    def flush(self): pass
    def isatty(self): return False
    encoding = "utf-8"
sys.stderr = Stream()
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["ask", "Rain?", "--memory", "MEMORY"],
        ["ask", "Rain?", "--memory", "MEMORY", "--set", "search.groups=2"],
        ["read", "FILE", "--memory", "MEMORY"],
        ["read", "FILE", "--memory", "NEW"],
        ["chat", "--memory", "NEW"],
        ["rebuild", "MEMORY", "--memory", "NEW"],
        ["doctor"],
        ["bench"],
        ["demo"],
        ["eval", "niah"],
        ["eval", "passkey"],
        ["eval", "towers"],
        ["train", "towers"],
        ["train", "all"],
        ["tune"],
    ],
)
def test_the_first_line_comes_before_torch(command: list[str], memory: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f.txt").write_text("a text")
    places = {"MEMORY": str(memory), "NEW": str(tmp_path / "new"), "FILE": str(tmp_path / "f.txt")}
    typed = [places.get(word, word) for word in command]
    done = subprocess.run([sys.executable, "-c", FIRST_LINE, *typed], capture_output=True, text=True, check=False)
    assert done.stdout == "none", done.stderr


def test_json_has_no_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert startup_status("smollm2", quiet=True) == "smollm2"
    assert capsys.readouterr().err == ""
    startup_status("smol\x1blm2", quiet=False)
    assert capsys.readouterr().err == "loading smol\\x1blm2\n"
