"""What files say beside what is read of them: a ledger of words for each kind of file.

    python benchmarks/files.py FOLDER [--at-most 100] [--list docx] [--cache FOLDER] [--out FOLDER] [--json]
    python benchmarks/files.py --speed [--beside FOLDER] [--json]

`file_words.py` counts the words of each file by code that shares nothing with the readers. A word is lost in silence
where neither the text has it nor `passed_over` names the part that it stands in. A word that is read twice makes up for
no other. `--list` prints the worst files of a kind with their first lost words; `--out` writes such a list for each
kind. `--cache` keeps the counts for the next run over the same files.

`--speed` reads 10,000 small files, a CSV of 60 MB and a mailbox of 30,000 mails. With `--beside`, another checkout of
everlong is measured in turns with this one.

FOLDER holds files of any origin. pypdfium2, pdfminer.six and html5lib must be installed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import file_words
from file_words import KINDS, Comparison, Part

from everlong.files.document import UnreadableFileError
from everlong.files.parsing import parse

_COUNTING_SECONDS = 60.0  # that one count may take
_COUNTING_RAM = 4 << 30
# What is counted by other code is counted anew.
_CODE = Path(file_words.__file__).read_bytes().partition(b"# ---- comparing")[0]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of the ledger."""

    path: str
    kind: str
    seconds: float  # of reading it
    found: Comparison | None = None  # None where it was not read, or could not be counted
    refused: str = ""  # why it was not read
    uncounted: str = ""  # why its words could not be counted

    @property
    def silent(self) -> int:
        return 0 if self.found is None else sum(self.found.silent.values())


@dataclasses.dataclass(frozen=True)
class Line:
    """All files of a kind."""

    kind: str
    files: int
    there: int
    read: int
    named: int
    deleted: int
    more: int
    silent: int
    refused: int
    uncounted: int
    seconds: float

    @property
    def share(self) -> float:
        return self.silent / self.there if self.there else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--at-most", type=int, help="files of a kind, drawn by their names")
    parser.add_argument("--only", choices=KINDS, nargs="*", help="kinds to look at")
    parser.add_argument("--list", dest="listed", choices=KINDS, help="print the worst files of this kind")
    parser.add_argument("--cache", type=Path, help="folder for what was counted")
    parser.add_argument("--out", type=Path, help="folder for a list of the worst files of each kind")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--beside", type=Path, help="a checkout of everlong to compare the speed with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.speed:
        speed(options.beside, options.rounds, as_json=options.json)
        return
    if options.folder is None:
        parser.error("a FOLDER is needed")
    chosen = chosen_files(options.folder, options.at_most, options.only or KINDS)
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        entries = list(pool.map(lambda one: entry_of(options.folder, one[0], one[1], options.cache), chosen))
    lines = [line_of(kind, [entry for entry in entries if entry.kind == kind]) for kind in KINDS]
    lines = [line for line in lines if line.files]
    if options.json:
        print(json.dumps([{**dataclasses.asdict(line), "share": line.share} for line in lines]))
    else:
        print(table(lines))
        print("\n" + "\n".join(f"{count} {kind}: {why}" for (kind, why), count in reasons(entries).most_common()))
    if options.listed:
        print("\n" + worst(entry for entry in entries if entry.kind == options.listed))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for line in lines:
            of_kind = [entry for entry in entries if entry.kind == line.kind]
            (options.out / f"{line.kind}.md").write_text(f"{table([line])}\n\n{worst(of_kind)}\n")


# ---- the ledger


def chosen_files(folder: Path, at_most: int | None, kinds: Sequence[str]) -> list[tuple[Path, str]]:
    """Return files with their kinds, at most so many of a kind: which ones depends on their paths alone."""
    by_kind: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                kind = file_words.kind_of(path.name, file.read(1 << 13))
            if kind in kinds:
                by_kind[kind].append((hashlib.sha256(str(path.relative_to(folder)).encode()).hexdigest(), path))
    return [(path, kind) for kind, found in by_kind.items() for _, path in sorted(found)[:at_most]]


def entry_of(folder: Path, path: Path, kind: str, cache: Path | None) -> Entry:
    """Read a file and count it."""
    name = str(path.relative_to(folder))
    parts = counted(path, cache)
    begin = time.perf_counter()
    try:
        parsed = parse(path)
    except UnreadableFileError as error:
        seconds = time.perf_counter() - begin
        return Entry(name, kind, seconds, refused=str(error), uncounted=parts if isinstance(parts, str) else "")
    seconds = time.perf_counter() - begin
    if isinstance(parts, str):
        return Entry(name, kind, seconds, uncounted=parts)
    text = "\n".join(document.text for document in parsed.documents)
    if kind in ("csv", "xlsx"):
        text = file_words.without_labels(text, parts)
    cited = [word for document in parsed.documents for word in (document.name, document.title, document.author)]
    cited += [section.place for document in parsed.documents for section in document.sections]
    return Entry(name, kind, seconds, Comparison.of(parts, text, parsed.passed_over, "\n".join(cited)))


def counted(path: Path, cache: Path | None) -> list[Part] | str:
    """Return the parts of a file, or why they cannot be counted: the libraries that count may crash, or never end."""
    data = path.read_bytes()
    # A kind's name stands in a file's ending, and how a table is separated.
    kept = None if cache is None else cache / hashlib.sha256(_CODE + path.suffix.encode() + data).hexdigest()
    if kept is not None and kept.exists():
        found: list[Part] | str = pickle.loads(kept.read_bytes())
        return found
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_count, args=(there, path.name, data), daemon=True)
    child.start()
    there.close()
    try:
        found = here.recv() if here.poll(_COUNTING_SECONDS) else f"takes more than {_COUNTING_SECONDS:g} seconds"
    except EOFError:
        found = "ended the process that counts"
    child.kill()
    child.join()
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(found))
        part.replace(kept)
    return found


def _count(to: Connection, name: str, data: bytes) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_COUNTING_RAM, _COUNTING_RAM))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries say of a broken file
    try:
        to.send(file_words.parts_of(name, data))
    except BaseException as error:  # a library's own, of any type
        to.send(f"{type(error).__name__}: {str(error)[:100]}")
    os._exit(0)


def line_of(kind: str, entries: Sequence[Entry]) -> Line:
    """Sum up the files of a kind."""
    found = [entry.found for entry in entries if entry.found is not None]
    return Line(
        kind,
        files=len(entries),
        there=sum(one.there for one in found),
        read=sum(one.read for one in found),
        named=sum(one.named for one in found),
        deleted=sum(one.deleted for one in found),
        more=sum(one.more for one in found),
        silent=sum(entry.silent for entry in entries),
        refused=sum(bool(entry.refused) for entry in entries),
        uncounted=sum(bool(entry.uncounted) and not entry.refused for entry in entries),
        seconds=sum(entry.seconds for entry in entries),
    )


def table(lines: Iterable[Line]) -> str:
    """Return the ledger as a table of Markdown."""
    rows = [
        "| kind | files | words there | words read | read more often | deleted by their author | named as passed over "
        "| lost in silence | share | refused | not counted | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for line in lines:
        counts = (line.files, line.there, line.read, line.more, line.deleted, line.named, line.silent)
        told = [*(f"{count:,}" for count in counts), f"{line.share:.3%}", f"{line.refused:,}", f"{line.uncounted:,}"]
        rows.append(f"| {line.kind} | {' | '.join(told)} | {line.seconds:.1f} |")
    return "\n".join(rows)


def reasons(entries: Iterable[Entry]) -> Counter[tuple[str, str]]:
    """Return why files are refused, and how many for each reason: what is said of one file alone is left out."""
    return Counter((entry.kind, _reason(entry.refused)) for entry in entries if entry.refused)


def _reason(why: str) -> str:
    return re.sub(r"\d[\d,]*", "N", why if len(why) <= 100 else why[:100] + "…").replace("\n", " ")


def worst(entries: Iterable[Entry], most: int = 40) -> str:
    """Return the files that lose most words, each with its first ones and where they stand."""
    rows = []
    for entry in sorted(entries, key=lambda one: -one.silent)[:most]:
        if entry.found is None or not entry.silent:
            continue
        by_place: dict[str, list[str]] = defaultdict(list)
        for word, place in entry.found.where.items():
            by_place[place].append(word)
        share = entry.silent / max(1, entry.found.there)
        rows.append(f"- `{entry.path}`: {entry.silent:,} of {entry.found.there:,} words ({share:.1%})")
        for place, words in sorted(by_place.items(), key=lambda one: -len(one[1]))[:6]:
            rows.append(f"  - {place or 'the text'}: {' '.join(words[:12])}")
    rows += [f"- `{one.path}`: refused: {one.refused}" for one in entries if one.refused][:most]
    return "\n".join(rows)


# ---- speed

_LOADS = ("10,000 small files", "CSV of 60 MB", "mailbox of 30,000 mails")
_SCRIPT = """
import pathlib, sys, time
from everlong.files.parsing import parse
from everlong.files.folder import Choice, listed
begin, words = time.perf_counter(), 0
for path in sys.argv[1:]:
    path = pathlib.Path(path)
    files = [path / file.path for file in listed(path, Choice()).files] if path.is_dir() else [path]
    for file in files:
        words += sum(len(document.text) for document in parse(file).documents)
print(time.perf_counter() - begin, words)
"""


def speed(beside: Path | None, rounds: int, *, as_json: bool) -> None:
    """Print the seconds that this checkout takes for three loads, and another one's, in turns in one run."""
    here = Path(__file__).resolve().parents[1]
    checkouts = {"this": here, **({} if beside is None else {"beside": beside.resolve()})}
    with tempfile.TemporaryDirectory() as folder:
        loads = dict(zip(_LOADS, _made(Path(folder)), strict=True))
        seconds: dict[str, dict[str, list[float]]] = {load: {name: [] for name in checkouts} for load in loads}
        for _ in range(rounds):
            for load, path in loads.items():
                for name, checkout in checkouts.items():
                    seconds[load][name].append(_seconds(checkout, path))
    found = {load: {name: statistics.median(times) for name, times in each.items()} for load, each in seconds.items()}
    if as_json:
        print(json.dumps(found))
        return
    print("| load | seconds | beside | ratio |\n|---|--:|--:|--:|")
    for load, each in found.items():
        other = each.get("beside")
        ratio = "" if other is None else f"{each['this'] / other:.2f}"
        print(f"| {load} | {each['this']:.2f} | {'' if other is None else f'{other:.2f}'} | {ratio} |")


def _seconds(checkout: Path, path: Path) -> float:
    """Return what a Python of its own takes, of which only the reading is timed."""
    python = checkout / ".venv" / "bin" / "python"
    told = subprocess.run(
        [python if python.exists() else sys.executable, "-c", _SCRIPT, path],
        env={**os.environ, "PYTHONPATH": str(checkout / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(told.stdout.split()[0])


def _made(folder: Path) -> tuple[Path, Path, Path]:
    words = ["The", "river", "goes", "on,", "and", "so", "does", "the", "road", "beside", "it"]
    for number in range(10_000):
        place = folder / "small" / f"{number // 200}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.md").write_text(f"# Note {number}\n\n" + " ".join(words * 12) + "\n")
    row = 0
    with (folder / "large.csv").open("w") as table:
        table.write("number,name,remark,amount\n")
        while table.tell() < 60 << 20:
            row += 1
            remark = " ".join(words[row % 5 :])
            table.write(f'{row},{words[row % 7]} {row * 7 % 1000},"{remark}, again",{row / 7:.2f}\n')
    with (folder / "letters.mbox").open("w") as box:
        for number in range(30_000):
            head = f"From: ann@example.org\nTo: ben@example.org\nSubject: Letter {number}\n"
            box.write(f"From ann@example.org Mon Mar  2 10:00:00 2009\n{head}\nDear Ben,\n{' '.join(words * 5)}\n\n")
    return folder / "small", folder / "large.csv", folder / "letters.mbox"


if __name__ == "__main__":
    main()
