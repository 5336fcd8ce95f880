"""Settings of memories that suit tiny models."""

from __future__ import annotations

from typing import Any

from everlong import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, SearchConfig
from everlong.config.settings import where_is

# A frame that a tiny model's window holds twice, for texts of some thousand tokens.
TINY_MEMORY = MemoryConfig(
    frame=FrameConfig(
        tokens=768, sink_tokens=4, recalled_tokens=256, rolling_tokens=256, evict_tokens=64, chunk_tokens=128
    ),
    archive=ArchiveConfig(block_tokens=128, codec="fp32"),
    search=SearchConfig(index=("lexical",)),
    answer=AnswerConfig(quotes=0),
)
# A frame of 1024 tokens that evicts after some 300, with the default index but for the encoder, which would be loaded.
SMALL = MemoryConfig(
    frame=FrameConfig(
        tokens=1024, sink_tokens=8, recalled_tokens=256, rolling_tokens=256, evict_tokens=64, chunk_tokens=64
    ),
    archive=ArchiveConfig(block_tokens=128, codec="fp32"),
    search=SearchConfig(index=("heads", "lexical", "meaning")),
    answer=AnswerConfig(quotes=0),
)
# Holds 600 tokens before anything leaves. A longrope model uses its long factors in it.
ROOMY = SMALL.changed(frame={"rolling_tokens": 640})
# Nothing but the rolling zone, which holds 400 to 463 tokens.
WINDOW_ONLY = SMALL.changed(frame={"tokens": 512, "sink_tokens": 0, "recalled_tokens": 0, "rolling_tokens": 400})
# Searches pages by an encoder's vectors. The encoder is set with it.
EMBEDDING = SMALL.changed(search={"index": ("embedding",)})


def changed(config: MemoryConfig, **settings: Any) -> MemoryConfig:
    """Return `config` with settings given by their own names, whatever group they are in. `parts` is one of them."""
    parts = settings.pop("parts", config.parts)
    groups: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, own = where_is(name).partition(".")
        assert group, name
        groups.setdefault(group, {})[own] = value
    return config.changed(**groups, parts=parts)
