"""What heeding tombstones costs a generated token.

    python benchmarks/tombstones.py [--tombstones 16] [--heads 16] [--layers 10] [--rounds 12] [--writer]

The same frame over a book generates in turns with heads that hear tombstones, whose threshold nothing reaches, and
without them. What it attends to is the same. The heads are spread over --layers layers, like those that calibration
chose for SmolLM2. The ratio is tokens a second with the heads over those without, as medians over the rounds. With
--writer the KV writer makes the tombstones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import everlong
from everlong.bench.clock import now
from everlong.data import shipped_books
from everlong.frame.kv_frame import KvFrame
from everlong.frame.part import Head, Hidden, Needs
from everlong.frame.parts import Parts
from everlong.frame.read_request import ReadRequest
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.parts.kv_writer import KvWriter
from everlong.parts.tombstones.runtime import tombstone_scores
from everlong.text.encoding import encode


class Hears:
    """A part whose score never reaches its threshold."""

    name, threshold, recalls_span = "hears", 1e30, True

    def __init__(self, heads: list[Head]) -> None:
        self.needs = Needs(heads=heads)

    def score_tombstones(self, step: int, hidden: Hidden, attention: torch.Tensor) -> list[float]:
        scores: list[float] = tombstone_scores(attention, torch.ones(len(self.needs.heads)), 0.0).tolist()
        return scores


def seconds(frame: KvFrame, ids: torch.Tensor) -> tuple[float, float]:
    """Return the seconds of generating these tokens one by one, and the CPU time of the process; no token stays."""
    with frame.branch(traced=False):
        begun, worked = now(frame.served.device), time.process_time()
        for token in ids:
            frame.forward(ReadRequest(token[None], "generated", recall=True))
            frame.finish_token()
        return now(frame.served.device) - begun, time.process_time() - worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tombstones", type=int, default=16)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=10, help="layers that the heads are spread over")
    parser.add_argument("--tokens", type=int, default=16, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--writer", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    config = everlong.MemoryConfig.fitting(model.config.get_text_config().max_position_embeddings)
    config = config.changed(
        frame={"tombstones": options.tombstones}, search={"index": ("lexical",)}, answer={"policy": "off"}
    )
    config = config.changed(parts=[KvWriter(tombstones=True)] if options.writer else [])
    with everlong.MemoryModel(model, tokenizer, None, config, pack="auto" if options.writer else None) as mm:
        frame = mm.frame
        assert isinstance(frame, KvFrame)
        ids = encode(tokenizer, shipped_books()[0].text)
        read = config.frame.rolling_tokens + (options.tombstones + 1) * config.frame.chunk_tokens
        frame.extend(ids[:read], "read")
        served = frame.served
        layers = torch.linspace(0, served.layers - 1, options.layers).long().tolist()
        heads = [(layers[at % len(layers)], at % served.query_heads) for at in range(options.heads)]
        without, heeding = frame.parts, Parts({"hears": Hears(heads)})
        times: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
        for turn in range(options.rounds + 1):
            for name in ("on", "off") if turn % 2 else ("off", "on"):
                frame.stream.parts = heeding if name == "on" else without
                taken = seconds(frame, ids[read : read + options.tokens])
                if turn > 0:  # the first one warms up
                    times[name].append(taken)
        slots, stones = frame.zones.resident_tokens, len(frame.os.anchor_zone["tombstones"])
    per_second = {name: options.tokens / statistics.median(wall for wall, _ in taken) for name, taken in times.items()}
    ratio = per_second["on"] / per_second["off"]
    worked = {name: statistics.median(cpu for _, cpu in taken) for name, taken in times.items()}
    cpu_ratio = worked["off"] / worked["on"]
    if options.json:
        report = {"cpu": processor(), "torch": torch.__version__, **per_second, "ratio": ratio, "cpu_ratio": cpu_ratio}
        print(json.dumps(report, indent=2))
        return
    print(f"{processor()}, torch {torch.__version__}, {str(model.dtype).removeprefix('torch.')}")
    print(f"{slots:,} slots, {stones} tombstones, {len(heads)} heads")
    print(f"with {per_second['on']:.1f} tokens/s, without {per_second['off']:.1f}: ratio {ratio:.3f}")
    print(f"by CPU time, which other processes change less: {cpu_ratio:.3f}")


if __name__ == "__main__":
    main()
