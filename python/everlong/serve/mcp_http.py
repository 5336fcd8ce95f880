"""MCP over HTTP, at `/mcp`: each request stands alone, and has its own key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.routing import BaseRoute

from everlong.serve.mcp_tools import Tools, mcp_server
from everlong.serve.service import Service
from everlong.service_data.keys import ANYONE, Key


class McpOverHttp:
    """The routes of a service's MCP server, and its life."""

    def __init__(self, service: Service) -> None:
        self._server = mcp_server(Tools(service.registry, service.inspector, _key_of, service))
        # Names of hosts are the guard's business (guard.py), as for every other path.
        app = self._server.streamable_http_app(
            streamable_http_path="/mcp", json_response=True, stateless_http=True, host="0.0.0.0"
        )
        self.routes: Sequence[BaseRoute] = app.routes

    @contextlib.asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Wrap the time in which requests are answered."""
        async with self._server.session_manager.run():
            yield


def _key_of(request: Any) -> Key:
    key: Key = getattr(request.state, "key", None) or ANYONE
    return key
