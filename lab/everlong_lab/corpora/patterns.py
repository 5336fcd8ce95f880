"""Regular expressions of candidates: what in a reply is taken for a number or a UUID."""

from __future__ import annotations

# A comma in a number stands before three digits; any other comma parts two numbers.
NUMBER = r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)|\d+"
# Six digits or more: shorter numbers count the items of a list.
LONG_NUMBER = r"(?<!\d)(?:\d{3},\d{3}|\d{1,3}(?:,\d{3}){2,})(?!\d)|\d{6,}"
UUID = r"\b[0-9a-f]{4,}(?:-[0-9a-f]+)+"
