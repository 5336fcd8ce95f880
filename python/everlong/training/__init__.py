"""Training of the learned parts: questions, answers, topics' ends, planted facts, chains, states, routers, trainers."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "data",
    "errors",
    "frame",
    "generation",
    "memory",
    "models",
    "retrieval",
    "text",
)
