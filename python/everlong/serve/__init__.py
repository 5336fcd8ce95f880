"""A service: OpenAI's clients, MCP clients and a browser use memories, many callers at once.

`app.application` is the whole of it, `service.Service` what it is made of. `engine.Engine` answers in one thread, and
`readings.Readings` reads in another. It needs the extra `serve`.
"""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "config",
    "errors",
    "frame",
    "generation",
    "memory",
    "models",
    "retrieval",
    "service_data",
    "text",
)
