"""No command that prints lets what a file, a model or a memory holds drive the terminal."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from everlong.bench import BenchReport, asking, decoding, reading
from everlong.bench.archive_size import CodecSize, SizeReport
from everlong.cli.options import Machine, ModelOptions
from everlong.codecs.costs import CodecCost, CodecReport
from everlong.doctor import Check, Difference, DoctorReport
from everlong.models.geometry import Geometry
from everlong.text.terminal import escaping_console
from everlong_lab.cli import parts
from everlong_lab.eval.tables import Report, Table
from support.hostile_text import ESCAPES, require_harmless, run


class Hostile(Report):
    def to_dict(self) -> dict[str, Any]:
        return {ESCAPES: ESCAPES}

    def tables(self) -> Iterator[Table | str]:
        yield ESCAPES
        yield Table(ESCAPES, (ESCAPES, "b"), [(ESCAPES, ESCAPES)])


def bench_report() -> BenchReport:
    speeds = (1.0, 1.0, 1.0)
    made = {"gpu": None, "processor": ESCAPES, "threads": 1, "torch": ESCAPES}
    cost = asking.QuestionCost(1, 1.0, 1.0, 1, 1, 1.0, 1.0, 1.0)
    decoded = (decoding.DecodingCost(1, 1, *speeds),)
    return BenchReport(ESCAPES, ESCAPES, reading.ReadingCost(1, 1, 1, *speeds), decoded, (cost,), 1, 1, 1.0, made)


def size_report() -> SizeReport:
    return SizeReport(ESCAPES, Geometry(1, 1, 1), 1, ESCAPES, 1, (CodecSize(ESCAPES, 1.0),), {})


def doctor_report() -> DoctorReport:
    same = Difference(0.0, 0.0, 1.0)
    checks = (Check(ESCAPES, same, "approximate"),)
    return DoctorReport(ESCAPES, ESCAPES, {ESCAPES: 1}, 1, 1, 1, 1, 1, ESCAPES, 1, same, checks, 1, 1, {})


def codec_report() -> CodecReport:
    cost = CodecCost(ESCAPES, 1.0, 0.0, 0.0, 1.0)
    return CodecReport(ESCAPES, (cost,), cost, {})


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("command", "made_by", "report"),
    [
        (["bench"], "everlong.bench.run_bench", bench_report()),
        (["bench", "--codecs", "--like", f"model{ESCAPES}"], "everlong.bench.archive_size.measure", size_report()),
        (["doctor", f"model{ESCAPES}"], "everlong.doctor.examine", doctor_report()),
        (["doctor", f"model{ESCAPES}", "--codec"], "everlong.codecs.costs.measure", codec_report()),
        (["eval", "niah"], "everlong_lab.eval.niah.run_niah", Hostile()),
        (["eval", "ppl"], "everlong_lab.eval.ppl.run_ppl", Hostile()),
        (["eval", "trigger"], "everlong_lab.parts.trigger.measure.measure", Hostile()),
    ],
)
def test_reports(
    command: list[str], made_by: str, report: object, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "load", lambda *_: (None, None))
    monkeypatch.setattr(ModelOptions, "load_configured", lambda *_, **__: ((None, None), None))
    monkeypatch.setattr("everlong.models.geometry.geometry_of", lambda *_: Geometry(1, 1, 1))
    importlib.import_module(made_by.rpartition(".")[0])
    monkeypatch.setattr(made_by, functools.wraps(pkgutil.resolve_name(made_by))(lambda *_, **__: report))
    assert "owned" in run(*command, *options)


def test_what_training_and_the_demo_say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    console = escaping_console(stderr=True)
    parts.echo_metrics(console)(ESCAPES, 50, 50)
    parts.validate(console)(1, {"minutes": 1.0, ESCAPES: 1.0})
    parts.print_figures(console, ESCAPES, {"figures": {ESCAPES: {ESCAPES: 1.0}}})
    require_harmless(capsys.readouterr().err)
    monkeypatch.setattr("everlong_lab.eval.demo.run_demo", lambda console, **_: console.print(ESCAPES))
    assert "owned" in run("demo")
