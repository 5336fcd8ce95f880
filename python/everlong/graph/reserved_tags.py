"""What everlong itself keeps among a block's tags: when its events happened, and what it is about."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import everlong._core as _core


def moment_of(seconds: float) -> datetime.datetime | None:
    """Return seconds since 1970 as a datetime, UTC; None where no datetime holds them."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None


def nearest_moment(seconds: float) -> datetime.datetime:
    """Return seconds since 1970 as the nearest datetime that there is, UTC."""
    end = datetime.datetime.max if seconds > 0 else datetime.datetime.min
    return moment_of(seconds) or end.replace(tzinfo=datetime.UTC)


def event_times(tags: Iterable[str]) -> float | None:
    """Return when a block's events happened, in seconds since 1970; None where nobody said, or it cannot be read."""
    return next((told for tag in reversed(list(tags)) if (told := _value_of(tag)) is not None), None)


def _value_of(tag: str) -> float | None:
    try:
        told = float(tag.removeprefix(_core.HAPPENED_TAG)) if tag.startswith(_core.HAPPENED_TAG) else None
    except ValueError:
        return None
    return None if told is None or moment_of(told) is None else told


def keyphrases_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Return what taggers said, in their order."""
    return tuple(tag.removeprefix(_core.KEY_TAG) for tag in tags if tag.startswith(_core.KEY_TAG))


def user_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the user's tags, in their order."""
    return tuple(tag for tag in tags if not tag.startswith(_core.OWN_TAG))


def unreadable_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags that should say when a block's events happened, and say no time."""
    return tuple(tag for tag in tags if tag.startswith(_core.HAPPENED_TAG) and _value_of(tag) is None)
