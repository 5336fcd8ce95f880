"""Every file of a memory is opened beneath its folder's descriptor, and none by a path that somebody could redirect."""

import collections
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
import everlong
import everlong._core as core

manifest = core.Manifest(weights="w", rope="r", tokenizer="t", layers=1, kv_heads=1, head_dim=16, page_tokens=64,
                         codec="fp32")
with everlong.Memory.open(sys.argv[1], create=manifest, host_bytes=0) as memory:
    pass
with everlong.Memory.open(sys.argv[1], host_bytes=0) as memory:
    for begin in (0, 64):
        memory.core.blocks.append(stream=0, begin=begin, end=begin + 64, sink_tokens=0, source="", created_at=1.0,
                                  tags=["a"], token_ids=np.arange(64, dtype=np.int32),
                                  tensors={"x": np.zeros(4, np.float32)},
                                  payload=np.zeros(memory.core.page_bytes(64), np.uint8))
    memory.core.put_file("note", b"hi")
    memory.core.set_attribute("a", "b")
with everlong.Memory.open(sys.argv[1], host_bytes=0, read_only=len(sys.argv) > 2) as memory:
    memory.core.search.find(token_ids=np.arange(4, dtype=np.int32), kinds=["lexical"])
    memory.core.blocks.read_pages(memory.core.blocks.pages(), np.empty(2 * memory.core.page_bytes(64), np.uint8))
    memory.core.blocks.tensor(1, "x")
    memory.core.file("note")
    memory.verify()
    memory.stats()
    if len(sys.argv) == 2:
        memory.core.blocks.add_tags(1, [f"{number:1000}" for number in range(4000)])  # more than SQLite caches
        memory.core.blocks.forget([2])
        memory.core.upkeep.compact()
"""
RESOLVED = {"RESOLVE_BENEATH", "RESOLVE_NO_SYMLINKS", "RESOLVE_NO_XDEV"}


def traced(tmp_path: Path, *arguments: str) -> list[str]:
    """Return the calls of a process with a path in them, as strace prints them; descriptors say what they are of.

    Those of a thread stand together, in their order: in a file of all of them, one call may cut another one in two.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    if subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system lets nobody trace a process")
    traces = tmp_path / "traces"
    traces.mkdir()
    run = [strace, "-ff", "-y", "-s", "4096", "-e", "trace=%file,openat2", "-o", str(traces / "thread")]
    run += [sys.executable, "-c", SCRIPT]
    spare = tmp_path / "spare"
    spare.mkdir()
    environment = {**os.environ, "SQLITE_TMPDIR": str(spare)}
    done = subprocess.run([*run, *arguments], capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return [line for thread in sorted(traces.iterdir()) for line in thread.read_text().splitlines()]


def beneath(call: str, arguments: str, folder: str) -> str | None:
    """Return how a call opens beneath the folder's descriptor; None where it does not."""
    at = re.match(r'(\w+)(?:<([^>]*)>)?, "([^"]*)"', arguments)
    if at is None:
        return None
    opened, name = at[2], at[3]
    if call == "openat2" and opened is not None and opened.startswith(folder) and not name.startswith("/"):
        said = set(re.findall(r"RESOLVE_\w+", arguments))
        return f"openat2, {'|'.join(sorted(RESOLVED))}" if said >= RESOLVED else None
    if "O_NOFOLLOW" not in arguments:
        return None
    if call == "openat" and opened is not None and opened.startswith(folder) and "/" not in name:
        return "openat of one component, O_NOFOLLOW"
    # SQLite opens by paths. This one begins at the folder's descriptor, which nobody can redirect.
    return "openat of /proc/self/fd/N/NAME, O_NOFOLLOW" if re.fullmatch(r"/proc/self/fd/\d+/[^/]+", name) else None


def test_a_compact_writes_outside_only_to_a_nameless_file(tmp_path: Path) -> None:
    """SQLite rewrites its file through another one. That one is made anew, is private, and loses its name at once."""
    folder = str(tmp_path.resolve() / "memory")
    made: list[str] = []
    gone = 0
    for line in traced(tmp_path, folder):
        name = re.search(r'"((?:[^"]*/)?etilqs_[^"]*)"', line)
        if name is None or " = -1 ENOENT" in line:
            continue
        if "unlink" in line:
            assert made.pop() == name[1]
            gone += 1
        else:
            assert {"O_CREAT", "O_EXCL", "O_NOFOLLOW"} <= set(re.findall(r"O_\w+", line)), line
            assert ", 0600)" in line, line
            made.append(name[1])
    assert gone > 0
    assert not made
    assert not list((tmp_path / "spare").iterdir())


@pytest.mark.parametrize("read_only", [False, True])
def test_what_lies_in_a_folder_is_opened_beneath_it(tmp_path: Path, read_only: bool) -> None:
    folder = str(tmp_path.resolve() / "memory")
    table: collections.Counter[tuple[str, str]] = collections.Counter()
    opened = set()
    for line in traced(tmp_path, folder, *(["read"] if read_only else [])):
        found = re.match(r"(\w+)\((.*)\) += (.*)", line)
        if found is None:
            continue
        call, arguments, result = found.groups()
        # A path of one of its files by itself, for whatever call.
        assert f'"{folder}/' not in arguments, line
        to = re.match(r"\d+<([^>]*)>", result)
        if to is None or not to[1].startswith(f"{folder}/"):
            continue
        how = beneath(call, arguments, folder)
        assert how is not None, line
        table[call, how] += 1
        opened.add(to[1].removeprefix(f"{folder}/").removesuffix(" (deleted)"))
    files = {"LOCK", "manifest.json", "catalog.sqlite", "catalog.sqlite-wal", "segments/000001.kvseg", "index/lexical"}
    assert files <= opened
    print(*(f"{call:8} {how:70} {count}" for (call, how), count in sorted(table.items())), sep="\n")
