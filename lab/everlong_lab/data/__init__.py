"""Text to learn from and to measure by: books, and the shipped sets of questions with their passages."""

from typing import Final

MAY_IMPORT: Final = ()
