"""How much a process grows while its memory does, beside the frame and the budget `host_bytes`.

    python benchmarks/ram.py [--model smollm2] [--sizes 100000 400000 800000] [--host-bytes 1000000000] [--json]
    python benchmarks/ram.py --read [--corpus BOOKS] [--sizes 100000 200000]

The memory lies in a temporary folder (12 KB a token of SmolLM2) and grows by copies of real blocks, archived one after
the other. Counted is RAM that belongs to no file: its peak in between is compared with what the process held before the
memory was opened. The budget is for the payload and the indexes. With --read the model reads books instead, which takes
much longer. A short reading before it brings in what torch keeps for itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import everlong
from everlong.bench.grown_memory import SEED_TOKENS, grow, read_seed
from everlong.bench.reading import Peak, anonymous_bytes
from everlong.frame.kv_frame import KvFrame
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, gather_books


def read_to(mm: everlong.MemoryModel, texts: list[str], tokens: int) -> int:
    """Read the next texts until the memory holds `tokens` tokens, and no further."""
    while mm.stream_tokens < tokens:
        text = texts.pop(0)
        most = int((tokens - mm.stream_tokens) * CHARACTERS_PER_TOKEN) + 1
        mm.read(text[:most], source="books")
        if most < len(text):
            texts.insert(0, text[most:])
    return mm.stream_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 400_000, 800_000])
    parser.add_argument("--host-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--read", action="store_true", help="read books instead of adding copies")
    parser.add_argument("--corpus", type=Path, help="with --read: more books, a folder of .txt files or a .tar.xz")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    model, tokenizer = load(options.model)
    window = model.config.get_text_config().max_position_embeddings
    config = everlong.MemoryConfig.fitting(window).changed(archive={"host_bytes": options.host_bytes})
    texts: list[str] = []
    if options.read:
        texts = [book.text for book in gather_books(int(max(options.sizes) * CHARACTERS_PER_TOKEN), options.corpus)]
        with everlong.MemoryModel(model, tokenizer, config=config) as mm:
            mm.read(texts[-1][: int(SEED_TOKENS * CHARACTERS_PER_TOKEN)])
    before = anonymous_bytes()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, Path(folder) / "grown.everlong", config) as mm,
    ):
        assert isinstance(mm.frame, KvFrame)
        frame = mm.frame.zones.bytes.total
        if not options.json:
            print(f"{processor()}; frame {frame / 1e6:,.1f} MB, host_bytes {options.host_bytes / 1e6:,.1f} MB")
            print(f"{'tokens':>10} {'grown by':>12} {'of both':>8} | {'payload':>12} {'in RAM':>10} {'indexes':>9}")
        if not options.read:
            read_seed(mm)
        for size in sorted(options.sizes):
            with Peak() as seen:
                tokens = read_to(mm, texts, size) if options.read else grow(mm, size)
            stats = mm.memory.stats()
            row = {
                "tokens": tokens,
                "grown_bytes": seen.bytes - before,
                "ratio": (seen.bytes - before) / (frame + options.host_bytes),
                "payload_bytes": stats.payload_bytes,
                "payload_in_ram": stats.host_bytes - stats.catalog_bytes,
                "index_bytes": stats.index_bytes,
            }
            rows.append(row)
            if not options.json:
                print(
                    f"{row['tokens']:10,} {row['grown_bytes'] / 1e6:9,.1f} MB {row['ratio']:8.2f} | "
                    f"{row['payload_bytes'] / 1e6:9,.1f} MB {row['payload_in_ram'] / 1e6:7,.1f} MB "
                    f"{row['index_bytes'] / 1e6:6,.1f} MB",
                    flush=True,
                )
    if options.json:
        result = {"cpu": processor(), "frame_bytes": frame, "host_bytes": options.host_bytes, "sizes": rows}
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
