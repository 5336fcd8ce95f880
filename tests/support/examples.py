"""How many examples hypothesis draws. The profiles are in tests/fixtures.py."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **more: Any) -> settings:
    """Return settings for `count` examples where a test without settings gets 100.

    The profile at work scales both: "quick" draws a fifth, "thorough" ten times as many. `more` are other settings.
    """
    return settings(max_examples=max(1, count * settings().max_examples // 100), **more)
