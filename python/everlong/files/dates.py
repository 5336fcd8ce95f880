"""Dates that files state, as seconds since 1970."""

from __future__ import annotations

import datetime
import re

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2})?)?")


def seconds_of(stated: object) -> float | None:
    """Return a datetime, a date, seconds, or text in ISO 8601 or a mail's form; None for what is no such date.

    A time without a zone is local, as everywhere else.
    """
    try:
        if isinstance(stated, bool) or stated is None:
            return None
        if isinstance(stated, int | float):
            return _possible(datetime.datetime.fromtimestamp(stated, datetime.UTC))
        if isinstance(stated, str):
            stated = _parsed(stated.strip())
        if isinstance(stated, datetime.datetime):
            return _possible(stated)
        if isinstance(stated, datetime.date):
            return _possible(datetime.datetime.combine(stated, datetime.time()))
    except (ValueError, OverflowError, OSError, TypeError):
        pass
    return None


def _possible(moment: datetime.datetime) -> float | None:
    """A date before 1600 is a field that nobody filled in."""
    return moment.timestamp() if moment.year >= 1600 else None


def _parsed(stated: str) -> datetime.datetime:
    found = _ISO.match(stated)
    if found is not None:
        return datetime.datetime.fromisoformat(found[0].replace(" ", "T", 1).replace(" ", ""))
    import email.utils  # which imports a lot

    return email.utils.parsedate_to_datetime(stated)
