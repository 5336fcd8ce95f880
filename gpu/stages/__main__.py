"""python -m stages NAME FILE: run one stage and write its result. gpu/check calls it."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch

from stages.check import Check


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--size", choices=["full", "small"], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    device = torch.device("cuda", 0) if options.device.type == "cuda" else options.device
    check = Check(options.stage, options.file, device, small=options.size == "small", seconds=options.seconds)
    with check.case("stage"):
        importlib.import_module(f"stages.{options.stage}").run(check)
    return 0 if check.finish() else 1


if __name__ == "__main__":
    sys.exit(main())
