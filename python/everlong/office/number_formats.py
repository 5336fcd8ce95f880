"""What a cell shows for a number: by its format, as a workbook states it.

Where that depends on the language of a program, one form is written: dates as ISO 8601 has them, and digits without
groups.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import re

# The formats that a workbook states by number alone. Those that are missing are General, or dates of some language.
BUILT_IN = {
    **{1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 12: "# ?/?", 13: "# ??/??"},
    **{14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM"},
    **{20: "h:mm", 21: "h:mm:ss", 22: "m/d/yy h:mm", 37: "#,##0", 38: "#,##0", 39: "#,##0.00", 40: "#,##0.00"},
    **{45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0", 49: "@"},
    **dict.fromkeys((*range(27, 37), *range(50, 59)), "yyyy-mm-dd"),
}
_MOST_DECIMALS = 30
_LAST_DAY = 2_958_466  # behind 9999-12-31
_TOKENS = re.compile(
    r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.)|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]|(?P<elapsed>\[(?:h+|m+|s+)\])'
    r"|\[(?P<condition>[<>=])?[^\]]*\]|(?P<general>general)|(?P<exponent>E[+-]0+)|(?P<number>[0#?][0#?.,]*|\.[0#?]+)"
    r"|(?P<halves>am/pm|a/p)|(?P<moment>[dmyhsbeg]+)|(?P<end>;)|(?P<other>.)",
    re.I | re.S,
)


@dataclasses.dataclass
class _Section:
    """One of the formats that a format has: for positive numbers, negative ones, zero and text."""

    before: str = ""
    pattern: str = ""
    after: str = ""
    percent: int = 0
    exponent: bool = False
    letters: str = ""  # of a date or a time
    elapsed: bool = False
    general: bool = False  # the number as it is
    odd: bool = False  # as of a fraction, or with digits around something


def formatted(value: float, shape: str, *, from_1904: bool = False) -> str:
    """Return what a cell of that format shows. What does not follow the format is shown whole."""
    sections = _sections(shape)
    at = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0
    section = sections[at]
    if section.letters or section.elapsed:
        return _moment(value, section, from_1904) or general(value)
    words = any(letter.isalpha() for letter in section.before + section.after)
    if section.odd or not abs(value) < 1e15 or not (section.pattern or section.general or words):
        return general(value)
    number = general(abs(value)) if section.general else _number(abs(value), section)
    if number is None:
        return general(value)
    if number == "0" and section.before + section.after and not section.general and "0" not in section.pattern:
        if not words:
            return number  # in place of a dash
        number = ""
    sign = "-" if value < 0 and at == 0 and number.strip("0.,") else ""
    return f"{sign}{section.before}{number}{section.after}".strip()


def general(value: float) -> str:
    """Return a number with all the digits that it has."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else f"{value:.15g}"


@functools.lru_cache(maxsize=4096)
def _sections(shape: str) -> tuple[_Section, ...]:
    sections = [_Section()]
    for token in _TOKENS.finditer(shape[:1000]):
        section, kind, text = sections[-1], token.lastgroup, token[0]
        if kind == "end":
            sections.append(_Section())
        elif kind == "number":
            section.odd |= bool(section.pattern)
            section.pattern = text
        elif kind == "exponent":
            section.exponent = True
        elif kind in ("moment", "halves"):
            section.letters += text.lower() if kind == "moment" else ""
        elif kind == "elapsed":
            section.elapsed = True
            section.letters += text.strip("[]").lower()
        elif kind == "general" or text == "@":
            section.general = True
        elif kind == "condition" or text == "/":
            section.odd = True  # of a date, letters are all that counts
        elif kind is not None:
            literal = token[kind] or ""
            section.percent += kind == "other" and text == "%"
            if section.pattern or section.general:
                section.after += literal
            else:
                section.before += literal
    return tuple(sections)


def _number(value: float, section: _Section) -> str | None:
    """Return a number in digits; None where the format is none of a number."""
    if not section.pattern:
        return ""
    whole, _, part = section.pattern.partition(".")
    scaled = len(section.pattern) - len(section.pattern.rstrip(","))
    most, least = len(re.sub(r"[^0#?]", "", part)), part.count("0")
    if most > _MOST_DECIMALS or section.percent > 3:
        return None
    if section.exponent:
        return f"{value * 100**section.percent:.{most}E}"
    exact = decimal.Decimal(f"{value:.15g}").scaleb(2 * section.percent - 3 * scaled)
    with decimal.localcontext(prec=100):
        exact = exact.quantize(decimal.Decimal(1).scaleb(-most), decimal.ROUND_HALF_UP)
    digits, _, decimals = f"{exact:f}".partition(".")
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    digits = digits.zfill(min(whole.count("0"), _MOST_DECIMALS))
    return digits + (f".{decimals}" if decimals else "")


def _moment(value: float, section: _Section, from_1904: bool) -> str | None:
    """Return a date, a time, both, or a duration; None where a number is none."""
    if not abs(value) < _LAST_DAY:
        return None
    seconds = round(value * 86_400)
    clock, rest = divmod(seconds, 60)
    if section.elapsed:
        sign = "-" if seconds < 0 else ""
        clock, rest = divmod(abs(seconds), 60)
        return f"{sign}{clock // 60}:{clock % 60:02}" + (f":{rest:02}" if rest else "")
    if value < 0:
        return None
    clock %= 1440
    time = f"{clock // 60:02}:{clock % 60:02}" + (f":{rest:02}" if rest else "")
    has_time = any(letter in section.letters for letter in "hs")
    has_day = any(letter in section.letters for letter in "ydbeg") or not has_time
    if not has_day:
        return time
    # The calendar of 1900 has a 29 February, which there was not.
    first = datetime.date(1904, 1, 1) if from_1904 else datetime.date(1899, 12, 30 if value >= 60 else 31)
    try:
        day = (first + datetime.timedelta(days=seconds // 86_400)).isoformat()
    except OverflowError:
        return None
    return f"{day} {time}" if has_time else day
