"""The picture of a trace, from a real one and from JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

import everlong
from everlong.eval.timeline import draw_timeline
from test_exactness import SMALL, random_text
from tiny_models import byte_tokenizer, tiny_model

RECALLED = np.array([0xD9, 0x48, 0x01]) / 255


def shows_recall(path: Path) -> bool:
    pixels = image.imread(path)[..., :3]
    axes = pixels[pixels.shape[0] // 4 :]  # the legend stands above
    return bool((np.abs(axes - RECALLED).max(axis=-1) < 0.02).sum() > 20)


def test_timeline_of_a_conversation_shows_what_came_back(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(2000))
        blocks = {block.id: block.span for block in mm.memory.blocks()}
        alone = draw_timeline(mm.trace(), blocks, tmp_path / "alone.png")
        mm.generate(random_text(30), max_new_tokens=8)
        trace = json.loads(json.dumps(mm.trace()))
        blocks = json.loads(json.dumps(blocks))
    assert not shows_recall(alone)
    assert shows_recall(draw_timeline(trace, blocks, tmp_path / "new" / "talk.png"))
    assert draw_timeline(trace, blocks, tmp_path / "talk.svg").read_text().startswith("<?xml")


def test_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        draw_timeline([], {}, tmp_path / "none.png")
