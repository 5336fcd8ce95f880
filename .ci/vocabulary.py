#!/usr/bin/env python3
"""Check the words that everlong is written in: names in the code, and what people read.

    .ci/vocabulary.py                      how often each room has words of OLD and phrases of RIDDLES
    .ci/vocabulary.py --list docs          and the sentences that have them, below these paths

A name with a word of OLD fails: of a module, a class, a function or a parameter. Sentences are counted.
Code, tables, headings and the lists of arguments in headers are no sentences.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = ("README.md", "CONTRIBUTING.md", "docs", "python/everlong", "lab", "cpp", "benchmarks", "gpu")
NAMED = ("python/everlong", "lab/everlong_lab")

# Words that stood for several things each.
OLD = (
    *(
        "told",
        "asked",
        "said",
        "given",
        "shown",
        "seats",
        "seat",
        "shelf",
        "looking",
        "listening",
        "together",
        "acting",
    ),
    *("guarded", "at_work", "mourner", "keeper", "voice"),
)
# Sentences that a reader has to take apart.
RIDDLES = (r"\bwhat\b[^.,;:]*\bis none\b", r"^who\b[^?]*$", r"^whoever\b", r"\bnobody's\b", r"^of [^,]* (there )?is\b")

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
    def room(self) -> str:
        """The folder it counts for: docs/guides, python/everlong/frame."""
        folder = self.path.parts[:-1]
        return "/".join(folder[: 3 if folder[:1] in (("python",), ("lab",), ("cpp",)) else 2]) or self.path.name


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


def old_words(name: str) -> list[str]:
    """The words of OLD in a name: `at_work` in `parts_at_work`, `told` in `ToldBlocks`."""
    plain = f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}_"
    return [word for word in OLD if f"_{word}_" in plain]


def names_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the module, its classes, functions and parameters."""
    yield "module", path.stem
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.name
        elif isinstance(node, ast.arg):
            yield "parameter", node.arg


def files(*paths: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the sentences")
    parser.add_argument("paths", nargs="*", default=READ, help="folders or files")
    options = parser.parse_args()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in files(*NAMED):
        for kind, name in names_in(path) if path.suffix == ".py" else ():
            if old_words(name):
                found["names"][kind] += 1
                print(f"{path}: the {kind} {name}")
    riddles = [re.compile(pattern, re.IGNORECASE) for pattern in RIDDLES]
    for path in files(*options.paths):
        for sentence in sentences_of(path):
            words = [word for word in OLD if re.search(rf"\b{word}\b", sentence.text, re.IGNORECASE)]
            hits = len(words) + sum(pattern.search(sentence.text) is not None for pattern in riddles)
            found[sentence.room]["sentences"] += hits > 0
            if options.list and hits:
                print(f"{sentence.path}:{sentence.line}: {sentence.text}")
    for room, counts in sorted(found.items()):
        if some := {kind: count for kind, count in counts.items() if count}:
            print(f"{room}: {', '.join(f'{count} {kind}' for kind, count in some.items())}")
    return 1 if found["names"] else 0


if __name__ == "__main__":
    sys.exit(main())
