"""Made the memories of this folder, under the release that README.md names: `make.py FOLDER PROGRAM`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from everlong import _core
from support.memory_answers import answers, turn_on

LAYERS, KV_HEADS, DIM, PAGE = 2, 2, 8, 8
KV = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_tokens": PAGE, "codec": "bf16"}
TEXT = {"layers": 0, "kv_heads": 0, "head_dim": 0, "page_tokens": PAGE, "codec": "bf16"}
SOURCES = ("letters", "book", "", "letters")


def new_manifest(shape: dict[str, object]) -> _core.Manifest:
    attributes = {"profile": '{"heads": []}'}
    return _core.Manifest(weights="w", rope="r", tokenizer="t", attributes=attributes, **shape)


def append(core: _core.Memory, seed: int, payload: bool) -> int:
    rng = np.random.default_rng(seed)
    stream, tokens = seed % 2, int(rng.integers(5, 21))
    begin = core.stream_end(stream)
    pages = []
    for first in range(0, tokens if payload else 0, PAGE):
        numbers = rng.standard_normal((LAYERS, 2, KV_HEADS, min(PAGE, tokens - first), DIM)).astype(np.float32)
        pages.append((numbers.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).tobytes())  # bfloat16
    return core.append(
        stream=stream,
        begin=begin,
        end=begin + tokens,
        sink_tokens=2 if begin == 0 else 0,
        source=SOURCES[seed % 4],
        created_at=1_700_000_000.25 + seed,
        tags=[tag for tag in ("a", "b") if rng.random() < 0.5],
        token_ids=rng.integers(0, 60, tokens).astype(np.int32),
        payload=np.frombuffer(b"".join(pages), dtype=np.uint8),
    )


def make(folder: Path, shape: dict[str, object], killed: bool) -> None:
    core = _core.Memory.create(str(folder), new_manifest(shape))
    for seed in range(8):
        append(core, seed, payload=shape is KV)
    core.flush()
    core.forget([3])
    core.compact()
    core.forget([6])  # its row stays
    core.set_attribute("said", "yes")
    core.put_file("frame", bytes(range(256)))
    append(core, 8, payload=shape is KV)
    core.flush()
    turn_on(core)
    answers(core)  # the indexes that are made by the first search
    core.save_indexes()
    if killed:
        os._exit(0)
    core.close()


def of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What says nothing of the machine that it was made on; SQLite makes the -shm anew."""
    if member.name.endswith(("LOCK", "-shm")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def pack(folder: Path, to: Path) -> None:
    with tarfile.open(to, "w:gz") as tar:
        tar.add(folder, arcname=folder.name, filter=of_nobody)


def main(root: Path, put_tensors: str) -> None:
    here = Path(__file__).parent
    make(root / "kv", KV, killed=False)
    subprocess.run([put_tensors, root / "kv"], check=True)
    if os.fork() == 0:
        make(root / "text", TEXT, killed=True)
    os.wait()
    for name in ("kv", "text"):
        pack(root / name, here / f"{name}.tar.gz")
        core = _core.Memory.open(str(root / name), read_only=True)
        turn_on(core)
        (here / f"{name}.json").write_text(json.dumps(answers(core), indent=1) + "\n")
        core.export_file(str(root / f"{name}.export"))
        (here / f"{name}.export.gz").write_bytes(gzip.compress((root / f"{name}.export").read_bytes(), mtime=0))
        core.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
