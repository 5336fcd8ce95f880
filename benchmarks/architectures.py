"""Which architectures are served: a tiny random model of every one in the exactness tests, examined by the doctor.

    python benchmarks/architectures.py [--tokens 256] [--json]

Each model is computed by plain transformers and behind a memory, in fp32. The table shows the largest difference of a
logit. The anchor is how far plain transformers is from itself when it reads in chunks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys

from everlong.doctor import DoctorReport, examine

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

from support import TINY_KINDS, byte_tokenizer, tiny_model
from support.models import KINDS


def row(report: DoctorReport) -> str:
    layers = ", ".join(f"{count} {kind.removesuffix('_attention')}" for kind, count in report.layers.items())
    logits = {check.name.partition(" by ")[0]: check.difference.logit for check in report.checks}
    parts = (report.rounding.logit, logits["frame"], logits["archive fp32"], logits["moved"])
    verdict = "exact" if report.healthy else "WRONG"
    return (
        f"| `{report.model}` | {report.rope} | {layers} | " + " | ".join(f"{x:.0e}" for x in parts) + f" | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    reports = []
    if not arguments.json:
        print("| model type | RoPE | layers | transformers, chunked | frame | archived, fp32 | moved | verdict |")
        print("|---|---|---|---|---|---|---|---|")
    for kind, rope in TINY_KINDS:
        model = tiny_model(kind, rope)
        report = examine(model, byte_tokenizer(), name=KINDS[kind][0], tokens=arguments.tokens)
        reports.append(report)
        if not arguments.json:
            print(row(report), flush=True)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(report) for report in reports], indent=2))
    if not all(report.healthy for report in reports):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
