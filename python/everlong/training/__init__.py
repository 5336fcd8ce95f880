"""How the learned parts are trained: questions and answers, ends of topics, planted facts, chains, states, trainers."""

from typing import Final

MAY_IMPORT: Final = ("_core", "data", "errors", "frame", "generation", "learned", "models", "retrieval", "text")
