"""What comes back arrives layer by layer, and the frame is as if all had been there at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.errors import CorruptMemoryError, MemoryBusyError
from everlong.frame.kv_frame import KvFrame
from everlong.kv_cache.page_loading import LayerGroup, LayerRead, PageLoad
from support import ARCHITECTURES, SMALL, byte_tokenizer, random_text, tiny_model
from support.transfer import store_beside

TEXT = random_text(1500)
SPANS = [(700, 760), (200, 260), (400, 440)]


def recall(mm: everlong.MemoryModel, temperatures: list[float] | None = None) -> KvFrame:
    """Bring three places back, the last of which is read again."""
    frame = mm.frame
    assert isinstance(frame, KvFrame)
    frame.begin_prompt()
    pages = [page for span in SPANS for page in mm.memory.core.blocks.pages_of(0, *span)]
    frame.recall(pages, temperatures or [])
    return frame


def layers_of(frame: KvFrame) -> list[tuple[int, int]]:
    """The first and the last layer of each part of the newest recall, in the order in which they arrived."""
    return [(part.first_layer, part.last_layer) for part in frame.zones.pages.arrived]


def recalled(
    kind: str, rope: str, part_bytes: int, codec: str = "fp32"
) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
    """What the frame holds after a recall and a question, its logits, and the layers that arrived at once."""
    config = SMALL.changed(archive={"codec": codec})
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        assert isinstance(mm.frame, KvFrame)
        mm.frame.zones.pages.part_bytes = part_bytes
        with mm.frame.branch():
            pages = sum(len(mm.memory.core.blocks.pages_of(0, *span)) for span in SPANS)
            frame = recall(mm, [1.5] * pages)
            logits = frame.extend(torch.arange(40), "prompt", logits=True)
            cache = frame.cache
            held = [x.clone() for x in (cache.k, cache.v, cache.cos, cache.sin, logits)]
            assert cache.arriving is None
        return held, layers_of(frame)


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_layer_by_layer_is_all_at_once(kind: str, rope: str) -> None:
    expected, whole = recalled(kind, rope, 1 << 40)
    found, layers = recalled(kind, rope, 1)
    assert len(whole) == 1
    assert layers == [(layer, layer) for layer in range(whole[0][1] + 1)]
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("codec", ["e4m3", "int4"])
def test_in_any_batches_and_codec(monkeypatch: pytest.MonkeyPatch, codec: str, copies: bool) -> None:
    expected, _ = recalled("llama", "default", 1 << 40, codec)
    store_beside(monkeypatch, copies)
    monkeypatch.setattr("everlong.frame.transfer.BATCH_BYTES", 20_000)
    found, layers = recalled("llama", "default", 1, codec)
    assert len(layers) >= 3
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_layer_of_a_forward_waits_for_itself_alone() -> None:
    """While it computes, its own slots are filled, and those of the layers behind it are not."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(TEXT)
        assert isinstance(mm.frame, KvFrame)
        cache, pages = mm.frame.cache, mm.frame.zones.pages
        pages.part_bytes = 1
        seen: list[torch.Tensor] = []

        def look(*_: Any) -> None:
            if cache.arriving is not None:
                seen.append(cache.k[:, :, : cache.end].clone())

        with mm.frame.branch():
            cache.k[:, :, : cache.rolling_slot].zero_()
            hooks = [layer.mlp.register_forward_hook(look) for layer in mm.model.model.layers]
            recall(mm)
            for hook in hooks:
                hook.remove()
            first = cache.rolling_slot - cache.recalled
            whole = cache.k[:, :, first : first + 60]
    # The last place is read in one chunk of 64 tokens, which passes each layer once.
    assert len(seen) == len(cache.k)
    for layer, at in enumerate(seen):
        there = [torch.equal(at[other, :, first : first + 60], whole[other]) for other in range(len(whole))]
        assert there == [other <= layer for other in range(len(whole))]
        assert not at[layer + 1 :, :, first : first + 60].any()


def test_what_is_damaged_is_told_and_leaves_a_frame_that_works(tmp_path: Path) -> None:
    config = SMALL.changed(archive={"host_bytes": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(TEXT)
        assert isinstance(mm.frame, KvFrame)
        mm.frame.zones.pages.part_bytes = 1
        with mm.frame.branch():
            expected = mm.frame.extend(torch.arange(40), "prompt")
        (page, *_) = mm.memory.core.blocks.pages_of(0, *SPANS[1])
        payload = np.empty(mm.memory.core.page_bytes(page.end - page.begin), dtype=np.uint8)
        mm.memory.core.blocks.read_pages([page], payload)
        (segment,) = (tmp_path / "m" / "segments").iterdir()
        last_layer = len(payload) * 2 // 3
        at = segment.read_bytes().index(payload.tobytes()) + last_layer
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(bytes([payload[last_layer] ^ 1]))
        with mm.frame.branch():
            with pytest.raises(CorruptMemoryError, match="checksum"):
                recall(mm)
            assert mm.frame.cache.arriving is None
            assert mm.frame.cache.recalled == 0
        assert layers_of(mm.frame) == [(0, 0), (1, 1)]
        with mm.frame.branch():
            assert torch.equal(mm.frame.extend(torch.arange(40), "prompt"), expected)


def test_questions_at_once_wait_each_for_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Forwards of several frames are one, whose layers wait for what each frame is brought back."""
    monkeypatch.setattr("everlong.frame.pages._PART_BYTES", 1)
    text = random_text(4000)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=SMALL) as mm:
        mm.read(text)
        assert isinstance(mm.frame, KvFrame)
        questions = [text[at : at + 30] for at in (300, 1300, 2300)]
        expected, by_layer = [], 0
        for one in questions:
            expected.append(mm.generate(one, max_new_tokens=8, remember=False))
            by_layer += layers_of(mm.frame) == [(0, 0), (1, 1), (2, 2)]
        found = mm.answer_many(questions, max_new_tokens=8)
    assert by_layer > 1
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert all(one.recalled for one in found)


def test_a_deep_model_arrives_in_some_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong.frame.pages._PART_BYTES", 1)
    monkeypatch.setattr("everlong.frame.pages._MOST_PARTS", 2)
    _, layers = recalled("llama", "default", 1)
    assert layers == [(0, 1), (2, 2)]


class Disk:
    """Starts parts of a single run of bytes, and says that their blocks were coded anew when it is told to."""

    def __init__(self, busy: list[int]) -> None:
        self.busy = busy  # layers whose next wait fails
        self.planned: list[int] = []
        self.under_way = 0
        self.most = 0
        self.written: list[int] = []

    def plan(self, first: int) -> Iterator[LayerGroup]:
        self.planned.append(first)
        return (LayerGroup(range(layer, layer + 1), "fp32", (), 10) for layer in range(first, 6))

    def start(self, part: LayerGroup) -> LayerRead:
        disk, layer = self, part.layers.start
        disk.under_way += part.bytes
        disk.most = max(disk.most, disk.under_way)

        class Reads:
            def wait(self) -> None:
                disk.under_way -= part.bytes
                if layer in disk.busy:
                    disk.busy.remove(layer)
                    disk.under_way = 0  # what else is under way is given up
                    raise MemoryBusyError("coded anew")

        staged: Any = None
        reads: Any = Reads()
        return LayerRead(part, staged, torch.zeros(0, 6), reads, 0.0)

    def write(self, reading: LayerRead) -> None:
        self.written.append(reading.part.layers.start)

    def arriving(self) -> PageLoad:
        return PageLoad(self.plan, self.start, self.write, most_bytes=30)


def test_as_much_is_read_ahead_as_may_be() -> None:
    disk = Disk([])
    arriving = disk.arriving()
    assert (disk.under_way, disk.written) == (30, [])
    arriving.until(0)
    assert (disk.under_way, disk.written) == (30, [0])
    arriving.until(0)
    arriving.until(3)
    assert disk.written == [0, 1, 2, 3]
    arriving.settle()
    assert disk.written == [*range(6)]
    assert disk.most == 30
    assert [part.first_layer for part in arriving.arrived] == [*range(6)]


def test_what_is_coded_anew_meanwhile_is_read_again_from_there() -> None:
    disk = Disk([2, 4])
    arriving = disk.arriving()
    arriving.until(5)
    assert disk.planned == [0, 2, 4]
    assert disk.written == [*range(6)]
    again = Disk([2, 2]).arriving()
    again.until(1)
    with pytest.raises(MemoryBusyError):
        again.until(2)
