"""`python -m support.soak --minutes 30 --seed 1`, run in `tests`: the report as JSON, and a table."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any


def table(report: dict[str, Any]) -> str:
    """Return the numbers of a report as lines."""
    rows = [(name, report[name]) for name in ("operations", "kills", "ends", "starts", "acknowledged", "forgotten")]
    rows += [("checks", report["checks"]), ("faults", sum(report["fault_kinds"].values()))]
    rows += [(name, f"{report['before'][name]} -> {report['after'][name]}") for name in report["before"]]
    each = [
        (did, ", ".join(f"{status}: {count}" for status, count in of.items())) for did, of in report["of_each"].items()
    ]
    return "\n".join(f"{name:<20} {value}" for name, value in [*rows, *each])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--keep", type=Path, help="A new folder for what the service writes; otherwise it is removed.")
    given = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before torch is imported
    print(f"seed {given.seed}", flush=True)
    from support.soak.run import soaked

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = given.keep or Path(made)
        os.environ["EVERLONG_CACHE"] = str(folder / "cache")
        report = soaked(folder, given.seed, 60 * given.minutes)
    print(json.dumps(report, indent=2))
    print(table(report))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
