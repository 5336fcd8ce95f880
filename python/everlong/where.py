"""Which part of a memory is meant: by source, by tag, by when it was archived."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Sequence
from typing import TypedDict

Time = datetime.datetime | datetime.timedelta | float  # a moment; so long ago; seconds since 1970

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class CoreFilter(TypedDict):
    """The arguments by which `_core.Memory` takes it."""

    sources: list[str]
    tags: list[str]
    since: float | None
    before: float | None


@dataclasses.dataclass(frozen=True)
class Where:
    """Which part of a memory may come back; what is not given does not choose.

    Everything else is left out before any index scores a page. A time is a datetime (without a zone: local time), a
    timedelta (so long ago), or seconds since 1970.
    """

    source: str | Sequence[str] = ()  # any of these
    tags: str | Sequence[str] = ()  # all of these
    after: Time | None = None  # archived at this moment or later
    before: Time | None = None  # archived before this moment

    def core(self) -> CoreFilter:
        return CoreFilter(
            sources=names_of(self.source),
            tags=names_of(self.tags),
            since=seconds(self.after),
            before=seconds(self.before),
        )


EVERYWHERE = Where()


def seconds(moment: Time | None) -> float | None:
    """Seconds since 1970; a datetime without a zone is local time."""
    if isinstance(moment, datetime.timedelta):
        return time.time() - moment.total_seconds()
    return moment.timestamp() if isinstance(moment, datetime.datetime) else moment


def parse_time(text: str) -> Time:
    """A time as it is typed: ISO 8601, or so long ago as 90s, 30m, 12h, 7d, 2w. ValueError for anything else."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        try:
            return datetime.timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError:
            raise ValueError(f"time {text!r}: that is longer ago than a time can say") from None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"time {text!r}: expected ISO 8601 such as 2026-11-21T14:00, or 30m, 12h, 7d, 2w ago"
        ) from None


def names_of(names: str | Sequence[str]) -> list[str]:
    """One name as it is, or several."""
    return [names] if isinstance(names, str) else list(names)
