"""Lines of a chat that WhatsApp exported: a time in the form of the phone's country, then who, then what."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

_MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")  # of the direction of writing
_AFTERNOON = (
    *("pm", "p", "م", "下午", "晚上", "中午", "傍晚", "午後", "오후", "μμ", "ptg", "ch", "du", "ip", "नम", "odp", "สน"),
    *("malam", "petang", "sore", "بظ", "رات", "अपराह्न", "غ", "дп", "пп", "nm"),
)
_FORENOON = (
    *("am", "a", "ص", "上午", "凌晨", "早上", "清晨", "午前", "오전", "πμ", "pg", "sa", "de", "ap", "pagi", "вм", "дп"),
    *("पूर्वाह्न", "vm", "ق"),
)
_HALF = r"[^\W\d_]{1,8}\.?(?:\s?[^\W\d_]{1,2}\.)?"  # or a word such as "at"
_DATE = (
    r"(?P<first>\d{1,4})(?P<mark>\s?[./\-年년]\s?)(?P<second>\d{1,2})\s?[./\-月월]\s?"
    r"(?P<third>\d{1,4})(?P<dot>[.日일])?(?:\s?г\.?)?"
)
_CLOCK = (
    rf"(?:(?P<before>{_HALF})\s?)?(?P<hour>\d{{1,2}})\s?[:.h٫]\s?(?P<minute>\d{{2}})(?:[:.]\d{{2}})?"
    rf"(?:\s?(?P<after>{_HALF}))?"
)
_END = r"(?(open)\]\s*|(?:\s+[-–—]\s+|:\s+|,\s+))"
# "[03/05/2024, 14:02:11] ", "5/3/24, 2:02 PM - ", "2024년 3월 5일 오후 2:02, ", "14:02, 5/3/24 - "
_HEADS = (
    re.compile(rf"\s*(?P<open>\[)?{_DATE}[,،、]?\s*{_CLOCK}{_END}"),
    re.compile(rf"\s*(?P<open>\[)?{_CLOCK}[,،、]?\s*{_DATE}{_END}"),
)
_DIGIT = re.compile(r"[^\d]{0,12}\d")
_LEVELS = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE)\b")
_WHO = re.compile(r"[^:]{1,80}:(?:\s|\Z)")
_FOUNDED = 2009  # of WhatsApp
_LOOKED_AT = 4000  # lines by which the order of days and months is found


@dataclasses.dataclass(slots=True)
class Head:
    """What a line begins with: three numbers of a date in some order, and a time."""

    numbers: tuple[int, int, int]
    hour: int
    minute: int
    half: str  # "am", "pm", or "" for a clock of 24 hours
    american: bool  # written as in the United States
    year_first: bool  # as only where the year stands first
    message: str  # what stands behind it


def head_of(line: str) -> Head | None:
    """Return what a message's first line begins with; None for another line."""
    if not line.isascii():
        line = _MARKS.sub("", line)
    if _DIGIT.match(line) is None:
        return None
    begin = line[:100]
    digits = begin if begin.isascii() else "".join(map(_ascii_digit, begin))
    found = _HEADS[0].match(digits) or _HEADS[1].match(digits)
    if found is None:
        return None
    before, after = found["before"] or "", found["after"] or ""
    half = _half_of(before) or _half_of(after) if before or after else ""
    if after and not half:
        return None
    american = bool(half) and (before or after).strip().isupper() and "/" in found["mark"]
    american &= len(found["third"]) == 2 and not found["first"].startswith("0")
    numbers = int(found["first"]), int(found["second"]), int(found["third"])
    year_first = len(found["first"]) > 2 or found["mark"].strip() not in (".", "/", "-")
    year_first |= found["dot"] == "." and len(found["third"]) < 3
    return Head(numbers, int(found["hour"]), int(found["minute"]), half, american, year_first, line[found.end() :])


def _ascii_digit(letter: str) -> str:
    return letter if letter.isascii() or not letter.isdecimal() else str(unicodedata.decimal(letter))


@functools.lru_cache(maxsize=256)
def _half_of(word: str) -> str:
    label = re.sub(r"[\W_]", "", word).lower()
    return "pm" if label in _AFTERNOON else "am" if label in _FORENOON else ""


def are_messages(lines: Sequence[str]) -> bool:
    """Return whether a text that begins with some lines is a chat, and no log of a program."""
    lines = [line for line in lines if line.strip()]
    heads = [head for line in lines if (head := head_of(line)) is not None]
    if len(heads) < 2 or head_of(lines[0]) is None:
        return False
    messages = [head.message for head in heads]
    return any(map(_WHO.match, messages)) and sum(bool(_LEVELS.search(one[:60])) for one in messages) * 2 < len(
        messages
    )


def moments_of(heads: Sequence[Head]) -> Iterator[datetime.datetime | None]:
    """Yield when each message was written; None for what is no date. The order of day and month is the chat's."""
    order = min(_ORDERS, key=lambda order: _unlikely(heads[:_LOOKED_AT], order))
    for head in heads:
        yield _moment(head, order)


_ORDERS = ("DMY", "MDY", "YMD")


def _unlikely(heads: Sequence[Head], order: str) -> tuple[int, int, bool]:
    """Return how often dates in an order are none, and go backwards; then whether another order is more usual."""
    found = [_moment(head, order) for head in heads]
    dates = [moment for moment in found if moment is not None]
    early = sum(moment.year < _FOUNDED for moment in dates)
    back = sum(after < before for before, after in itertools.pairwise(dates))
    usual = "YMD" if heads[0].year_first else "MDY" if all(head.american for head in heads) else "DMY"
    return len(found) - len(dates) + early, back, order != usual


def _moment(head: Head, order: str) -> datetime.datetime | None:
    first, second, third = head.numbers
    if first > 31:
        order = "YMD"
    elif third > 99 and order == "YMD":
        return None
    year, month, day = {
        "YMD": (first, second, third),
        "MDY": (third, first, second),
        "DMY": (third, second, first),
    }[order]
    hour = head.hour % 12 + (12 if head.half == "pm" else 0) if head.half else head.hour
    year += 2000 if year < 100 else -543 if year > 2400 else 0  # of the Buddhist calendar
    if year < 1900:  # of the Persian calendar
        return None
    try:
        return datetime.datetime(year, month, day, hour, head.minute)
    except ValueError:
        return None
