"""MCP by standard input and output, for the one client that started it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import anyio

from everlong.serve.keys import ANYONE
from everlong.serve.loaded import Loaded
from everlong.serve.looking import Looking
from everlong.serve.mcp_tools import Tools, mcp_server
from everlong.serve.service import Service
from everlong.serve.shelf import Shelf


def serve_stdio(root: Path, loaded: Loaded | None, tokenizer: Any, encoder: Any, *, read_only: bool) -> None:
    """Serve until standard input ends. Without a model, `tokenizer` reads the memories' words."""
    key = dataclasses.replace(ANYONE, write=not read_only)
    service = None if loaded is None else Service(loaded, root, encoder=encoder, alone=False)
    shelf = Shelf(root) if service is None else service.shelf
    looking = Looking(tokenizer, encoder) if service is None else service.looking
    server = mcp_server(Tools(shelf, looking, lambda context: key, service))
    if service is not None:
        service.start()
    try:
        anyio.run(server.run_stdio_async)
    finally:
        if service is not None:
            service.stop()
