"""`resources/list`: the sources of all memories, a page at a time."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Any

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from everlong.errors import EverlongError
from everlong.memory import Memory
from everlong.service_data.errors import ApiError
from everlong.text.notebook_html import CONVERSATION

if TYPE_CHECKING:
    from everlong.serve.mcp_tools import Tools
    from everlong.service_data.keys import Key

SCHEME = "everlong://"
_PAGE = 200  # resources
_LOOKS = 16  # memories that are opened for one page


def listing_resources(tools: Tools) -> ServerMiddleware[Any]:
    """Return what fills the server's answers to `resources/list`: it has no fixed resources of its own."""

    async def listing(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        answer = await call_next(ctx)
        if ctx.method != "resources/list" or not isinstance(answer, dict):
            return answer
        after = _place_of((ctx.params or {}).get("cursor"))
        rows, cursor = await _page(tools, tools.key_of_request(ctx.request), after)
        return {**answer, "resources": rows} | ({} if cursor is None else {"nextCursor": cursor})

    return listing


async def _page(tools: Tools, key: Key, after: tuple[str, str | None]) -> tuple[list[dict[str, str]], str | None]:
    """Return the resources behind a place, and where the next page begins; None where there is none.

    A place is a memory and one of its sources, or None for the end of them. So a page fits whatever changed meanwhile.
    """
    rows: list[dict[str, str]] = []
    memories = sorted(name for name in tools.registry.names() if key.may_see(name) and (name, None) != after)
    memories = [name for name in memories if name >= after[0]]
    for number, memory in enumerate(memories):
        if number == _LOOKS:
            return rows, _cursor(memories[number - 1], None)
        try:
            sources = await tools.look(key, memory, _sources)
        except (ApiError, EverlongError):  # it was removed meanwhile, or is damaged: the others are listed all the same
            continue
        for source in sources:
            if memory == after[0] and after[1] is not None and source <= after[1]:
                continue
            if len(rows) == _PAGE:
                return rows, rows[-1]["uri"].removeprefix(SCHEME)
            rows.append({"uri": SCHEME + _cursor(memory, source), "name": source, "mimeType": "text/plain"})
    return rows, None


def _sources(memory: Memory) -> list[str]:
    return sorted({info.source or CONVERSATION for info in memory.core.blocks.infos()})


def _cursor(memory: str, source: str | None) -> str:
    return memory if source is None else f"{memory}/{urllib.parse.quote(source, safe='')}"


def _place_of(cursor: Any) -> tuple[str, str | None]:
    """Return the place that a cursor means. MCPError for what is none."""
    if cursor is None:
        return "", ""
    memory, named, source = str(cursor).partition("/")
    try:
        return memory, urllib.parse.unquote(source, errors="strict") if named else None
    except UnicodeDecodeError:
        raise MCPError(code=INVALID_PARAMS, message="the cursor is none of an earlier page") from None
