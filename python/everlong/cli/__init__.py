"""The command line: what a shell calls `everlong`.

`everlong read | sync | rebuild | ask | chat | inspect | compact | graph | serve | mcp | key | doctor | bench | demo |
eval SUITE | train PART | plot | cache list | clear`. The exit code is 0; 1 with one line that says why; 2 where the
command itself is wrong; 130 after Ctrl-C.
"""

from typing import Final

from everlong.cli import (
    cached,
    compacting,
    cost,
    evidence,
    graph,
    health,
    memory,
    published,
    service,
    sync,
    training,
)
from everlong.cli.app import main

MAY_IMPORT: Final = (
    "_native",
    "bench",
    "config",
    "corpora",
    "doctor",
    "errors",
    "eval",
    "files",
    "frame",
    "generation",
    "memory",
    "models",
    "part_list",
    "paths",
    "pictures",
    "retrieval",
    "serve",
    "settings",
    "text",
    "training",
)

__all__ = [
    "cached",
    "compacting",
    "cost",
    "evidence",
    "graph",
    "health",
    "main",
    "memory",
    "published",
    "service",
    "sync",
    "training",
]
