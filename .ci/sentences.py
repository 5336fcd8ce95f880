#!/usr/bin/env python3
"""Report how long the sentences are that people read: README, docs, docstrings, comments of public headers.

    .ci/sentences.py                       the mean of every shelf and room
    .ci/sentences.py --longest 20 docs     and the longest sentences below these paths

A sentence ends with a full stop, a question mark, an exclamation mark or a colon at the end of its paragraph. Code,
tables, headings and the lists of arguments in headers are no sentences. The report fails nothing.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = ("README.md", "CONTRIBUTING.md", "docs", "python/everlong", "cpp", "benchmarks", "gpu")

_FENCE = re.compile(r"^\s*(```|~~~).*?^\s*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"^\s*([#|>]|<[^>]*>\s*$|!\[|:::|-{3,}|={3,}|\[[^\]]+\]: )")
_ITEM = re.compile(r"^\s*([*+-]|\d+\.)\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_SHORT = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|et al|Sec|Fig|no|approx)\.", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`A-Z0-9<])")
_WORD = re.compile(r"[^\s]*[A-Za-z0-9][^\s]*")


@dataclasses.dataclass(frozen=True)
class Sentence:
    path: Path
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(_WORD.findall(self.text))

    @property
    def room(self) -> str:
        """The folder whose mean it counts for: docs/guides, python/everlong/frame."""
        folder = self.path.parts[:-1]
        return "/".join(folder[: 3 if folder[:1] in (("python",), ("cpp",)) else 2]) or self.path.name


def sentences_of(path: Path) -> Iterator[Sentence]:
    if path.suffix not in {".md", ".py", ".pyi", ".h"}:
        return
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _of_prose(path, _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text), 1)
    elif path.suffix in {".py", ".pyi"}:
        for line, docstring in _docstrings(text):
            yield from _of_prose(path, docstring, line)
    else:
        for line, comment in _comments(text):
            yield from _of_prose(path, comment, line)


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Whole lines of comments that follow each other are one."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if line.lstrip().startswith("//"):
            block.append(line.lstrip().lstrip("/").removeprefix("!").removeprefix(" "))
        elif block:
            yield number - len(block), "\n".join(block)
            block = []


def _of_prose(path: Path, text: str, first: int) -> Iterator[Sentence]:
    paragraph: list[str] = []
    begin = first
    for number, line in enumerate([*text.splitlines(), ""], first):
        indented = line.startswith("    ") and not paragraph and not _ITEM.match(line)
        ends = not line.strip() or bool(_NO_PROSE.match(line)) or indented
        if (ends or _ITEM.match(line)) and paragraph:
            yield from (Sentence(path, begin, text) for text in split(" ".join(paragraph)))
            paragraph = []
        if ends:
            continue
        if not paragraph:
            begin = number
        paragraph.append(_ITEM.sub("", line).strip())


def split(paragraph: str) -> list[str]:
    """Its sentences; code and the target of a link count as one word."""
    plain = _SHORT.sub(lambda found: found[1], _CODE.sub("Code", _LINK.sub(r"\1", paragraph)))
    return [part for part in _END.split(plain) if _WORD.search(part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=0, help="list so many of the longest sentences")
    parser.add_argument("paths", nargs="*", default=READ, help="folders or files")
    options = parser.parse_args()
    listed = subprocess.run(["git", "ls-files", *options.paths], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms: dict[str, list[Sentence]] = defaultdict(list)
    for name in listed.stdout.splitlines():
        for sentence in sentences_of(Path(name)):
            rooms[sentence.room].append(sentence)
    every = [sentence for sentences in rooms.values() for sentence in sentences]
    print(f"{'words a sentence':>16}  {'sentences':>9}  room")
    for room, sentences in [*sorted(rooms.items()), ("all", every)]:
        mean = sum(sentence.words for sentence in sentences) / max(len(sentences), 1)
        print(f"{mean:16.1f}  {len(sentences):9d}  {room}")
    for sentence in sorted(every, key=lambda one: -one.words)[: options.longest]:
        print(f"\n{sentence.path}:{sentence.line}: {sentence.words} words\n    {sentence.text}")


if __name__ == "__main__":
    main()
