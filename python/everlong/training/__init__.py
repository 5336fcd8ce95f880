"""How the learned parts are trained: questions and their answers, ends of topics, planted facts, states, trainers."""

from typing import Final

MAY_IMPORT: Final = ("data", "errors", "learned", "models", "text")
