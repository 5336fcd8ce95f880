"""Times that a question names: "last week", "in March", "on 3 May 2024". Extra `dates` (dateparser)."""

from __future__ import annotations

import datetime
import re
from typing import Any

from everlong.errors import EverlongError

TimeRange = tuple[float, float]  # seconds since 1970: from, up to

_DAY = datetime.timedelta(days=1)
# Shorter words may be abbreviations of days, too: "we", "sat".
_LEAST_LETTERS = 4


def times_of(question: str, now: datetime.datetime | None = None) -> list[TimeRange]:
    """Return the time range of each time expression in a question, local time: a day, a week from Monday, a month or a
    year.

    A time without a year is the latest one that is not ahead of `now`. EverlongError without dateparser.
    """
    try:
        from dateparser.date import DateDataParser
        from dateparser.search import search_dates
    except ImportError:
        raise EverlongError('dateparser is not installed: pip install "everlong[dates]"') from None
    now = datetime.datetime.now() if now is None else now
    settings: Any = {"RELATIVE_BASE": now, "PREFER_DATES_FROM": "past"}
    found = search_dates(question, languages=["en"], settings=settings) or []
    parser = DateDataParser(languages=["en"], settings=settings)
    ranges = []
    for words, _ in found:
        if not any(character.isdigit() for character in words) and len(re.sub(r"\W", "", words)) < _LEAST_LETTERS:
            continue
        said = _parsed(parser, words)
        if said is not None:
            ranges.append(_range(*said))
    return ranges


def _parsed(parser: Any, words: str) -> tuple[datetime.datetime, str] | None:
    """Return a moment and how long the expression lasts. Words at its end that are no part of a time are left out."""
    listed = words.split()
    for last in range(len(listed), 0, -1):
        data = parser.get_date_data(" ".join(listed[:last]))
        if data.date_obj is not None:
            return data.date_obj, str(data.period)
    return None


def _range(moment: datetime.datetime, period: str) -> TimeRange:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "year":
        first = day.replace(month=1, day=1)
        beyond = first.replace(year=first.year + 1)
    elif period == "month":
        first = day.replace(day=1)
        beyond = (first + 31 * _DAY).replace(day=1)
    elif period == "week":
        first = day - day.weekday() * _DAY
        beyond = first + 7 * _DAY
    else:
        first, beyond = day, day + _DAY
    return first.timestamp(), beyond.timestamp()
