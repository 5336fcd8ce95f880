"""Sources as resources of MCP: all of them are listed, page by page, and each is read by its address."""

from __future__ import annotations

import asyncio
import dataclasses
import types
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.exceptions import MCPError

from everlong.serve import mcp_resources
from everlong.serve.mcp_resources import SCHEME, listing_resources
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key, Keys, hash_of
from support.examples import examples
from support.service import running

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
MEMORIES = st.dictionaries(st.text("abc.-_", min_size=1, max_size=3), st.sets(NAMES, max_size=6), max_size=6)


@dataclasses.dataclass
class FewTools:
    """What the lister needs of the tools, over memories that are names alone. None is a memory that is damaged."""

    memories: dict[str, set[str] | None]

    @property
    def registry(self) -> Any:
        return types.SimpleNamespace(names=lambda: sorted(self.memories))

    def key_of_request(self, request: Any) -> Key:
        return Key("ada", memories=("*",) if request is None else request)

    async def look(self, key: Key, memory: str, look: Any) -> Any:
        sources = self.memories[memory]
        if sources is None:
            raise ApiError(500, "damaged", "corrupt")
        infos = [types.SimpleNamespace(source=source) for source in [*sources, *sources]]
        return look(
            types.SimpleNamespace(core=types.SimpleNamespace(blocks=types.SimpleNamespace(infos=lambda: infos)))
        )


def page(tools: FewTools, cursor: str | None = None, request: Any = None) -> dict[str, Any]:
    async def call_next(ctx: Any) -> Any:
        return {"resources": [], "ttl": 3}

    ctx: Any = types.SimpleNamespace(method="resources/list", params={"cursor": cursor}, request=request)
    listing: Any = listing_resources(tools)  # type: ignore[arg-type]
    return dict(asyncio.run(listing(ctx, call_next)))


def pages(tools: FewTools, request: Any = None) -> list[dict[str, str]]:
    rows, cursor = [], None
    while True:
        answer = page(tools, cursor, request)
        assert answer["ttl"] == 3
        rows += answer["resources"]
        cursor = answer.get("nextCursor")
        if cursor is None:
            return rows


@examples(60)
@given(MEMORIES, st.integers(1, 4), st.integers(1, 3), st.data())
def test_all_sources_are_listed_once_and_in_order(
    memories: dict[str, set[str]], most: int, looks: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mcp_resources, "_PAGE", most)
        patched.setattr(mcp_resources, "_LOOKS", looks)
        tools = FewTools({**memories, "damaged": None})
        rows = pages(tools)
        assert [row["name"] for row in rows] == [one for memory in sorted(memories) for one in sorted(memories[memory])]
        assert len({row["uri"] for row in rows}) == len(rows)
        assert all(row["uri"].isascii() and row["uri"].startswith(SCHEME) for row in rows)
        seen = tuple(data.draw(st.sets(st.sampled_from(sorted(memories)))) if memories else ())
        assert {row["uri"].split("/")[2] for row in pages(tools, seen)} == {one for one in seen if memories[one]}
        # What is removed between two pages costs no other source.
        first = page(tools)
        gone = {row["name"] for row in first["resources"]}
        left = FewTools({memory: sources - gone for memory, sources in memories.items()})
        rest = first["resources"] + (pages_from(left, first["nextCursor"]) if "nextCursor" in first else [])
        assert {row["name"] for row in rest} == {one for sources in memories.values() for one in sources}


def pages_from(tools: FewTools, cursor: str) -> list[dict[str, str]]:
    answer = page(tools, cursor)
    return answer["resources"] + (pages_from(tools, answer["nextCursor"]) if "nextCursor" in answer else [])


def test_a_cursor_that_is_none_is_refused() -> None:
    with pytest.raises(MCPError):
        page(FewTools({"a": {"b"}}), "a/%ff")


SOURCES = ("lease", "papers/2024/ä b.txt", "who? what#1 100%.txt", "日本語", "/etc/hosts", "../a", "a%20b", "a+b")


@pytest.mark.slow
def test_each_source_is_a_resource_that_is_listed_and_read(tmp_path: Path) -> None:
    keys = Keys((Key("ada", hash_of("ada")), Key("ben", hash_of("ben"), memories=("other",))))
    with running(tmp_path / "memories", keys=keys) as there:
        headers = {"Authorization": "Bearer ada"}
        with httpx.Client(base_url=there.api, headers=headers, timeout=120) as http:
            http.post("/memories", json={"name": "m"}).raise_for_status()
            http.post("/memories", json={"name": "other"}).raise_for_status()
            for source in SOURCES:
                body = {"source": source, "text": f"The words of {source}.", "wait": True}
                http.post("/memories/m/sources", json=body).raise_for_status()

        async def use() -> None:
            async with (
                create_mcp_http_client(headers=headers) as web,
                Client(streamable_http_client(f"{there.url}/mcp/", http_client=web)) as client,
            ):
                listed = (await client.list_resources()).resources
                assert [one.name for one in listed] == sorted(SOURCES)
                for one in listed:
                    (content,) = (await client.read_resource(one.uri)).contents
                    assert content.text == f"The words of {one.name}."
                (content,) = (await client.read_resource("everlong://m/papers/2024/ä b.txt")).contents
                assert content.text == "The words of papers/2024/ä b.txt."
            async with (
                create_mcp_http_client(headers={"Authorization": "Bearer ben"}) as web,
                Client(streamable_http_client(f"{there.url}/mcp", http_client=web)) as client,
            ):
                assert (await client.list_resources()).resources == []

        anyio.run(use)
