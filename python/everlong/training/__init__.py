"""How the learned parts are trained: questions and what answers them, ends of topics, states, answers, trainers."""

from typing import Final

MAY_IMPORT: Final = ("_core", "data", "errors", "frame", "generation", "learned", "models", "retrieval", "text")
