"""Which part of a memory is meant: by source, tag, time of archiving, time of events, or role."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import numbers
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict, get_args

import everlong._core as _core
from everlong.graph.reserved_tags import moment_of
from everlong.memory.origins import origin_of, origin_tag

# A moment, a day (its midnight), a time ago, seconds since 1970, or text in ISO 8601. NumPy's scalars of these kinds
# are taken, too.
Time = datetime.datetime | datetime.date | datetime.timedelta | float | str

# What text was to a memory: read into it, asked of it, or said in answer.
Role = Literal["read", "asked", "said"]
_ROLES: tuple[Role, ...] = get_args(Role)

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class CoreFilter(TypedDict):
    """The arguments by which everything in `_core.Memory` takes it that reads blocks for a question."""

    sources: list[str]
    tags: list[str]
    since: float | None
    before: float | None
    roles: list[str]
    happened_since: float | None
    happened_before: float | None
    newest_tags: list[str]


@dataclasses.dataclass(frozen=True)
class Where:
    """Which part of a memory a question may see. A field that is not given does not choose.

    Everything else is left out before any index scores a page, and hidden where it stands before the model. Without
    `role`, no search brings questions back, because a question is no evidence for its own answer, and answers count
    less than what was read. `role="asked"` finds earlier questions. A time is a datetime (without a zone: local time),
    a date (its midnight, local time), a timedelta (so long ago), seconds since 1970, or text in
    ISO 8601. TypeError for what is no name or time. ValueError for a time that no datetime holds, for an empty list,
    which chooses nothing, for an empty tag, and for another role.
    """

    source: str | Sequence[str] = ()  # any of these
    tags: str | Sequence[str] = ()  # all of these
    after: Time | None = None  # archived at this moment or later
    before: Time | None = None  # archived before this moment
    role: Role | Sequence[Role] | None = None  # any of "read", "asked" and "said"
    # Where it was read from: a file (a Path, or its path from the root), or what `read` was told.
    origin: str | os.PathLike[str] | None = None
    # Events happened from then on, up to `happened_before`: as `read` was told, else the time of archiving.
    happened_after: Time | None = None
    happened_before: Time | None = None
    # Without `role`: what was said counts in a search as what was read does, as a conversation wants it. Hides nothing.
    said_as_read: bool = False

    def __post_init__(self) -> None:
        for field in ("source", "tags"):
            value = getattr(self, field)
            names = names_of(value)
            if not names and value != ():
                raise ValueError(f"{field} is an empty list: leave it out, and it does not choose")
            if field == "tags":
                require_tags(names)
            if not isinstance(value, str):
                object.__setattr__(self, field, tuple(names))
        if self.origin is not None:
            if not isinstance(self.origin, str | os.PathLike):
                raise TypeError(f"{self.origin!r} is no origin, expected a Path or a str")
            if self.origin == "":
                raise ValueError("origin is empty: leave it out, and it does not choose")
            object.__setattr__(self, "origin", *names_of(origin_of(self.origin)))
        for moment in (self.after, self.before, self.happened_after, self.happened_before):
            seconds(moment)
        roles = None if self.role is None else names_of(self.role)
        if roles is not None and (not roles or not set(roles) <= set(_ROLES)):
            raise ValueError(f"role is {self.role!r}, expected {', '.join(map(repr, _ROLES))}, or several of them")
        if roles is not None and not isinstance(self.role, str):
            object.__setattr__(self, "role", tuple(roles))

    @property
    def chooses(self) -> bool:
        """Whether it leaves anything out but what a search does by itself."""
        return dataclasses.replace(self, said_as_read=False) != EVERYWHERE

    @property
    def happened(self) -> tuple[float, float] | None:
        """From and up to when events happened, in seconds since 1970; None where that does not choose."""
        if self.happened_after is None and self.happened_before is None:
            return None
        since, before = seconds(self.happened_after), seconds(self.happened_before)
        return -math.inf if since is None else since, math.inf if before is None else before

    def core(self) -> CoreFilter:
        """Return it as arguments of `_core.Memory`. There is no other way from it to what may be seen.

        A reader that is not a search leaves out `said_as_read`: see `blocks`.
        """
        searched = ["read", "said"] if self.said_as_read else []
        return CoreFilter(
            sources=names_of(self.source),
            tags=names_of(self.tags),
            since=seconds(self.after),
            before=seconds(self.before),
            roles=searched if self.role is None else names_of(self.role),
            happened_since=seconds(self.happened_after),
            happened_before=seconds(self.happened_before),
            newest_tags=[] if self.origin is None else [origin_tag(origin_of(self.origin))],
        )

    def blocks(
        self, core: _core.Memory, *, behind: int = 0, limit: int | None = None, among: Sequence[int] | None = None
    ) -> list[_core.BlockInfo]:
        """Return the blocks that pass, by id. Without a role it leaves none out.

        At most `limit`, with ids above `behind`; of the ids in `among` alone, which are looked up one by one.
        """
        filters = dataclasses.replace(self, said_as_read=False).core()
        return core.blocks.infos(**filters, behind=behind, limit=limit, among=among)


def require_where(where: object) -> None:
    """Raise TypeError for what is no Where, before anything is done with it."""
    if not isinstance(where, Where):
        raise TypeError(
            f"where is {where!r}, expected an everlong.Where(source=, tags=, after=, before=, role=, origin=, "
            "happened_after=, happened_before=, said_as_read=)"
        )


def seconds(moment: Time | None) -> float | None:
    """Return seconds since 1970. Datetimes without a zone and dates' midnights are local time.

    TypeError for what is no time. ValueError for a time that no datetime holds.
    """
    if moment is None:
        return None
    found = _seconds(moment)
    if moment_of(found) is None:
        hint = "; it looks like milliseconds: divide it by 1000" if moment_of(found / 1000) is not None else ""
        raise ValueError(
            f"{moment!r} is out of range: expected a time from year 1 to 9999, in seconds since 1970 where it is a "
            f"number{hint}"
        )
    return found


def event_time(block: _core.BlockInfo) -> float:
    """Return when a block's events happened, in seconds since 1970, as `read` was told; else when it was archived."""
    return block.created_at if block.happened is None else block.happened


def _seconds(moment: Any) -> float:
    """Return seconds since 1970; NaN where they cannot be said."""
    import numpy as np  # the command line's help does without it

    if isinstance(moment, np.datetime64 | np.timedelta64):
        unit = "datetime64[us]" if isinstance(moment, np.datetime64) else "timedelta64[us]"
        return math.nan if np.isnat(moment) else _seconds(moment.astype(unit).item())
    if isinstance(moment, str):
        with contextlib.suppress(ValueError):
            moment = datetime.datetime.fromisoformat(moment)
    try:
        if isinstance(moment, datetime.timedelta):
            return time.time() - moment.total_seconds()
        if isinstance(moment, datetime.datetime):
            return moment.timestamp()
        if isinstance(moment, datetime.date):
            return datetime.datetime.combine(moment, datetime.time()).timestamp()
        if isinstance(moment, numbers.Real) and not isinstance(moment, bool):
            number = float(moment)
            return int(moment) if isinstance(moment, numbers.Integral) else number
    except (OverflowError, OSError, ValueError):
        return math.nan
    raise TypeError(
        f"{moment!r} is no time: expected a datetime, a date, a timedelta, seconds since 1970, or ISO 8601 text such "
        "as '2026-11-21T14:00'; everlong.memory.where.parse_time reads typed times, such as 7d"
    )


def parse_time(text: str) -> datetime.datetime | datetime.timedelta:
    """Read a typed time: ISO 8601, or a time ago as 90s, 30m, 12h, 7d, 2w. ValueError for anything else."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        try:
            return datetime.timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError:
            raise ValueError(f"time {text!r}: that is longer ago than a datetime can hold") from None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"time {text!r}: expected ISO 8601 such as 2026-11-21T14:00, or 30m, 12h, 7d, 2w ago"
        ) from None


def require_tags(tags: Iterable[str]) -> None:
    """Raise ValueError for a tag that is empty or blank."""
    for tag in tags:
        if not tag.strip():
            raise ValueError(f"the tag {tag!r} is empty: expected a name; for no tag leave tags out")


def names_of(names: str | Iterable[str]) -> list[str]:
    """Return one name, or several, as a list. TypeError for what is no name, ValueError for half a surrogate pair."""
    if not isinstance(names, str | Iterable):
        raise TypeError(f"{names!r} is no name, expected a str, or several")
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name, expected a str")
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the name {name!r} has half a surrogate pair: decode it anew") from error
    return found


EVERYWHERE = Where()
