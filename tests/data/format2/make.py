"""Made the memories of this folder, under the release that README.md names: `make.py FOLDER`."""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from everlong import _core, ops
from support.memory_answers import answers, turn_on

LAYERS, KV_HEADS, DIM, PAGE = 2, 2, 8, 8


def keys_and_values(seed: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys whose channels have offsets, as those of models with a bias in their keys."""
    rng = np.random.default_rng(seed)
    shape = (LAYERS, KV_HEADS, tokens, DIM)
    offsets = 8 * rng.standard_normal((LAYERS, KV_HEADS, 1, DIM))
    keys, values = rng.standard_normal(shape) + offsets, rng.standard_normal(shape)
    return torch.from_numpy(keys).float(), torch.from_numpy(values).float()


def make(folder: Path, codec: str) -> dict[str, np.ndarray]:
    """Return the payloads, and the keys and values that they were decoded to."""
    shape = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_tokens": PAGE, "codec": codec}
    core = _core.Memory.create(str(folder), _core.Manifest(weights="w", rope="r", tokenizer="t", **shape))
    arrays = {}
    for seed in range(3):
        tokens = (16, 5, 11)[seed]
        payload = ops.encode_kv(*keys_and_values(seed, tokens), PAGE, codec)
        begin = core.blocks.stream_end(0)
        core.blocks.append(
            stream=0,
            begin=begin,
            end=begin + tokens,
            sink_tokens=2 if seed == 0 else 0,
            source="letters",
            created_at=1_700_000_000.25 + seed,
            tags=["a"],
            token_ids=np.random.default_rng(seed).integers(0, 60, tokens).astype(np.int32),
            payload=payload.numpy(),
        )
        k, v = ops.decode_kv(payload, LAYERS, KV_HEADS, tokens, DIM, PAGE, codec, torch.float32)
        name = f"{codec}.{seed + 1}"
        arrays |= {f"{name}.payload": payload.numpy(), f"{name}.k": k.numpy(), f"{name}.v": v.numpy()}
    turn_on(core)
    (Path(__file__).parent / f"{codec}.json").write_text(json.dumps(answers(core), indent=1) + "\n")
    core.upkeep.export_file(str(folder.parent / "export"))
    core.close()
    return arrays


def of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What says nothing of the machine that it was made on; SQLite makes the -shm anew."""
    if member.name.endswith(("LOCK", "-shm")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main(root: Path) -> None:
    here = Path(__file__).parent
    arrays: dict[str, np.ndarray] = {}
    for codec in ("e4m3", "e5m2"):
        arrays |= make(root / codec, codec)
        with tarfile.open(here / f"{codec}.tar.gz", "w:gz") as tar:
            tar.add(root / codec, arcname=codec, filter=of_nobody)
        (here / f"{codec}.export.gz").write_bytes(gzip.compress((root / "export").read_bytes(), mtime=0))
        (root / "export").unlink()
    np.savez_compressed(here / "decoded.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
