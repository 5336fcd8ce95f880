"""README.md is short, its commands run from a fresh clone, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everlong.cli.app

ROOT = next(folder for folder in Path(__file__).parents if (folder / "mkdocs.yml").is_file())
PAGES = ("README.md", "CONTRIBUTING.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: list[tuple[str, str]] = _FENCE.findall(README)
# In the text and in tables: `make demo`, `everlong eval all --lengths 128K`, `gpu/check results`.
INLINE = [code for code in re.findall(r"`([^`\n]+)`", _FENCE.sub("", README)) if " " in code]

# Make targets build for minutes, so they are only dry-run. All else is run as it stands.
AS_A_READER = 'set -eux\nmake() { command make --dry-run "$@" > /dev/null; }\n'


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, and in the place of the environment that `make setup` makes the one of this test."""
    folder = tmp_path_factory.mktemp("readme") / "everlong"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    activate = folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"\n')
    return folder


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run in bash, without the environment of this test before it is activated."""
    environment = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", AS_A_READER + script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def everlong_commands() -> list[str]:
    lines = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    return [line for line in (*lines, *INLINE) if line.startswith("everlong ")]


def anchors(page: str) -> set[str]:
    """Of the headings of a page, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ +(.+)$", _FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_it_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_every_block_is_of_a_language_that_is_run() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    assert len(re.findall(r"^ *```", README, re.MULTILINE)) == 2 * len(BLOCKS)


@pytest.mark.slow
def test_its_blocks_run_one_after_the_other_from_a_fresh_clone(clone: Path) -> None:
    """In one shell, as a reader would, over the embedded model; the text that they ask of is theirs, too."""
    script = [f"python - <<'END'\n{code}END\n" if language == "python" else code for language, code in BLOCKS]
    done = run("".join(script), clone)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("48213") >= 4  # ask and Python: each the answer and the passage
    left = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert left.stdout.split() == ["notes.txt"]


def test_its_targets_are_there(clone: Path) -> None:
    targets = [code for code in INLINE if code.startswith("make ")]
    assert {"make setup", "make demo", "make test", "make docs"} <= set(targets)
    done = run("\n".join(targets), clone)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", everlong_commands())
def test_every_everlong_command_is_there_with_its_options(line: str) -> None:
    """Asked for its help behind them: what there is not is refused before that."""
    done = CliRunner().invoke(everlong.cli.app.app, [*shlex.split(line, comments=True)[1:], "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("line", [code for code in INLINE if code.startswith(("python ", "gpu/"))])
def test_every_script_takes_what_it_is_given(line: str, clone: Path) -> None:
    script, *arguments = shlex.split(line.removeprefix("python "))
    assert (clone / script).is_file()
    done = subprocess.run([sys.executable, script, "--help"], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {one for one in arguments if one.startswith("-")} <= set(re.findall(r"--[\w-]+", done.stdout))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str, clone: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    targets = {link or source for link, source in links}
    assert targets
    for target in sorted(targets):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        assert (clone / path).exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors((ROOT / (path or page)).read_text(encoding="utf-8")), f"{page}: {target}"
