"""MCP by standard input and output, for the one client that started it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import anyio

from everlong.serve.inspector import MemoryInspector
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.mcp_tools import Tools, mcp_server
from everlong.serve.service import Service
from everlong.service_data.keys import ANYONE
from everlong.service_data.memory_registry import MemoryRegistry


def serve_stdio(root: Path, loaded_model: LoadedModel | None, tokenizer: Any, encoder: Any, *, read_only: bool) -> None:
    """Serve until standard input ends. Without a model, `tokenizer` reads the memories' words."""
    key = dataclasses.replace(ANYONE, write=not read_only)
    service = None if loaded_model is None else Service(loaded_model, root, encoder=encoder, alone=False)
    registry = MemoryRegistry(root) if service is None else service.registry
    inspector = MemoryInspector(tokenizer, encoder) if service is None else service.inspector
    server = mcp_server(Tools(registry, inspector, lambda request: key, service))
    if service is not None:
        service.start()
    try:
        anyio.run(server.run_stdio_async)
    finally:
        if service is not None:
            service.stop()
