"""A .gitignore means what git says it means, and is read as any hostile file is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files import folder as folder_of_files
from everlong.files.document import UnreadableFileError
from everlong.files.folder import Choice, listed
from everlong.files.ignoring import MOST_PATTERNS, Patterns
from support.examples import examples


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def told_by_git(repository: Path, lines: list[str], paths: list[str]) -> dict[str, bool]:
    """Which of the paths git leaves out: all are files that are not there."""
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    command = ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
    done = subprocess.run(
        command, cwd=repository, input="\0".join(paths) + "\0", capture_output=True, text=True, check=False
    )
    fields = done.stdout.split("\0")
    rows = [fields[at : at + 4] for at in range(0, len(fields) - 1, 4)]
    return {path: bool(pattern) and not pattern.startswith("!") for _, _, pattern, path in rows}


def left_out(patterns: Patterns, path: str) -> bool:
    """As a walk through folders sees it."""
    parts = path.split("/")
    above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return any(patterns.names(one, folder=True) for one in above) or bool(patterns.names(path, folder=False))


# Not asked: a bracket with a / in it, and ** behind letters, of which git itself says one thing here and another there.
PARTS = ("a", "b", "*", "a*", "*b", "a*b", "*a*b*", "?", "a?", "[ab]", "[!a]", "[^b-c]", "[a-c]b", "[]a]", "[a-]", "**")
OTHERS = (
    "[[:upper:]]",
    "[[:digit:]a]*",
    "\\a",
    "\\*",
    "a.b",
    "*.b",
    "a b",
    "a\\ ",
    "[c-a]",
    "[\\]b]",
    "#a",
    "a!",
    "b  ",
)
LINES = st.tuples(
    st.sampled_from(("", "!", "/", "!/", "\\!", "\\#")),
    st.lists(st.sampled_from(PARTS + OTHERS), min_size=1, max_size=3).map("/".join),
    st.sampled_from(("", "/", " ", "\\ ", "[a", "\\")),
).map("".join)
NAMES = ("a", "b", "ab", "abb", "a.b", "[a]", "a b", "A", "1a", "*", "!a", "#a", "a ", "c]", "-")


@examples(60)
@given(st.lists(LINES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_what_git_leaves_out_is_left_out(repository: Path, lines: list[str], random: object) -> None:
    draw = random.choice  # type: ignore[attr-defined]
    paths = sorted({"/".join(draw(NAMES) for _ in range(draw((1, 1, 2, 3)))) for _ in range(40)})
    patterns = Patterns(lines)
    assert {path: left_out(patterns, path) for path in paths} == told_by_git(repository, lines, paths), lines


def test_of_what_a_user_includes_the_last_pattern_decides(tmp_path: Path) -> None:
    """Whether it names a file or a folder above it."""
    named = {"a.md": True, "a.py": False, "docs/a.py": True, "docs/drafts/a.md": False, "docs/drafts/keep.md": True}
    (tmp_path / "docs" / "drafts").mkdir(parents=True)
    for path in named:
        (tmp_path / path).write_text("words")
    choice = Choice(include=["*.md", "docs", "!docs/drafts/", "docs/drafts/keep.md"])
    assert [file.path for file in listed(tmp_path, choice).files] == [path for path, meant in named.items() if meant]


@pytest.mark.parametrize(
    "pattern",
    [
        *("a*" * 60 + "b", "*a" * 1500 + "b", "*?" * 120 + "[!a]", "[[:alpha:]]*" * 80 + "1", "(a+)+$", "(?:a|a)*b*"),
        *(
            "**/a/" * 600 + "b",
            "**/*a*/" * 300 + "**",
            "a/**/" * 500 + "*b",
            "[" * 3000,
            "[a-z" * 900,
            "\\" * 3001 + "*",
        ),
    ],
)
def test_no_pattern_is_matched_for_long(pattern: str) -> None:
    """One that is tried again at each place would take years; the test's time limit ends that."""
    for lines in ([pattern], [pattern] * 50):
        patterns = Patterns(lines)
        for path in ("a" * 255, "/".join("a" * 2000), "/".join(["a" * 255] * 16)):
            patterns.names(path, folder=False)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def outside(path: Path) -> None:
    target = next(one.parent for one in path.parents if one.name == "folder") / "outside"
    target.write_text("a.txt\n")
    path.symlink_to(target)


def missing(path: Path) -> None:
    path.symlink_to(path.parents[1] / "nowhere")


def large(path: Path) -> None:
    path.write_text("a.txt\n" * 100_000)


def holes(path: Path) -> None:
    with path.open("wb") as made:
        made.truncate(1 << 40)


@pytest.mark.parametrize("make", [fifo, endless, outside, missing, Path.mkdir, large, holes])
@pytest.mark.parametrize("below", ["", "sub"])
def test_what_is_no_gitignore_is_told_and_leaves_nothing_out(
    make: Callable[[Path], None], below: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/a.txt"):
        (folder / name).write_text("words")
    make(folder / below / ".gitignore")
    found = listed(folder, Choice())
    assert [file.path for file in found.files] == ["a.txt", "sub/a.txt"]
    assert list(found.unreadable) == [os.path.join(below, ".gitignore")]
    assert listed(folder, Choice(gitignore=False)).unreadable == {}


def test_junk_in_a_gitignore_hides_no_other_line(tmp_path: Path) -> None:
    names = [b"a.txt", b"b.txt", b"c\xff.txt", b"d\xfe.txt", b"e\xc3\xa9.txt", b"keep.txt"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_text("words")
    junk = [
        b"a.txt\r",
        b"\0\x80[\n\\",
        b"x" * 5000 + b"*",
        b"[z",
        b"c\xff.*",
        b"d?.txt",
        b"e?.txt",
        b"\xff" * 99,
    ]
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfb.txt\n" + b"\n".join(junk))
    found = listed(tmp_path, Choice())
    kept = [b"e\xc3\xa9.txt", b"keep.txt"]  # for git, a ? takes one byte
    assert [os.fsencode(file.path) for file in found.files] == kept
    assert "4 lines that are not obeyed" in found.unreadable[".gitignore"]


def test_thousands_of_lines_are_obeyed_where_they_are_names(tmp_path: Path) -> None:
    for name in ("n7.txt", "n29999.txt", "other.txt", "sub/n8.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    (tmp_path / ".gitignore").write_text("".join(f"n{number}.txt\n" for number in range(15_000)) + "n29999.txt\n")
    found = listed(tmp_path, Choice())
    assert ([file.path for file in found.files], found.unreadable) == (["other.txt"], {})
    (tmp_path / ".gitignore").write_text("".join(f"m*{number}\n" for number in range(MOST_PATTERNS + 5)) + "n*.txt\n")
    found = listed(tmp_path, Choice())
    assert "has 6 lines that are not obeyed" in found.unreadable[".gitignore"]
    assert len(found.files) == 4


def test_patterns_of_folders_within_folders_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_of_files, "MOST_PATTERNS", 25)
    monkeypatch.setattr(folder_of_files, "_ALL_IGNORES", 530)
    below = tmp_path
    for depth in range(10):
        (below / ".gitignore").write_text("".join(f"x*{depth}{number}\n" for number in range(10)) + f"gone{depth}\n")
        (below / f"gone{depth}").write_text("words")
        (below / "kept").write_text("words")
        below = below / "d"
        below.mkdir()
    found = listed(tmp_path, Choice())
    told = [found.unreadable.get("d/" * depth + ".gitignore", "") for depth in range(10)]
    assert told[:2] == ["", ""]
    assert "5 lines" in told[2]
    assert all("10 lines" in one for one in told[3:8])
    assert "is not obeyed" in told[-1]
    assert [file.path for file in found.files if "gone" in file.path] == ["d/" * 9 + "gone9"]


@pytest.mark.slow
def test_however_deep_a_folder_is_its_files_are_found(tmp_path: Path) -> None:
    folders = [f"{tmp_path}/" + "d/" * depth for depth in range(1, 1201)]
    for folder in folders:
        os.mkdir(folder)
    deepest = Path(folders[-1]) / "deep.txt"
    deepest.write_text("words")
    try:
        found = listed(tmp_path, Choice())
        assert ([file.path for file in found.files], found.unreadable) == (["d/" * 1200 + "deep.txt"], {})
    finally:  # what removes folders calls itself within itself
        deepest.unlink()
        for folder in reversed(folders):
            os.rmdir(folder)


@pytest.mark.parametrize("pattern", ["[a", "a\\", "x" * 5000 + "*"])
def test_a_pattern_of_the_user_that_cannot_be_read_is_an_error(pattern: str, tmp_path: Path) -> None:
    for choice in (Choice(include=[pattern]), Choice(exclude=["*.md", pattern])):
        with pytest.raises(UnreadableFileError, match="cannot be read"):
            listed(tmp_path, choice)
