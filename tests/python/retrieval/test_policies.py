"""What comes back when, through a model: named pages, the newest blocks, signals."""

from __future__ import annotations

import pytest

import everlong
from everlong.config.answer import Policy
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.traces import blocks_of

TEXT = random_text(1500)
WORDS = SMALL.changed(search={"index": ("lexical",)})


@pytest.mark.parametrize("policy", ["off", "prompt", "recent", "periodic", "signal"])
def test_named_pages_come_back_whatever_the_policy(policy: Policy) -> None:
    config = WORDS.changed(answer={"policy": policy, "recent_every": 4, "periodic_every": 4, "protect_tokens": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        pages = mm.memory.core.blocks.pages_of(0, 200, 260)
        answer = mm.generate("and then", max_new_tokens=12, recall=pages)
        restored = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0]
        assert [blocks_of(event) for event in restored] == [sorted({page.block for page in pages})]
        assert mm.frame.os.recalled_tokens == sum(page.end - page.begin for page in pages)
        assert answer.recalled == ()


def test_the_newest_blocks_come_back_whole() -> None:
    """As many as the policy names, though they are more than the recalled zone of a question."""
    config = WORDS.changed(answer={"policy": "recent", "recent_every": 8, "recall_mode": "kv"})
    assert config.answer.recent_blocks * config.archive.block_tokens > config.frame.recalled_tokens
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        begin = mm.frame.os.rolling[0]
        mm.generate("and then", max_new_tokens=9)
        newest = [block.id for block in mm.memory.blocks() if block.span[1] <= begin][-config.answer.recent_blocks :]
        restored = [event for event in mm.trace() if event["what"] == "restore"]
        assert blocks_of(restored[-1]) == newest
        assert restored[-1]["tokens"] == config.answer.recent_blocks * config.archive.block_tokens


def test_a_zone_for_the_newest_blocks_is_no_larger_than_the_frame() -> None:
    config = SMALL.changed(answer={"policy": "recent", "recent_blocks": 20})
    assert SMALL.recalled_zone_tokens == SMALL.frame.recalled_tokens
    others = (
        config.frame.sink_tokens + config.frame.rolling_tokens + config.frame.evict_tokens + config.frame.chunk_tokens
    )
    assert config.recalled_zone_tokens == config.frame.tokens - others
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)


def test_a_signal_asks_for_the_newest_tokens_whoever_wrote_them() -> None:
    config = WORDS.changed(
        archive={"block_tokens": 64}, search={"neighbours": 0}, answer={"policy": "signal", "protect_tokens": 0}
    )
    text = f"{TEXT[:400]}QUARTZ{TEXT[400:1400]}QUARTZ"
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        mm.signal("retrieve")  # nothing was said yet: by the text that was read
        assert any("QUARTZ" in recall.text for recall in mm.last_recalled)
        recalled = mm.last_recalled
        mm.generate(TEXT[100:140], max_new_tokens=2, remember=False)
        mm.frame.clear_recalled()
        mm.signal("retrieve")
        assert mm.last_recalled == recalled, "a question without a trace is not asked again"
