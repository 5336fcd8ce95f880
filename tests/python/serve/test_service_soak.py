"""A minute of twenty callers, with kill -9 between: nothing acknowledged is lost, nothing forgotten is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.soak.run import soaked

pytestmark = pytest.mark.slow


def test_a_minute_of_everything_with_kills_between(tmp_path: Path) -> None:
    report = soaked(tmp_path / "soak", seed=1, seconds=60)
    told = "\n".join(report["faults"])
    assert not report["fault_kinds"], f"{report['fault_kinds']}\n{told}"
    assert report["kills"] >= 1
    assert report["ends"] >= 1
    assert min(report[name] for name in ("acknowledged", "forgotten")) >= 20
