"""What a memory depends on, as three opaque strings: weights, RoPE and tokenizer."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Equal strings mean that the archived KV of one model can be restored into the other."""

    weights: str
    rope: str
    tokenizer: str
