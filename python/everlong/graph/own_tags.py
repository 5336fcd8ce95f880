"""What everlong itself keeps among a block's tags: when its events happened, and what it is about."""

from __future__ import annotations

from collections.abc import Iterable

import everlong._core as _core


def happened_in(tags: Iterable[str]) -> float | None:
    """Return when a block's events happened, in seconds since 1970; None where nobody said."""
    told = [tag.removeprefix(_core.HAPPENED_TAG) for tag in tags if tag.startswith(_core.HAPPENED_TAG)]
    return float(told[0]) if told else None


def keyphrases_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Return what taggers said, in their order."""
    return tuple(tag.removeprefix(_core.KEY_TAG) for tag in tags if tag.startswith(_core.KEY_TAG))


def given_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the user's tags, in their order."""
    return tuple(tag for tag in tags if not tag.startswith(_core.OWN_TAG))
