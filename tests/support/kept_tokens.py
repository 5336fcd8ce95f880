"""Settings of frames that keep tokens of evicted blocks."""

from everlong.parts.trimmer import Trimmer
from support.settings import SMALL

# Keeps the newest tokens of a block.
NEWEST = SMALL.changed(
    frame={"kept_tokens": 32, "kept_share": 8, "kept_rungs": 3},
    search={"index": ("lexical",)},
    answer={"recall_mode": "kv"},
)
# Keeps tokens by the norm of their keys, which needs no trained weights.
KEPT_TOKENS = NEWEST.with_part(Trimmer(by="key_norm"))
