"""How the learned parts are trained: questions with what answers them, ends of topics, planted facts, states, trainers."""

from typing import Final

MAY_IMPORT: Final = ("data", "errors", "learned", "models", "text")
