"""A LangGraph store over a memory: against InMemoryStore, which needs no memory, and for what only a memory finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support import TINY_MEMORY, open_model

pytest.importorskip("langgraph.store.base", reason="the package langgraph-checkpoint is not installed")

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from everlong.integrations.langgraph import EverlongStore

ANN, BEN = ("users", "ann"), ("users", "ben")


def filled(store: BaseStore) -> BaseStore:
    store.put(ANN, "pet", {"text": "Ann has a grey parrot", "age": 7})
    store.put(ANN, "boat", {"text": "Ann sails a boat called Petrel", "age": 3})
    store.put(BEN, "dog", {"text": "Ben walks his dog Rex", "age": 5})
    store.put(("docs",), "manual", {"text": "Press the red lever", "age": 1, "pages": [1, 2]})
    return store


def told(found: Any) -> Any:
    return None if found is None else (found.namespace, found.key, found.value)


def calls(store: BaseStore) -> list[Any]:
    """What a store says to calls without a query."""
    said: list[Any] = [told(store.get(ANN, "pet")), told(store.get(ANN, "none"))]
    for how in (
        {"filter": {"age": 7}},
        {"filter": {"age": {"$gt": 3}}},
        {"filter": {"age": {"$gte": 3, "$lt": 7}}},
        {"filter": {"age": {"$ne": 7}}},
        {},
    ):
        for prefix in (("users",), ANN, (), ("none",)):
            said.append(sorted(map(told, store.search(prefix, **how))))
    said += [
        store.list_namespaces(),
        store.list_namespaces(prefix=("users",)),
        store.list_namespaces(suffix=("ann",)),
        store.list_namespaces(prefix=("users", "*")),
        store.list_namespaces(max_depth=1),
        store.list_namespaces(limit=1, offset=1),
    ]
    store.delete(ANN, "pet")
    store.put(ANN, "boat", {"text": "Ann sold her boat", "age": 4})
    return [*said, told(store.get(ANN, "pet")), told(store.get(ANN, "boat")), len(store.search(("users",)))]


def test_it_says_what_a_plain_store_says() -> None:
    with open_model(config=TINY_MEMORY) as mm:
        assert calls(filled(EverlongStore(mm))) == calls(filled(InMemoryStore()))


def test_items_are_found_by_what_they_say_and_stay(tmp_path: Path) -> None:
    with open_model(tmp_path / "m", TINY_MEMORY) as mm:
        store = filled(EverlongStore(mm))
        (first, *_) = store.search(("users",), query="Which boat does she sail?")
        assert (first.key, first.score is not None) == ("boat", True)
        assert [one.key for one in store.search(BEN, query="parrot boat dog Rex")] == ["dog"]
        assert [one.key for one in store.search((), query="the red lever", limit=1)] == ["manual"]
        assert store.search(("users",), query="boat dog parrot", offset=9) == []
    with open_model(tmp_path / "m", TINY_MEMORY) as mm:
        store = EverlongStore(mm)
        made = store.get(ANN, "boat")
        store.put(ANN, "boat", {"text": "Ann sold the Petrel and bought a kayak"})
        again = store.get(ANN, "boat")
        assert (again.created_at, again.updated_at > made.updated_at) == (made.created_at, True)
        assert "kayak" in store.search(ANN, query="kayak")[0].value["text"]
        assert len({block.origin for block in mm.memory.blocks("users.ann")}) == 2
        store.delete(ANN, "boat")
        assert [one.key for one in store.search(ANN, query="kayak Petrel")] in ([], ["pet"])
        assert len(mm.memory.blocks("users.ann")) == 1


def test_only_what_index_names_is_read() -> None:
    with open_model(config=TINY_MEMORY) as mm:
        store = EverlongStore(mm)
        store.put(ANN, "a", {"text": "a parrot", "note": "a kayak"}, index=["text"])
        store.put(ANN, "b", {"text": "a kayak of wood"}, index=False)
        assert [one.key for one in store.search(ANN, query="kayak of wood")] in ([], ["a"])
        assert "kayak" not in "".join(mm.text(block.id) for block in mm.memory.blocks())
        assert {one.key for one in store.search(ANN)} == {"a", "b"}


def test_batches_look_before_they_write_and_run_in_a_loop() -> None:
    with open_model(config=TINY_MEMORY) as mm:
        store = EverlongStore(mm)
        ops = [PutOp(ANN, "a", {"text": "one"}), GetOp(ANN, "a"), SearchOp(ANN), PutOp(ANN, "a", {"text": "two"})]
        assert store.batch(ops) == [None, None, [], None]
        assert asyncio.run(store.aget(ANN, "a")).value == {"text": "two"}
        assert [one.key for one in asyncio.run(store.asearch(ANN, query="two"))] == ["a"]
        with pytest.raises(ValueError, match="expected \\$eq"):
            store.search(ANN, filter={"text": {"$near": 1}})
        with pytest.raises(TypeError):
            store.put(ANN, "a", {"text": object()})
        assert store.get(ANN, "a").value == {"text": "two"}
