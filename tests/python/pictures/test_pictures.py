"""Pictures from a report's JSON alone: which are drawn, and that they show what the numbers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everlong.pictures import draw_report
from support.pictures import names_of

TIMELINE = {
    "events": [
        {"what": "archive", "stream": 0, "stream_position": 9, "begin": 0, "end": 9, "tokens": 9, "restored": []}
    ]
}


@pytest.mark.parametrize("report", [TIMELINE])
def test_an_svg_has_no_date(report: dict[str, Any], tmp_path: Path) -> None:
    (first,), (second,) = (
        [path for path in draw_report(report, tmp_path / folder) if path.suffix == ".svg"] for folder in "ab"
    )
    assert "<dc:date>" not in first.read_text(encoding="utf-8")
    assert first.read_bytes() == second.read_bytes()


def test_codecs_are_drawn_with_a_line_for_the_transform(tmp_path: Path) -> None:
    costs = {"bf16": (23_040, 0.0), "int8": (12_240, 1e-5), "transform, step 0.2": (2_800, 6e-3)}
    codecs = [{"codec": name, "bytes": size, "kl": kl} for name, (size, kl) in costs.items()]
    report = {"codecs": codecs, "model": "smollm2", "cheapest": None}
    assert names_of(draw_report(report, tmp_path)) == {"codecs.png", "codecs.svg"}
    drawn = (tmp_path / "codecs.svg").read_text()
    assert all(name in drawn for name in ("bf16", "int8", "step 0.2"))
    assert "transform, step" not in drawn


def test_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_report({"hello": 1}, tmp_path)
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_report([1], tmp_path)  # type: ignore[arg-type]  # JSON that is no object
    with pytest.raises(ValueError, match="no whole report"):
        draw_report({"codecs": [{}]}, tmp_path)
    assert list(tmp_path.iterdir()) == []
