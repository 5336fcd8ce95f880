"""The demo's own decisions, and the whole of it on a tiny model."""

import dataclasses
import functools
import io
import json
import pathlib

import pytest
from rich.console import Console

from everlong import MemoryModel, demo
from everlong.eval.niah import Asked, NiahConfig, NiahReport, summarise
from tiny_models import byte_tokenizer, tiny_model

ASKED = Asked(
    kind="uuid",
    key="amber falcon",
    question="?",
    answer="1",
    length=1_000,
    depth=0.5,
    depth_bin=5,
    span=(500, 520),
    reply="1",
    right=True,
    recalled_rank=1,
    groups=((448, 640),),
    oracle_reply="1",
    oracle_right=True,
    window_reply="2",
    window_right=False,
    seconds=1.0,
)


def report() -> NiahReport:
    wrong = dataclasses.replace(ASKED, right=False, recalled_rank=None)
    named = dataclasses.replace(ASKED, kind="name", oracle_right=False)
    early = dataclasses.replace(ASKED, length=500, window_right=None)
    return summarise([early, ASKED, wrong, named], NiahConfig(tokens=1_000), "m", 1_000, {"read": 1.0, "total": 2.0})


def printed(*values: object) -> str:
    console = Console(file=io.StringIO(), record=True, width=120)
    for value in values:
        console.print(value)
    return console.export_text()


def test_the_table_counts_the_longest_haystack_alone() -> None:
    rows = [line.split("│")[1:-1] for line in printed(demo.answer_table(report())).splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["uuid"] == ["2 / 2", "0 / 2", "1 / 2", "1 / 2"]
    assert cells["name"] == ["0 / 1", "0 / 1", "1 / 1", "1 / 1"]
    assert cells["all"] == ["2 / 3", "0 / 3", "2 / 3", "2 / 3"]


def test_the_verdict_is_against_the_models_own_rate() -> None:
    assert demo.verdict(report()) == "everlong: 2 of 3 right, 100% of the model's own rate on the gold text alone"
    none = summarise([dataclasses.replace(ASKED, oracle_right=False)], NiahConfig(), "m", 1, {})
    assert "knows none itself" in demo.verdict(none)


def test_pace_leaves_time_for_the_questions() -> None:
    pace = demo.Pace(tokens_per_second=1_000.0, seconds_per_question=5.0)
    full, asked = (pace.tokens_within(480.0, questions) for questions in (0, 40))
    assert full - asked == 200_000
    assert pace.tokens_within(1.0, 40) == 0
    assert full < 480_000


def test_only_a_memory_is_ever_removed(tmp_path: pathlib.Path) -> None:
    demo._clear(tmp_path / "missing")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="no memory"):
        demo._clear(precious)
    assert (precious / "thesis.txt").exists()
    (precious / "manifest.json").write_text("{}")
    demo._clear(precious)
    assert not precious.exists()


def test_the_processor_has_a_name() -> None:
    assert demo.cpu_name().strip()


def test_too_few_books_are_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(demo, "load", lambda name: pytest.fail("loaded a model"))
    with pytest.raises(ValueError, match="--corpus"):
        demo.run_demo(tokens=1_000_000, out=tmp_path)


def test_the_whole_demo_on_a_tiny_model(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(demo, "load", lambda name: (tiny_model(), byte_tokenizer()))
    monkeypatch.setattr(demo, "NiahConfig", functools.partial(NiahConfig, facts_per_kind=2, depths=3))
    monkeypatch.setattr(demo, "FEWEST_TOKENS", 6_000)
    monkeypatch.setattr(demo, "_TRIAL_TOKENS", 512)
    monkeypatch.setattr(demo, "_TIMED_TOKENS", 256)
    console = Console(file=io.StringIO(), record=True, width=120)
    out = tmp_path / "demo"
    with MemoryModel(tiny_model(), byte_tokenizer(), out / "books.everlong") as mm:
        mm.read("An earlier demo left this. " * 100)
    report = demo.run_demo(tokens=20_000, minutes=0.0, out=out, console=console)
    text = console.export_text()
    assert "0 minutes do not allow 20,000 tokens: the haystack is cut to 6,000" in text
    for expected in ("gold text alone", "window alone", "group recalled", demo.FREE_QUESTION, demo.cpu_name()):
        assert expected in text
    assert abs(report.tokens - 6_000) < 2_000
    assert len(report.at_longest()) == 6
    assert (out / "heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((out / "report.json").read_text())["tokens"] == report.tokens
    # Nothing of the earlier demo is left, and nothing that was asked was remembered.
    with MemoryModel(tiny_model(), byte_tokenizer(), out / "books.everlong") as mm:
        assert mm.stream_tokens == report.tokens
