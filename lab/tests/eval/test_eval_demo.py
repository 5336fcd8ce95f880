"""The demo's own decisions, and the whole of it on a tiny model."""

import dataclasses
import functools
import io
import json
import pathlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from everlong import MemoryModel
from everlong.cli.app import app
from everlong.data import Book, shipped_books
from everlong.models.hardware import processor
from everlong_lab.data.books import TooFewTokensError
from everlong_lab.eval import demo
from everlong_lab.eval.niah import NiahAnswer, NiahConfig, NiahReport, summarise
from support import byte_tokenizer, tiny_model

ASKED = NiahAnswer(
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


PACE = demo.Pace(tokens_per_second=1_000.0, seconds_per_question=5.0, seconds_with_memory=2.0)


def test_pace_leaves_time_for_the_questions() -> None:
    config = NiahConfig(tokens=250_000, facts_per_kind=10, depths=10)
    more = dataclasses.replace(config, facts_per_kind=11)
    full, fuller = (PACE.tokens_within(480.0, one) for one in (config, more))
    # 30 facts three ways; before that 7.5 and 10 of them with the memory, at a quarter and half of the tokens.
    asking = demo.ASKING_LATER * (30 * 5 + 17.5 * 2)
    reading = 480 - demo.CALIBRATION_SECONDS - demo.REST_SECONDS - asking
    assert full == pytest.approx(1_000 * reading / demo.READING_LATER, abs=1)
    longer = demo.ASKING_LATER * (3 * 5 + 0.75 * 2)
    assert full - fuller == pytest.approx(1_000 * longer / demo.READING_LATER, abs=1)
    assert PACE.tokens_within(1.0, config) == 0


@given(seconds=st.floats(0, 2_000), tokens=st.integers(1, 1_000_000), facts=st.integers(1, 20))
def test_what_is_cut_fits_or_is_the_least_that_proves_something(seconds: float, tokens: int, facts: int) -> None:
    whole = NiahConfig(tokens=tokens, facts_per_kind=facts)
    config = PACE.fitted(whole, seconds)
    least = min(demo.FEWEST_FACTS, facts)
    assert least <= config.facts_per_kind <= facts
    assert min(demo.FEWEST_TOKENS, tokens) <= config.tokens <= tokens
    if config.tokens > demo.FEWEST_TOKENS or config.facts_per_kind > least:
        assert PACE.tokens_within(seconds, config) >= min(config.tokens, demo.FEWEST_TOKENS)
    if config.facts_per_kind < facts:
        more = dataclasses.replace(config, facts_per_kind=config.facts_per_kind + 1)
        assert PACE.tokens_within(seconds, more) < demo.FEWEST_TOKENS
    if PACE.tokens_within(seconds, whole) >= max(tokens, demo.FEWEST_TOKENS):
        assert config == whole


def test_only_a_memory_is_ever_removed(tmp_path: pathlib.Path) -> None:
    demo.remove_memory(tmp_path / "missing")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="no memory"):
        demo.remove_memory(precious)
    assert (precious / "thesis.txt").exists()
    (precious / "manifest.json").write_text("{}")
    demo.remove_memory(precious)
    assert not precious.exists()


def test_too_few_books_are_read_again_under_other_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Enough of them for any tokenizer: how many characters it has a token, the haystack finds out."""
    own = tmp_path / "corpus"
    own.mkdir()
    (own / "a.txt").write_text("x" * 1_000_000)
    (own / "b.txt").write_text("y" * 1_000_000)
    shipped = shipped_books()
    (own / f"{shipped[0].name}.txt").write_text("another edition")
    have = sum(len(book.text) for book in shipped)

    def plan(books: list[Book], characters_a_token: int, config: NiahConfig) -> list[Book]:
        found = sum(len(book.text) // characters_a_token for book in books)
        if found < config.tokens:
            raise TooFewTokensError(found, config.tokens)
        return books

    def planned(tokens: int, characters_a_token: int, corpus: pathlib.Path | None) -> tuple[list[Book], int]:
        return demo.haystack_over(shipped, corpus, characters_a_token, NiahConfig(tokens=tokens))

    monkeypatch.setattr(demo, "plan_haystack", plan)
    assert planned(100_000, 4, None) == (shipped, 1)
    assert planned(have // 6, 6, own)[1] == 1
    books, readings = planned((have + 500_000) // 6, 6, own)  # one more of the corpus will do
    assert ([book.name for book in books], readings) == ([*(book.name for book in shipped), "a"], 1)
    for corpus, once in ((own, len(shipped) + 2), (None, len(shipped))):
        tokens = 1_000_000
        books, readings = planned(tokens, 6, corpus)
        assert len({book.name for book in books}) == len(books) == readings * once
        assert sum(len(book.text) for book in books) >= 6 * tokens
        assert sum(len(book.text) for book in books[:-once]) < 6 * tokens
        assert {book.text for book in books} == {book.text for book in books[:once]}


@pytest.fixture(name="loaded")
def a_tiny_demo(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Six facts in 6,000 tokens for a tiny model; how it was loaded."""
    loaded: list[dict[str, object]] = []

    def load(name: str, **how: object) -> tuple[object, object]:
        loaded.append(how)
        return tiny_model(), byte_tokenizer()

    monkeypatch.setattr(demo, "load", load)
    monkeypatch.setattr(demo, "NiahConfig", functools.partial(NiahConfig, facts_per_kind=2, depths=3))
    monkeypatch.setattr(demo, "FEWEST_TOKENS", 6_000)
    monkeypatch.setattr(demo, "_TRIAL_TOKENS", 512)
    monkeypatch.setattr(demo, "_TIMED_TOKENS", 256)
    return loaded


@pytest.mark.slow
def test_the_demo_prints_json_and_nothing_else(loaded: list[dict[str, object]], tmp_path: pathlib.Path) -> None:
    arguments = ["demo", "--minutes", "0", "--out", str(tmp_path), "--dtype", "float32", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert len(loaded) == 1
    assert json.loads(result.stdout) == json.loads((tmp_path / "report.json").read_text())


@pytest.mark.slow
def test_the_whole_demo_on_a_tiny_model(loaded: list[dict[str, object]], tmp_path: pathlib.Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=120)
    out = tmp_path / "demo"
    with MemoryModel(tiny_model(), byte_tokenizer(), out / "books.everlong") as mm:
        mm.read("An earlier demo left this. " * 100)
    report = demo.run_demo(tokens=20_000, minutes=0.0, out=out, console=console, dtype="float32")
    assert loaded == [{"dtype": "float32"}]
    text = console.export_text()
    assert "0 minutes do not allow 20,000 tokens and 6 facts: cut to 6,000 and 6" in text
    assert "less would prove little" in text
    for expected in ("gold text alone", "window alone", "group recalled", demo.FREE_QUESTION, processor()):
        assert expected in text
    _, answer, *citations = text.partition(demo.FREE_QUESTION)[2].split("\n")
    assert answer.startswith("A: ")
    cited = [line for line in citations if ", score " in line]
    assert cited
    assert all(any(book.name in line for book in shipped_books()) for line in cited)
    assert abs(report.tokens - 6_000) < 2_000
    assert len(report.at_longest()) == 6
    assert (out / "heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((out / "report.json").read_text())["tokens"] == report.tokens
    # Nothing of the earlier demo is left, and nothing that was asked was remembered.
    with MemoryModel(tiny_model(), byte_tokenizer(), out / "books.everlong") as mm:
        assert mm.stream_tokens == report.tokens


def test_tokens_that_are_named_are_all_read(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    class PlannedError(Exception):
        pass

    planned: list[NiahConfig] = []

    def plan(books: list[Book], tokenizer: object, config: NiahConfig) -> object:
        characters = sum(len(book.text) for book in books)
        if characters < 6 * config.tokens:  # a tokenizer of longer words than most
            raise TooFewTokensError(characters // 6, config.tokens)
        planned.append(config)
        return SimpleNamespace(tokens=config.tokens)

    def stop(*_: object) -> None:
        raise PlannedError

    monkeypatch.setattr(demo, "load", lambda name: (tiny_model(), byte_tokenizer()))
    monkeypatch.setattr(demo, "measure_pace", lambda *_: demo.Pace(1.0, 1.0, 1.0))
    monkeypatch.setattr(demo, "plan_haystack", plan)
    monkeypatch.setattr(demo, "check_capacity", stop)
    console = Console(file=io.StringIO(), record=True, width=120)
    with pytest.raises(PlannedError):
        demo.run_demo(tokens=1_000_000, out=tmp_path, console=console)
    assert (planned[-1].tokens, planned[-1].facts_per_kind) == (1_000_000, 10)
    assert "times over" in console.export_text()
    with pytest.raises(PlannedError):
        demo.run_demo(out=tmp_path, console=console)
    assert planned[-1].tokens == demo.FEWEST_TOKENS
    assert "times over" not in console.export_text()
