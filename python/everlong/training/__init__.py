"""How the learned parts are trained: questions with the text that answers them, cached states, trainers."""

from typing import Final

MAY_IMPORT: Final = ("data", "errors", "learned", "models", "text")
