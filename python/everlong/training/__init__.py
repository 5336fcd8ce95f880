"""Training of the learned parts: questions, answers, topics' ends, planted facts, chains, states, routers, trainers."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "corpora",
    "errors",
    "frame",
    "generation",
    "models",
    "text",
)
