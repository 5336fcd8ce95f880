"""What everlong itself keeps of a block among its tags: when it happened, and what it is about."""

from __future__ import annotations

from collections.abc import Iterable

import everlong._core as _core


def happened_in(tags: Iterable[str]) -> float | None:
    """When what a block tells of happened, in seconds since 1970; None where nobody said."""
    told = [tag.removeprefix(_core.HAPPENED_TAG) for tag in tags if tag.startswith(_core.HAPPENED_TAG)]
    return float(told[0]) if told else None


def keyphrases_in(tags: Iterable[str]) -> tuple[str, ...]:
    """What taggers said, in their order."""
    return tuple(tag.removeprefix(_core.KEY_TAG) for tag in tags if tag.startswith(_core.KEY_TAG))


def given_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Those that are a user's, in their order."""
    return tuple(tag for tag in tags if not tag.startswith(_core.OWN_TAG))
