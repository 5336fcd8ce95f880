"""Readers of Office files: text, sheets and slides of OOXML and OpenDocument, and RTF. `files` finds them by name."""

from typing import Final

MAY_IMPORT: Final = ("files",)
