"""Whether the first row of a table names its columns, by what kinds of values stand below."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"[-+(]?[$€£¥]?\s?\d[\d.,'\u00a0\u202f ]*(?:[eE][-+]?\d+)?\s?[%€$£¥)]?\Z")
_DATE = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}"
    r"(?:[T ,]+\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s?(?:[AaPp]\.?[Mm]\.?|Z|[-+]\d\d:?\d\d)?)?\Z"
    r"|\d{1,2}:\d{2}(?::\d{2})?\Z"
)
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d\Z")
# Names of columns that say by themselves what they are.
_LABELS = frozenset(
    re.findall(
        r"\S+",
        """
        id no nr key name names title first last date time year month day city country state street address zip postcode
        email e-mail mail phone tel fax company firm category type kind status price amount total sum count number
        quantity qty age sex gender author text note notes remark remarks comment comments description value values unit
        units code url link from to subject language item product customer person who what where when why vorname
        nachname datum ort stadt land straße plz preis betrag menge anzahl titel beschreibung bemerkung wert nom prénom
        ville pays adresse prix montant quantité titre remarque valeur nombre apellido fecha ciudad país dirección
        precio cantidad título valor nota nome cognome città data cidade preço
        """,
    )
)


def is_named(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row names the columns of the others, which are data."""
    first, rest = rows[0], rows[1:]
    if len([cell for cell in first if cell]) < max(2, len(first) / 2) and first[1:]:
        return False
    kinds = [_kind(cell) for cell in first]
    numbers = [cell for cell, kind in zip(first, kinds, strict=True) if kind in ("number", "date")]
    below = [[cell for row in rest for cell in row[column : column + 1] if cell] for column in range(len(first))]
    if numbers:
        return _are_periods(first, kinds, below)
    if not rest:
        return _is_labelled(first)
    for kind, column in zip(kinds, below, strict=True):
        if kind == "text" and column and sum(_kind(one) in ("number", "date") for one in column) * 2 > len(column):
            return True  # a word above numbers
    if any(cell in column for cell, column in zip(first, below, strict=True) if cell):
        return False  # a value like those below
    return _is_labelled(first) or _looks_different(first, below)


def _kind(cell: str) -> str:
    if not cell:
        return ""
    if _DATE.match(cell):
        return "date"
    return "number" if _NUMBER.match(cell) else "text"


def _are_periods(first: Sequence[str], kinds: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether numbers in the first row are years, or count up, above values that do not."""
    columns = [at for at, kind in enumerate(kinds) if kind in ("number", "date")]
    periods = [first[at] for at in columns]
    if len(set(periods)) < len(periods):
        return False
    below_these = [cell for at in columns for cell in below[at]]
    if all(_YEAR.match(cell) for cell in periods):
        return sum(_YEAR.match(cell) is not None for cell in below_these) * 2 < max(1, len(below_these))
    if all(_DATE.match(cell) for cell in periods):
        return sum(_DATE.match(cell) is not None for cell in below_these) * 2 < max(1, len(below_these))
    if len(periods) > 2 and all(cell.isdecimal() for cell in periods):
        counted = [int(cell) for cell in periods]
        return counted == list(range(counted[0], counted[0] + len(counted))) and counted[0] < 2
    return False


def _is_labelled(first: Sequence[str]) -> bool:
    words = [re.split(r"[\W_]+", cell.casefold()) for cell in first if cell]
    return sum(not _LABELS.isdisjoint(one) and len(one) <= 4 for one in words) * 2 >= len(words)


def _looks_different(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether most cells of the first row are small or short, where those below are not."""
    compared = [(cell, column) for cell, column in zip(first, below, strict=True) if cell and column]
    different = 0
    for cell, column in compared:
        like = sum(_shape(one) == _shape(cell) for one in column)
        longer = sum(len(one) > 3 * len(cell) for one in column)
        different += like * 4 <= len(column) or longer * 2 > len(column)
    return different * 2 > len(compared)


def _shape(cell: str) -> tuple[bool, bool, bool]:
    return cell[:1].isupper(), any(letter.isdigit() for letter in cell), len(cell.split()) > 3
