"""The official MCP client uses memories, over HTTP and by standard input and output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from support import random_text, tiny_model
from support.service import Running, chat_tokenizer, running

pytestmark = pytest.mark.slow

MODES = ["legacy", "auto"]  # by initialize, as before 2026-07-28; and by what the server speaks


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "memories") as there:
        httpx.post(f"{there.api}/memories", json={"name": "m"}, timeout=60).raise_for_status()
        yield there


def told(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    return dict(result.structured_content)


@pytest.mark.parametrize("mode", MODES)
def test_all_tools_over_http(service: Running, mode: str) -> None:
    async def use() -> None:
        async with Client(f"{service.url}/mcp", mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == {"sources", "recall", "remember", "forget", "ask"}
            assert {tool.name for tool in tools if tool.annotations.read_only_hint} == {"sources", "recall", "ask"}
            assert told(await client.call_tool("sources", {})) == {"memories": ["m"]}
            text = "The heron of Loch Arden stands on one leg. " + random_text(900)
            kept = told(await client.call_tool("remember", {"memory": "m", "text": text, "source": "birds"}))
            assert (kept["status"], kept["source"]) == ("done", "birds")
            asked = {"memory": "m", "question": "Where does the heron stand?"}
            found = told(await client.call_tool("recall", asked))["passages"]
            assert "heron of Loch Arden" in found[0]["text"]
            assert found[0]["source"] == "birds"
            answer = told(await client.call_tool("ask", {**asked, "max_tokens": 4}))
            assert answer["recall"][0]["source"] == "birds"
            resource = await client.read_resource("everlong://m/birds")
            assert resource.contents[0].text == text
            gone = told(await client.call_tool("forget", {"memory": "m", "source": "birds"}))
            assert gone["blocks"] > 0
            assert told(await client.call_tool("sources", {"memory": "m"}))["sources"] == []

    anyio.run(use)


def test_errors_are_told_in_words(service: Running) -> None:
    async def use() -> None:
        async with Client(f"{service.url}/mcp") as client:
            for name, given in [
                ("recall", {"memory": "none", "question": "a"}),
                ("recall", {"memory": "../m", "question": "a"}),
                ("recall", {"memory": "m", "question": " "}),
                ("remember", {"memory": "none", "text": "a", "source": "b"}),
                ("remember", {"memory": "m", "text": "a", "source": "b", "tags": ["by:ada"]}),
                ("ask", {"memory": "none", "question": "a"}),
            ]:
                result = await client.call_tool(name, given)
                assert result.is_error, (name, given)
                assert "Traceback" not in result.content[0].text

    anyio.run(use)


def test_by_standard_input_and_output_without_a_model(service: Running, tmp_path: Path) -> None:
    text = "The heron of Loch Arden stands on one leg. " + random_text(900)
    for mode in MODES:
        body = {"source": mode, "text": text, "wait": True}
        assert httpx.post(f"{service.api}/memories/m/sources", json=body, timeout=60).status_code == 200
    words = tmp_path / "words"
    tiny_model().save_pretrained(words)
    chat_tokenizer().save_pretrained(words)
    arguments = ["-m", "everlong", "mcp", "--memories", str(tmp_path / "memories"), "--words", str(words)]

    async def use(mode: str) -> None:
        started = stdio_client(StdioServerParameters(command=sys.executable, args=arguments))
        async with Client(started, mode=mode) as client:
            found = told(await client.call_tool("recall", {"memory": "m", "question": "heron"}))["passages"]
            assert any("heron of Loch Arden" in one["text"] for one in found)
            listed = told(await client.call_tool("sources", {"memory": "m"}))["sources"]
            assert mode in {one["name"] for one in listed}
            refused = await client.call_tool("ask", {"memory": "m", "question": "Where?"})
            assert refused.is_error
            assert "--model" in refused.content[0].text
            assert told(await client.call_tool("forget", {"memory": "m", "source": mode}))["blocks"] > 0

    async def use_both() -> None:
        async with anyio.create_task_group() as both:  # each is a process, which takes seconds to start
            for mode in MODES:
                both.start_soon(use, mode)

    anyio.run(use_both)
    assert httpx.get(f"{service.api}/memories/m/sources").json()["data"] == []
