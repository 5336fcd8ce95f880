"""A text that comes again in pieces: what is new of it, and that each of its tokens is looked at a few times."""

from __future__ import annotations

import itertools
import json
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.memory import readings
from everlong.memory.readings import Readings


def begun(*earlier: list[int]) -> Readings:
    """Readings of a memory that holds texts which were cut short, and a text of their name that begins."""
    ends = list(itertools.accumulate(map(len, earlier), initial=0))
    spans = list(itertools.pairwise(ends))
    stream = np.array(list(itertools.chain(*earlier)), dtype=np.int32)
    blocks = types.SimpleNamespace(
        stream_end=lambda _: len(stream),
        infos=lambda source: [types.SimpleNamespace(stream=0, begin=begin, end=end) for begin, end in spans],
        token_ids=lambda _, begin, end: stream[begin:end],
    )
    jobs = {"readings": json.dumps({"0": [[list(span)] for span in spans]})}
    core: Any = types.SimpleNamespace(
        manifest=lambda: types.SimpleNamespace(attributes=jobs),
        set_attribute=lambda *_: None,
        read_only=False,
        blocks=blocks,
    )
    found = Readings(core, 0)
    found.begin("a text", len(stream))
    return found


IDS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@given(earlier=st.lists(IDS, max_size=4), text=IDS, cuts=st.lists(st.integers(0, 12), max_size=6))
def test_what_is_new_does_not_depend_on_the_pieces(earlier: list[list[int]], text: list[int], cuts: list[int]) -> None:
    found = begun(*earlier)
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    new = [found.unread(torch.tensor(text[first:last])) for first, last in itertools.pairwise(places)]
    alike = [held for held in earlier if held[: len(text)] == text[: len(held)]]
    longest = max(map(len, alike), default=0)
    assert torch.cat(new).tolist() == text[longest:]
    if longest <= len(text):
        assert found.resumed == longest


class CountingTorch:
    """Torch, and how many numbers its `cat` copied and its `equal` compared."""

    def __init__(self) -> None:
        self.touched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def cat(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        self.touched += sum(map(len, tensors))
        return torch.cat(tensors)

    def equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        self.touched += len(a)
        return torch.equal(a, b)


@pytest.mark.parametrize("ending", ["within", "behind", "otherwise"])
def test_a_known_text_in_many_pieces_is_looked_at_once(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = list(range(6000))
    found = begun(text, text[:3000])
    counting = CountingTorch()
    monkeypatch.setattr(readings, "torch", counting)
    given = {"within": text[:-1], "behind": [*text, 7, 8], "otherwise": [*text[:-1], 7]}[ending]
    new = [found.unread(torch.tensor(given[first : first + 2])) for first in range(0, len(given), 2)]
    expected = {"within": [], "behind": [7, 8], "otherwise": given[3000:]}[ending]
    assert torch.cat(new).tolist() == expected
    assert counting.touched <= 4 * len(text)
