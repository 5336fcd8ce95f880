"""The frame against a plain transformers forward: what fits must be the same, what came back from the archive too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import everlong
from tiny_models import TINY_KINDS, byte_tokenizer, tiny_model

TOLERANCE = 1e-4
WIDE = 1536

SMALL = everlong.MemoryConfig(
    frame_tokens=1024,
    sink_tokens=8,
    recalled_tokens=256,
    rolling_tokens=256,
    evict_tokens=64,
    block_tokens=128,
    chunk_tokens=64,
    codec="fp32",
)


def random_text(count: int, seed: int = 1) -> str:
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (count,), generator=generator).tolist()
    return "".join(map(chr, letters))


def plain_logits(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0]


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_frame_that_holds_everything_is_the_plain_forward(kind: str, rope: str, chunk: int) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    config = dataclasses.replace(SMALL, chunk_tokens=chunk)
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        ids = mm._encode(random_text(200))
        logits = mm.frame.extend(ids, "read", logits=True)
    assert (logits - plain_logits(model, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_everything_archived_and_restored_is_the_plain_forward(kind: str, rope: str, tmp_path: Path) -> None:
    """Read with a frame that holds all; reopen with one that holds a third; bring the rest back in order of time."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    text, rest = random_text(600), random_text(40, seed=2)
    rolling = 128
    all_resident = dataclasses.replace(SMALL, rolling_tokens=640, recalled_tokens=0, frame_tokens=WIDE)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=all_resident) as mm:
        mm.read(text)
        ids = torch.cat([mm._encode(text), mm._encode(rest)])
    expected = plain_logits(model, ids)[-40:]

    # A reopened frame takes back as much of the earlier one's rolling zone as it can hold.
    kept = rolling + SMALL.evict_tokens - 1
    gone = 600 - SMALL.sink_tokens - kept
    small = dataclasses.replace(SMALL, rolling_tokens=rolling, recalled_tokens=gone, frame_tokens=WIDE)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=small) as mm:
        assert mm.frame.os.rolling == (600 - kept, 600)
        mm.frame.recall(mm.memory.core.pages_of(0, 0, 600))
        assert mm.frame.os.recalled_tokens == gone
        logits = mm.frame.extend(mm._encode(rest), "read", logits=True)
    assert (logits - expected).abs().max() <= TOLERANCE


def test_without_the_recalled_pages_the_same_frame_differs(tmp_path: Path) -> None:
    """The control of the test above: what comes back is what makes it equal."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    text, rest = random_text(600), random_text(40, seed=2)
    all_resident = dataclasses.replace(SMALL, rolling_tokens=640, recalled_tokens=0, frame_tokens=WIDE)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=all_resident) as mm:
        mm.read(text)
        ids = torch.cat([mm._encode(text), mm._encode(rest)])
    expected = plain_logits(model, ids)[-40:]
    small = dataclasses.replace(SMALL, rolling_tokens=128, recalled_tokens=464, frame_tokens=WIDE)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=small) as mm:
        logits = mm.frame.extend(mm._encode(rest), "read", logits=True)
    assert (logits - expected).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_chunk_sizes_agree_across_evictions(kind: str, rope: str) -> None:
    """The same evictions, reached in chunks of 1, 16 and 64 tokens, leave the same frame."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    text = random_text(768)
    frames = []
    for chunk in (1, 16, 64):
        # Sinks of one chunk's length put the evictions at the same tokens whatever the chunk.
        config = dataclasses.replace(SMALL, chunk_tokens=chunk, sink_tokens=64)
        with everlong.MemoryModel(model, tokenizer, config=config) as mm:
            mm.read(text)
            cache = mm.frame.cache
            frames.append((cache.length, cache.k[:, :, cache.begin : cache.end].clone()))
    assert len({length for length, _ in frames}) == 1
    for _, keys in frames[1:]:
        assert (keys - frames[0][1]).abs().max() <= TOLERANCE


def test_rebased_frame_agrees_with_plain_forward_of_its_tokens() -> None:
    """After 1,000 evictions the keys in rolling carry the rotation of their present position, to 1e-3."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    config = dataclasses.replace(
        SMALL, rolling_tokens=64, block_tokens=32, evict_tokens=4, chunk_tokens=4, recalled_tokens=64
    )
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read(random_text(4200))
        cache, os = mm.frame.cache, mm.frame.os
        evictions = sum(event["what"] == "evict" for event in os.trace())
        assert evictions >= 1000
        table = mm.frame.served.rope
        first = os.next_position() - cache.rolling_slots
        positions = torch.arange(first, os.next_position(), dtype=torch.float64)
        angles = positions[:, None] * table.inv_freq
        rolling = slice(cache.rolling_slot, cache.end)
        assert (cache.cos[rolling] - angles.cos()).abs().max() <= 1e-3
        assert (cache.sin[rolling] - angles.sin()).abs().max() <= 1e-3


def test_branch_leaves_no_trace() -> None:
    """Questions that overflow the frame and recall leave buffers, counters and memory as they were."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        mm.read(random_text(1500))
        cache = mm.frame.cache
        visible = slice(cache.begin, cache.end)
        before = (cache.begin, cache.end, cache.k[:, :, visible].clone(), cache.v[:, :, visible].clone())
        blocks, end = mm.memory.stats().blocks, mm.stream_tokens
        first = mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False)
        mm.perplexity(random_text(700, seed=4), policy="recent")
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, visible], before[2])
        assert torch.equal(cache.v[:, :, visible], before[3])
        assert (mm.memory.stats().blocks, mm.stream_tokens) == (blocks, end)
        again = mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False)
    assert first == again


def test_generation_is_transformers_own_while_everything_fits() -> None:
    model, tokenizer = tiny_model("qwen3"), byte_tokenizer()
    prompt = random_text(50)
    ids = torch.tensor(tokenizer(prompt)["input_ids"])[None]
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        answer = mm.generate(prompt, max_new_tokens=40)
        pieces = "".join(mm.stream(prompt, max_new_tokens=5, remember=False))
    assert answer.text == tokenizer.decode(expected[0, 50:], skip_special_tokens=True)
    assert answer.tokens == expected.shape[1] - 50
    assert pieces != ""
