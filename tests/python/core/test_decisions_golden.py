"""What the Memory OS decides is what it decided when tests/data/decisions.json was written (support/os_streams.py)."""

from __future__ import annotations

import json

import pytest

from support import TESTS
from support.os_streams import STREAMS, decisions

RECORDED = json.loads((TESTS / "data" / "decisions.json").read_text())


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_decisions(name: str) -> None:
    decided = decisions(name)
    assert decided["events"] == RECORDED[name]["events"]
    assert decided["sha256"] == RECORDED[name]["sha256"], "as many events of each kind, but not the same"


def test_every_stream_is_recorded() -> None:
    assert list(RECORDED) == list(STREAMS)
    assert len(RECORDED) == 40
