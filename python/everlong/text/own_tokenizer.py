"""A tokenizer for another thread: a fast tokenizer is not made for two."""

from __future__ import annotations

import copy
from typing import Any

_LARGE = 1_000  # entries


def own_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer.

    A fast one keeps the tables it was made from, and reads and changes them no more. They are shared: a copy of 150,000
    merges takes a second.
    """
    tables = []
    if getattr(tokenizer, "is_fast", False):
        tables = [value for value in vars(tokenizer).values() if isinstance(value, dict | list) and len(value) > _LARGE]
    return copy.deepcopy(tokenizer, {id(table): table for table in tables})
