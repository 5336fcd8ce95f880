"""A folder of sixty files of every kind, with broken and hostile ones among them, is read, cited and survived."""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import resource
import socket
from pathlib import Path

import pytest

import everlong
from everlong.files.parsing import LIMITS, Limits, parse
from everlong.memory.origins import origin_tag
from everlong.memory.places import place_in
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.made_files import hostile, luring, make_good

GOOD = 60
# What is whole of them, or text, is read.
READ = {
    *("no-chat.json", "template.docx", "linked.xlsx"),
    *("picture.pptx", "parts.eml", "page.pdf", "outside.zip", "wide.xlsx"),
}


def place_of(mm: everlong.MemoryModel, path: Path, sentence: str) -> set[str]:
    """Where the memory says that a sentence of a file stands; its letters are tokens."""
    blocks = mm.memory.core.blocks.infos(tag=origin_tag(str(path)))
    texts = [mm.text(block.id) for block in blocks]
    begins = list(itertools.accumulate(map(len, texts), initial=0))
    first = "".join(texts).index(sentence)
    places = set()
    for at in (first, first + len(sentence) - 1):
        block = bisect.bisect_right(begins, at) - 1
        places.add(place_in(blocks[block].tags, at - begins[block], at - begins[block] + 1))
    return places


@pytest.mark.slow
def test_sixty_files_are_read_and_cited_and_hostile_ones_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "outside" / "canary.txt"
    canary.parent.mkdir()
    canary.write_text("the secret of the canary")
    for name in ("HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    short = functools.partial(parse, limits=Limits(seconds=10))
    monkeypatch.setattr("everlong.generation.file_input.parse", short)
    folder = tmp_path / "folder"
    good = list(itertools.islice(make_good(folder / "good", each=4), GOOD))
    for path in set((folder / "good").rglob("*.*")) - {one.path for one in good}:
        path.unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        bad = {**hostile(), **luring(canary, server.getsockname()[1])}
        del bad["deep.json"]  # a text of brackets, which takes long to be read into a memory
        assert len(good) == GOOD
        assert len(bad) > 15
        for name, data in bad.items():
            (folder / "bad" / name).parent.mkdir(exist_ok=True)
            (folder / "bad" / name).write_bytes(data)
        largest_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
            report = mm.sync(folder)
            held = "".join(mm.text(block.id) for block in mm.memory.blocks())
            for one in good:
                assert place_of(mm, one.path, one.sentence) == {one.place}, one.path
        with pytest.raises(BlockingIOError):
            server.accept()
    assert set(report.unreadable) == {f"bad/{name}" for name in bad if name not in READ}
    assert all(0 < len(why) < 400 and "Traceback" not in why for why in report.unreadable.values())
    assert "canary" not in held
    assert "root:" not in held
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert os.listdir(tmp_path / "TMPDIR") == []
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of all children of this process so far
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a child that was just forked counts as much
    assert largest <= max(largest_before, own) or largest * 1024 < LIMITS.ram + (256 << 20)
