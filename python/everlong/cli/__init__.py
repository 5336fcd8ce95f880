"""The command line: what a shell calls `everlong`.

`everlong read | sync | rebuild | ask | chat | inspect | list | forget | compact | graph | serve | mcp | key | doctor |
bench | plot | cache list | clear`. With everlong-lab: `everlong demo | eval TASK | train PART | tune`. The exit code is
0; 1 with one line that says why; 2 where the command itself is wrong; 130 after Ctrl-C.
"""

from typing import Final

from everlong import plugins
from everlong.cli import (
    bench,
    cache,
    compact,
    contents,
    doctor,
    graph,
    memory,
    plot,
    service,
    sync,
)
from everlong.cli.app import COMMANDS, main

MAY_IMPORT: Final = (
    "_native",
    "bench",
    "codecs",
    "config",
    "doctor",
    "errors",
    "files",
    "frame",
    "generation",
    "memory",
    "models",
    "paths",
    "pictures",
    "plugins",
    "retrieval",
    "serve",
    "service_data",
    "text",
)

__all__ = [
    "bench",
    "cache",
    "compact",
    "contents",
    "doctor",
    "graph",
    "main",
    "memory",
    "plot",
    "service",
    "sync",
]

for _ in plugins.load(COMMANDS):  # modules that add their commands to `app`
    pass
