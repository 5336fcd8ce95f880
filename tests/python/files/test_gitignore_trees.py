"""Of a tree of files with a .gitignore here and there, what git leaves out is left out, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.folder import Choice, listed
from support.examples import examples

PARTS = (
    *("a", "b", "A", "é", "a b", "a.b", "*", "?", "a*", "*b", "a*b", "*.b", "**", "***", "a**", "**b", "a**b"),
    *(
        "[ab]",
        "[!a]",
        "[^b-c]",
        "[a-c]b",
        "[]a]",
        "[a/b]",
        "[!/]",
        "[é-ë]",
        "[[:alpha:]]",
        "[[:space:]]b",
        "[[:none:]]",
    ),
    *("[a-", "\\", "a\\", "\\a", "\\é", "a\\ ", "#a", "a!", "b  ", "a\t"),
)
NAMES = ("a", "b", "ab", "abb", "aab", "a.b", "[a]", "a b", "A", "!a", "#a", "é", "éb", "c", "\u00a0b", "a\n", "\\")
LINES = st.one_of(
    st.tuples(
        st.sampled_from(("", "", "!", "/", "!/", "\\!", "\\#")),
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join),
        st.sampled_from(("", "", "/", " ", "\\ ", "\r", "\\/")),
    ).map("".join),
    st.sampled_from(("", "!", "/", "//", "\\", "!/", "/**", "**/", "!**/", "*/", "!*/", "#", " ", "\0*")),
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def kept_by_git(repository: Path) -> set[str]:
    command = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=repository, capture_output=True, check=True)
    found = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return {name for name in found if os.path.basename(name) != ".gitignore"}


def make(repository: Path, paths: list[str], ignores: list[tuple[Any, list[str]]]) -> None:
    for entry in repository.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for path in paths:
        try:
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).touch()
        except OSError:  # a file stands where this would have a folder
            continue
    folders = sorted(repository.glob("[!.]*/**/"))
    for draw, lines in ignores:
        below = [repository, *folders][draw % (len(folders) + 1)]
        (below / ".gitignore").write_bytes(os.fsencode("\n".join(lines)))


@pytest.mark.slow
@examples(100)
@given(
    st.lists(PATHS, min_size=5, max_size=25),
    st.lists(st.tuples(st.integers(0, 99), st.lists(LINES, min_size=1, max_size=5)), min_size=1, max_size=4),
)
def test_what_git_keeps_of_a_tree_is_read(
    repository: Path, paths: list[str], ignores: list[tuple[int, list[str]]]
) -> None:
    make(repository, paths, ignores)
    assert {file.path for file in listed(repository, Choice()).files} == kept_by_git(repository)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["?"], ["ab", "é"]),  # a letter of two bytes
        (["[!/]b"], ["a", "é", "d/a", "d/é", "d/ab"]),  # a slash in brackets parts nothing, but binds to the folder
        (["d**/a"], ["a", "ab", "é", "d/ab", "d/é"]),
        (["*", "!d", "!é"], ["é", "d/é"]),
        (["[", "é"], ["a", "ab", "d/a", "d/ab"]),  # a line that is broken costs that line
    ],
)
def test_what_is_easily_mistaken(repository: Path, lines: list[str], kept: list[str]) -> None:
    make(repository, ["a", "ab", "é", "d/a", "d/ab", "d/é"], [(0, lines)])
    assert kept_by_git(repository) == set(kept)
    assert [file.path for file in listed(repository, Choice()).files] == sorted(kept)
