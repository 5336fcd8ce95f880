"""Files that are damaged: each is read or refused by a type, within time and RAM, and costs no other file."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import everlong
from everlong.files import parsing, records
from everlong.files.document import NoTextError, UnreadableFileError
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.made_files import FILLER, KINDS, make_good, mbox_of, secret

EACH = 200  # damaged files of a kind
RAM = 1 << 30
SECONDS = 20  # that one of them may take, on a machine with much else to do: the good one takes some milliseconds

# What start.py does, for many files in turn: a process for each would take a tenth of a second. It has no file to
# write to, so it tells by a pipe: for each file the number of bytes, and the records of what was found.
MANY = """
import os, pathlib, signal, sys
import everlong_start
everlong_start.limited(int(sys.argv[1]), int(sys.argv[2]))
import types
package, folder, suffix = sys.argv[3:6]
sys.path += sys.argv[6:]
everlong = types.ModuleType("everlong")
everlong.__path__ = [package]
sys.modules["everlong"] = everlong
import io
from everlong.files import child
from everlong.files.records import Writer
for path in sorted(pathlib.Path(folder).iterdir()):
    signal.alarm(int(sys.argv[1]))
    out = io.BytesIO()
    with path.open("rb") as file:
        child._report(Writer(out), file, suffix, 1 << 28)
    sys.stdout.buffer.write(b"%d %d\\n" % (len(out.getvalue()), len(path.name)) + path.name.encode() + out.getvalue())
    sys.stdout.buffer.flush()
"""


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some changed, left out, doubled or cut off; of a zip often those of a member, packed anew."""
    if data[:2] == b"PK" and draw.random() < 0.7:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
            names = old.namelist()
            hit = set(draw.sample(names, k=min(len(names), draw.choice((1, 1, 3)))))
            for name in names:
                new.writestr(name, damaged(old.read(name), draw) if name in hit else old.read(name))
        return out.getvalue()
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 30))):
        at = draw.randrange(len(found)) if found else 0
        length = min(draw.choice((1, 1, 4, 100, 5000)), len(found) - at)
        what = draw.randrange(6)
        if what == 0:
            del found[at:]
        elif what == 1:
            del found[at : at + length]
        elif what == 2:
            found[at:at] = found[at : at + length]
        elif what == 3:
            found[at : at + length] = bytes(length)
        else:
            found[at : at + length] = draw.randbytes(length)
    return bytes(found)


def made(kind: str, folder: Path) -> bytes:
    if kind == "mbox":
        return mbox_of([FILLER * 5] * 3, folder)
    return KINDS[kind](kind, secret(kind))[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "mbox"])
def test_a_damaged_file_is_read_or_refused_within_limits(kind: str, tmp_path: Path) -> None:
    good, draw = made(kind, tmp_path), random.Random(f"damaged {kind}")
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "0000").write_bytes(good)
    for number in range(1, EACH + 1):
        (folder / f"{number:04}").write_bytes(damaged(good, draw))
    package = parsing._PACKAGE
    (tmp_path / "everlong_start.py").write_bytes((package / "files" / "start.py").read_bytes())
    script = f"import sys; sys.path.insert(0, {os.fspath(tmp_path)!r})\n{MANY}"
    words = (SECONDS * 10, RAM, package, folder, kind.rpartition(".")[2], *parsing._libraries())
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", script, *map(str, words)], capture_output=True, timeout=SECONDS * 30
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told, refused = io.BytesIO(done.stdout), 0
    for number in range(EACH + 1):
        size, length = map(int, told.readline().split())
        assert told.read(length) == b"%04d" % number
        why = ""
        try:
            parsed = records.read(io.BytesIO(told.read(size)), 1 << 28)
        except UnreadableFileError as error:  # any other type fails the test
            why, refused = str(error), refused + 1
        if number == 0:
            assert not why
            assert secret(kind) in "".join(one.text for one in parsed.documents) or kind == "mbox"
        assert "takes more" not in why, number  # RAM
        assert why.isprintable(), number
    assert refused < EACH  # some are whole enough
    assert not told.read()


@pytest.mark.slow
def test_damaged_files_cost_no_other_file_of_a_folder(tmp_path: Path) -> None:
    """They are named, with why; what is good is read."""
    folder, draw = tmp_path / "letters", random.Random(7)
    good = list(make_good(folder))
    broken = set()
    for kind in ("pdf", "docx", "pptx", "xlsx", "epub", "zip", "ipynb"):
        data = made(kind, tmp_path)
        for number in range(3):
            name = f"broken-{number}.{kind}"
            bad = data[: draw.randrange(8, len(data) // 2)]
            (folder / name).write_bytes(bad)
            try:
                parsing.parse(folder / name)
            except NoTextError:
                broken.add(name)
    assert len(broken) > 15
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "memory", TINY_MEMORY) as mm:
        report = mm.sync(folder)
        text = "".join(mm.text(block.id) for block in mm.memory.core.blocks.infos())
    assert broken <= {os.fspath(name) for name in report.unreadable}
    assert all(report.unreadable[name] for name in broken)
    assert [one.sentence for one in good if one.sentence not in text] == []
