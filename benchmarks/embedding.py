"""What encoding text costs a reading: with a part that does and without it, in one run.

    python benchmarks/embedding.py [--part encoder] [--tokens 8192] [--rounds 3] [--threads N] [--json]

Two memories read the same tokens in alternating rounds. One of them has the part encoder, or embedding, too. MiniLM
encodes its text meanwhile, in a thread of its own. There are two ratios of median tokens a second: until the reading is
over, and until every page has its vectors. --threads is the number of threads for torch. With fewer than the machine
has cores, one is left for the encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

import everlong
from everlong.data import shipped_books
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor

ENCODING = ("encoder", "embedding")


def seconds_to_read(mm: everlong.MemoryModel, ids: torch.Tensor) -> tuple[float, float]:
    """Return the seconds until ids [n] are read, and until their pages have vectors."""
    started = time.perf_counter()
    mm.frame.extend(ids, "read")
    read = time.perf_counter() - started
    mm.searcher.settle()
    return read, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=ENCODING, default=ENCODING[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model)
    default = everlong.MemoryConfig.fitting(model.config.get_text_config().max_position_embeddings)
    parts = tuple(part for part in default.search.index if part not in ENCODING)
    plain, encoding = (default.changed(search={"index": index}) for index in (parts, (*parts, options.part)))
    warm_up = plain.frame.sink_tokens + plain.frame.rolling_tokens + plain.frame.evict_tokens
    ids = torch.tensor(tokenizer(shipped_books()[0].text, add_special_tokens=False, verbose=False)["input_ids"])
    if len(ids) < warm_up + options.rounds * options.tokens:
        raise SystemExit(f"the book has {len(ids)} tokens: fewer --rounds or --tokens")

    without, read, encoded = [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, Path(folder) / "plain.everlong", plain) as alone,
        everlong.MemoryModel(model, tokenizer, Path(folder) / "encoding.everlong", encoding) as both,
    ):
        for mm in (alone, both):
            seconds_to_read(mm, ids[:warm_up])
        for number in range(options.rounds):
            first = warm_up + number * options.tokens
            piece = ids[first : first + options.tokens]
            without.append(options.tokens / seconds_to_read(alone, piece)[0])
            until_read, until_encoded = seconds_to_read(both, piece)
            read.append(options.tokens / until_read)
            encoded.append(options.tokens / until_encoded)
    result = {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "tokens_per_second": statistics.median(without),
        "beside_the_encoder": statistics.median(read),
        "until_encoded": statistics.median(encoded),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['cpu']}, {result['cores']} cores, torch {torch.__version__} on {options.threads} threads")
    alone_speed = statistics.median(without)
    for name, speeds in (("reading alone", without), ("beside the encoder", read), ("until all is encoded", encoded)):
        speed = statistics.median(speeds)
        print(f"{name:22}{speed:8,.0f} tokens/s {speed / alone_speed:6.2f}")


if __name__ == "__main__":
    main()
