"""What comes back as archived KV, and what is read again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
from test_exactness import SMALL, next_logits, random_text
from tiny_models import byte_tokenizer, tiny_model

TEXT = random_text(1500)


def recalled_then_read(mode: str, spans: list[tuple[int, int]], rest: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of `rest` in a frame of sinks + the pages of these spans + nothing, and the ids of what it holds."""
    config = dataclasses.replace(SMALL, recall_mode=mode)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        core, frame = mm.memory.core, mm.frame
        with frame.branch():
            frame.execute(frame.os.begin_prompt(), None)
            pages = [page for span in spans for page in core.pages_of(0, *span)]
            frame.recall(pages)
            held = [(0, SMALL.sink_tokens), *((page.begin, page.end) for page in pages)]
            ids = torch.cat([torch.from_numpy(core.token_ids(0, *span)).long() for span in held])
            rest_ids = mm._encode(rest)
            logits = frame.extend(rest_ids, "prompt", logits=True)
    return logits, torch.cat([ids, rest_ids])


def plain_logits(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Of the last `count` of ids: sinks, then a gap of positions, then the rest, which ends where rolling begins."""
    sinks, rolling_from = SMALL.sink_tokens, SMALL.sink_tokens + SMALL.recalled_tokens
    recalled = len(ids) - sinks - count
    positions = torch.cat([torch.arange(sinks), torch.arange(rolling_from - recalled, rolling_from + count)])
    with torch.no_grad():
        logits: torch.Tensor = tiny_model()(input_ids=ids[None], position_ids=positions[None]).logits[0]
    return logits[-count:]


def test_text_that_is_read_again_is_a_plain_forward_over_it() -> None:
    spans = [(700, 760), (200, 260)]
    logits, ids = recalled_then_read("text", spans, random_text(30, seed=2))
    assert (logits - plain_logits(ids, 30)).abs().max() <= 1e-4
    as_kv, _ = recalled_then_read("kv", spans, random_text(30, seed=2))
    assert (as_kv - plain_logits(ids, 30)).abs().max() > 1e-2  # each page remembers what stood before it


def test_auto_restores_one_piece() -> None:
    auto, _ = recalled_then_read("auto", [(640, 760)], random_text(30, seed=2))
    expected, _ = recalled_then_read("kv", [(640, 760)], random_text(30, seed=2))
    assert torch.equal(auto, expected)


def test_auto_reads_the_last_of_several_pieces_again() -> None:
    """It sees the sinks and the pieces before it as the archive has them: plain transformers over just that KV."""
    spans, rest = [(700, 760), (200, 260)], random_text(30, seed=2)
    logits, _ = recalled_then_read("auto", spans, rest)

    model = tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=dataclasses.replace(SMALL, recall_mode="kv")) as mm:
        mm.read(TEXT)
        core, frame, cache = mm.memory.core, mm.frame, mm.frame.cache
        with frame.branch():
            frame.execute(frame.os.begin_prompt(), None)
            first, last = (core.pages_of(0, *span) for span in spans)
            frame.recall([*first, *last])
            before = SMALL.sink_tokens + sum(page.end - page.begin for page in first)
            k, v = (x[:, None, :, cache.begin : cache.begin + before].clone() for x in (cache.k, cache.v))
            read_again = [torch.from_numpy(core.token_ids(0, page.begin, page.end)).long() for page in last]
            ids = torch.cat([*read_again, mm._encode(rest)])
    spliced = DynamicCache()
    for layer in range(len(k)):
        spliced.update(k[layer], v[layer], layer)
    rolling_from = SMALL.sink_tokens + SMALL.recalled_tokens
    positions = torch.arange(rolling_from - (len(ids) - 30), rolling_from + 30)
    with torch.no_grad():
        expected = model(input_ids=ids[None], position_ids=positions[None], past_key_values=spliced).logits[0, -30:]
    assert (logits - expected).abs().max() <= 1e-4


def test_reading_again_leaves_no_trace() -> None:
    config = dataclasses.replace(SMALL, recall_mode="text", index=("lexical",))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        cache = mm.frame.cache
        before = (cache.begin, cache.end, cache.k[:, :, cache.begin : cache.end].clone(), mm.memory.stats())
        answers = [mm.generate(TEXT[300:330], max_new_tokens=8, remember=False) for _ in range(2)]
        assert answers[0] == answers[1]
        assert TEXT[300:330] in answers[0].recalled[0].text
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, cache.begin : cache.end], before[2])
        assert mm.memory.stats() == before[3]


def test_a_recall_that_fails_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    """Pages come back in batches; a damaged one in a later batch empties the zone, and the frame goes on."""
    config = dataclasses.replace(SMALL, host_bytes=0, index=("lexical",), recall_mode="kv")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(TEXT)
    (segment,) = (tmp_path / "m" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    damaged = slice(len(data) * 9 // 20, len(data) * 11 // 20)
    data[damaged] = bytes(255 - byte for byte in data[damaged])
    segment.write_bytes(data)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        core, frame = mm.memory.core, mm.frame
        frame._transfer.batch_bytes = 1  # every page is a batch of its own
        whole, torn = core.pages_of(0, 64, 192), core.pages_of(0, 704, 768)
        nothing = next_logits(mm, "rest")
        for repeat in range(2):
            frame.recall(whole)
            assert (next_logits(mm, "rest") - nothing).abs().max() > 1e-2
            with pytest.raises(everlong.CorruptMemoryError):
                frame.recall([*whole, *torn])
            assert frame.os.recalled_tokens == 0
            assert torch.equal(next_logits(mm, "rest"), nothing), repeat
        with frame.branch(), pytest.raises(everlong.CorruptMemoryError):
            frame.recall([*whole, *torn])
        assert torch.equal(next_logits(mm, "rest"), nothing)
        assert mm.generate(TEXT[100:130], max_new_tokens=4).recalled[0].span[0] <= 100
