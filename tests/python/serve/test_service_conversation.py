"""A source of the name under which what was said is listed is forgotten and told by that name, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from everlong import MemoryModel
from everlong.memory import Memory
from everlong.serve.inspector import MemoryInspector
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.mcp_tools import Tools
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import ANYONE
from everlong.service_data.memory_registry import MemoryRegistry
from everlong.service_data.spool import TextMetadata
from everlong.text.notebook_html import CONVERSATION
from support.service import SETTINGS, chat_tokenizer, tiny_loaded

READ = "The salary of Marlene is 4711 coins. " * 4


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_loaded()


@pytest.fixture
def root(tmp_path: Path, loaded: LoadedModel) -> Path:
    with MemoryModel(loaded.model, chat_tokenizer(), tmp_path / "m", SETTINGS) as model:
        model.read(READ, source=CONVERSATION)
        model.generate("Who earns what?", 3)
    return tmp_path


def held(root: Path) -> set[str]:
    with Memory.open(root / "m") as memory:
        return {block.source for block in memory.blocks()}


def tools_of(root: Path) -> Tools:
    return Tools(MemoryRegistry(root), MemoryInspector(chat_tokenizer()), lambda context: ANYONE, None)


def by_a_tool(root: Path, loaded: LoadedModel) -> int:
    return int(asyncio.run(tools_of(root).forget(ANYONE, "m", CONVERSATION))["blocks"])


def by_the_service(root: Path, loaded: LoadedModel) -> int:
    service = Service(loaded, root)
    service.start()
    try:
        tools = Tools(service.registry, service.inspector, lambda context: ANYONE, service)
        return int(asyncio.run(tools.forget(ANYONE, "m", CONVERSATION))["blocks"])
    finally:
        service.stop(1.0)


@pytest.mark.parametrize("forget", [by_a_tool, by_the_service])
def test_the_source_goes_first_and_then_what_was_said(
    root: Path, loaded: LoadedModel, forget: Callable[[Path, LoadedModel], int]
) -> None:
    assert held(root) == {CONVERSATION, ""}
    assert forget(root, loaded) > 0
    assert held(root) == {""}
    assert forget(root, loaded) > 0
    assert held(root) == set()


def test_the_text_of_that_name_is_the_sources(root: Path) -> None:
    def text() -> str:
        return asyncio.run(tools_of(root).text_of(ANYONE, "m", CONVERSATION))

    assert text() == READ
    by_a_tool(root, tiny_loaded())
    assert "Who earns what?" in text()
    by_a_tool(root, tiny_loaded())
    with pytest.raises(ApiError):
        text()


def test_a_text_of_that_name_that_waits_is_forgotten_and_what_was_said_stays(root: Path, loaded: LoadedModel) -> None:
    by_a_tool(root, loaded)
    service = Service(loaded, root)
    try:
        id, file = service.spool.begin(f"{CONVERSATION}.md", ANYONE.name, len(READ))
        with file:
            file.write(READ.encode())
            service.spool.accept(id, file, "m", ANYONE.name, TextMetadata(""), service.registry.id("m"))
        service.engine.start()
        tools = Tools(service.registry, service.inspector, lambda context: ANYONE, service)
        assert asyncio.run(tools.forget(ANYONE, "m", CONVERSATION))["blocks"] == 1
        assert held(root) == {""}
        assert not service.spool.jobs(service.registry.id("m"), "m")
    finally:
        service.engine.stop(1.0)
        service.records.close()
        service.audit.close()
        service.folder.close()
