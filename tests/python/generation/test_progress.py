"""What takes long says so: a function that is told how far a reading is, and INFO messages of the logger "everlong"."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.generation.progress import track_tokens
from everlong.text.progress import report_until, show_working
from support import SMALL, byte_tokenizer, changed, random_text, tiny_model


def opened(folder: Path | None = None, **changes: Any) -> everlong.MemoryModel:
    kind = changes.pop("kind", ("llama", "default"))
    return everlong.MemoryModel(tiny_model(*kind), byte_tokenizer(), folder, changed(SMALL, **changes))


@pytest.mark.slow
def test_a_function_is_told_how_far_a_reading_is() -> None:
    told: list[tuple[int, int | None]] = []
    with opened() as mm:
        text = random_text(60_000)
        report = mm.read([text[:30_000], text[30_000:]], progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (report.tokens, report.tokens) == (60_000, 60_000)
        counts = [done for done, _ in told]
        assert counts == sorted(counts)
        assert counts[0] == SMALL.frame.chunk_tokens
        totals = [total for _, total in told]
        assert totals[0] is None
        first = totals.index(60_000)
        assert set(totals[:first]) == {None}
        assert set(totals[first:]) == {60_000}
        told.clear()
        mm.read("", progress=lambda done, total: told.append((done, total)))
        assert told == [(0, 0)]


def test_what_a_progress_function_raises_ends_the_reading_and_what_was_read_is_kept() -> None:
    class EnoughError(Exception):
        pass

    def stop(done: int, total: int | None) -> None:
        if done >= 256:
            raise EnoughError

    with opened() as mm:
        text = random_text(1000)
        with pytest.raises(EnoughError):
            mm.read(text, source="book", progress=stop)
        assert mm.memory.stats().tokens == mm.stream_tokens == 256
        report = mm.read(text, source="book")
        assert (report.tokens, report.resumed_tokens) == (744, 256)


def test_a_progress_function_may_not_call_the_memory_that_reads() -> None:
    with opened() as mm:
        with pytest.raises(everlong.MemoryBusyError):
            mm.read(random_text(300), progress=lambda done, total: mm.read("more"))
        assert mm.memory.stats().tokens == mm.stream_tokens


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "everlong"]


def test_a_calibration_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everlong")
    with opened() as mm:
        mm.read(random_text(2000))
        mm.calibrate()
        assert mm.profile is not None
        begun, done = messages(caplog)
        assert begun.startswith(f"calibrating: looking for the model's retrieval heads in {mm.memory.stats().pages} ")
        assert done.startswith("calibrated in ")
        assert str(mm.profile.heads) in done


def test_waiting_for_the_encoder_is_logged_where_it_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "everlong")
    import everlong.retrieval.background as background

    class Encoder:
        name = "letters"

        def encode(self, sentences: list[str]) -> np.ndarray[Any, Any]:
            return np.array([[1.0, *np.bincount([len(text) % 7], minlength=7)] for text in sentences], dtype=np.float32)

    config = {"index": ("lexical", "embedding"), "encoder": Encoder()}
    with opened(**config) as mm:
        mm.read(random_text(1500))
        assert mm.searcher.embedder is not None
        mm.searcher.embedder.settle()
        caplog.clear()
        mm.searcher.embedder.settle()
        assert messages(caplog) == []
        monkeypatch.setattr(background, "_SOON", 0)  # whatever it takes is too long
        mm.recall(random_text(30))
        assert [text.split(" ")[0] for text in messages(caplog)] in ([], ["waiting", "waited"])


def test_reading_again_after_a_crash_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    windows = ("gemma3", "nested")
    died = opened(tmp_path / "m", kind=windows)
    died.read(random_text(600))
    died.frame.extend(died.encode(random_text(600, seed=2)), "read")
    died.frame.end_of_text()
    died.memory.close()  # and not the frame, which would say where it stands
    died.frame.detach()
    caplog.set_level(logging.INFO, "everlong")
    with opened(tmp_path / "m", kind=windows) as mm:
        assert mm.stream_tokens == 1200
    begun, done = messages(caplog)
    assert begun.startswith("reading 600 tokens again")
    assert done.startswith("read them again in ")


def test_without_a_terminal_a_line_tells_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with track_tokens("a\x1b book", enabled=True, clock=lambda: now) as advance:
        assert advance is not None
        for _ in range(250):  # a tenth of a second each
            now += 0.1
            advance(512, 200_000)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    counts = [int(line.split(": ")[1].split(" of ")[0].replace(",", "")) for line in told]
    assert counts[1] - counts[0] == pytest.approx(100 * 512, abs=2 * 512)
    assert all(re.fullmatch(r"a\\x1b book: [\d,]+ of 200,000 tokens", line) for line in told)


def test_a_short_reading_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with opened() as mm:
        mm.read(random_text(300), progress=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_what_cannot_be_counted_tells_how_long_it_takes(lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    waits: list[float] = []

    def over(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > lines

    report_until("answering", over)
    assert capsys.readouterr().err.splitlines() == [f"answering: {10 * number} s" for number in range(1, lines + 1)]
    assert set(waits) == {10.0}


def test_a_sign_of_life_ends_with_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())  # and not how many there are: threads of another test may end meanwhile
    with show_working("answering", enabled=True):
        (telling,) = set(threading.enumerate()) - before
    assert not telling.is_alive()
    with show_working("answering", enabled=False):
        assert set(threading.enumerate()) <= before
    assert capsys.readouterr().err == ""


def test_a_terminal_is_shown_that_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with show_working("answering \x1b[2J[red]", enabled=True):
        pass
    shown = capsys.readouterr().err
    assert "answering \\x1b[2J[red]" in shown


def test_a_notebook_has_a_bar_of_tqdms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with track_tokens("reading", enabled=True) as advance:
        assert advance is not None
        advance(30, 100)
        advance(40, 100)
    shown = capsys.readouterr().err
    assert "reading" in shown
    assert "/100" in shown
