"""The picture of a trace, from a real one and from JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

import everlong
from everlong.pictures.timeline import draw_timeline
from support import SMALL, byte_tokenizer, random_text, tiny_model

RECALLED = np.array([0xD9, 0x48, 0x01]) / 255
FRAME = np.array([0x9E, 0xCA, 0xE1]) / 255
BRANCHED = np.array([0xFD, 0xAE, 0x6B]) / 255


def shows_recall(path: Path, color: np.ndarray = RECALLED) -> bool:
    pixels = image.imread(path)[..., :3]
    axes = pixels[pixels.shape[0] // 4 :]  # the legend stands above
    return bool((np.abs(axes - color).max(axis=-1) < 0.02).sum() > 20)


def test_timeline_of_a_conversation_shows_what_came_back(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        alone = draw_timeline(mm.trace(), tmp_path / "alone.png")
        mm.generate(random_text(30), max_new_tokens=8)
        trace = json.loads(json.dumps(mm.trace()))
    assert not shows_recall(alone)
    assert shows_recall(draw_timeline(trace, tmp_path / "new" / "talk.png"))
    assert draw_timeline(trace, tmp_path / "talk.svg").read_text().startswith("<?xml")


def test_timeline_shows_what_came_back_for_a_question_that_is_not_remembered(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        alone = draw_timeline(mm.trace(), tmp_path / "alone.png")
        mm.generate(random_text(30), max_new_tokens=400, remember=False)
        events = mm.trace()
        picture = draw_timeline(events, tmp_path / "asked.png")
        assert not shows_recall(alone, BRANCHED)
        assert shows_recall(picture, BRANCHED)
        assert not shows_recall(picture)
    # What left the frame for it came back: only the recall is drawn, and it stands where the stream stood.
    assert any(event["what"] == "evict" and event["branched_at"] == 2000 for event in events)
    assert max(event["stream_position"] for event in events) > 2000
    drawn = [event for event in events if event["branched_at"] is None or event["what"] == "restore"]
    drawn = [event if event["branched_at"] is None else {**event, "stream_position": 2000} for event in drawn]
    svg = draw_timeline(events, tmp_path / "asked.svg").read_bytes()
    assert draw_timeline(drawn, tmp_path / "drawn.svg").read_bytes() == svg


def test_timeline_of_a_memory_that_was_opened_again_has_no_frame_before_that(tmp_path: Path) -> None:
    for name in ("first", "again"):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
            if name == "first":
                mm.read(random_text(2000))
            picture = image.imread(draw_timeline(mm.trace(), tmp_path / f"{name}.png"))[..., :3]
        in_the_frame = np.abs(picture - FRAME).max(axis=-1) < 0.02
        left = in_the_frame[picture.shape[0] // 2 :, : picture.shape[1] // 2]  # the legend stands above
        assert in_the_frame.any()
        assert left.any() == (name == "first")


def test_timeline_marks_what_came_from_another_stream_at_the_foot(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        mm.generate(random_text(30), max_new_tokens=8)
        events = mm.trace()
    own = draw_timeline(events, tmp_path / "own.svg").read_text()
    for event in events:
        for run in event["restored"]:
            run["stream"] += 1
    assert "recalled from another stream" not in own
    assert "recalled from another stream" in draw_timeline(events, tmp_path / "other.svg").read_text()


def test_timeline_shows_signals_and_those_of_which_nothing_came(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        without = draw_timeline(mm.trace(), tmp_path / "without.svg").read_text()
        mm.signal("retrieve")  # the default policy heeds none
        events = mm.trace()
    assert [event["what"] for event in events[-2:]] == ["retrieve signal", "signal passed over"]
    hollow = draw_timeline(events, tmp_path / "hollow.svg").read_text()
    filled = draw_timeline(events[:-1], tmp_path / "filled.svg").read_text()
    assert "signal (hollow" not in without
    assert "signal (hollow" in hollow
    assert hollow != filled


def test_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        draw_timeline([], tmp_path / "none.png")


def test_timeline_shows_of_which_blocks_tokens_are_kept(tmp_path: Path) -> None:
    from everlong.pictures.timeline import _kept_strokes

    def event(what: str, at: int, begin: int, end: int, tokens: int) -> dict[str, object]:
        return {"what": what, "stream_position": at, "begin": begin, "end": end, "tokens": tokens, "branched_at": None}

    events = [
        event("trim", 100, 0, 100, 16),
        event("trim", 200, 100, 200, 16),
        event("trim again", 300, 0, 100, 8),
        event("kept dropped", 500, 0, 100, 0),
    ]
    # What lies before 60 left when the stream stood at 250.
    strokes = _kept_strokes(events, [0, 250, 600], [0, 60, 60], 600)
    assert strokes == [(250, 300, 50.0, 2.0), (300, 500, 50.0, pytest.approx(1.2))]
    kept = np.array([0x31, 0x82, 0xBD]) / 255
    config = SMALL.changed(frame={"kept_tokens": 64})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(2000))
        picture = draw_timeline(mm.trace(), tmp_path / "kept.png")
    assert shows_recall(picture, kept)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        assert not shows_recall(draw_timeline(mm.trace(), tmp_path / "alone.png"), kept)
