"""Tables that frameworks keep with a memory: many writers lose nothing, and what fails changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.errors import CapacityError, MemoryBusyError
from support import SMALL, TINY_MEMORY, open_model
from support.examples import examples
from support.processes import PROCESSES

pytest.importorskip("langgraph.store.base", reason="the package langgraph-checkpoint is not installed")
pytest.importorskip("langchain_core", reason="the package langchain-core is not installed")

from langchain_core.messages import HumanMessage
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from everlong.integrations.langchain import EverlongChatMessageHistory
from everlong.integrations.langgraph import EverlongStore

THREADS = 12
ADA = ("users", "ada")
ORIGIN = "langgraph "


def origins(mm: Any) -> list[str]:
    """The items that blocks are of, each once for each block; all texts here fit into one."""
    return sorted(block.origin for block in mm.memory.blocks() if block.origin.startswith(ORIGIN))


def origin(namespace: tuple[str, ...], key: str) -> str:
    return ORIGIN + json.dumps([*namespace, key])


def items(store: Any) -> dict[tuple[Any, str], Any]:
    return {(one.namespace, one.key): one.value for one in store.search((), limit=1000)}


def held(mm: Any) -> Any:
    """All that a memory holds, and the tables beside it."""
    blocks = [(block.id, block.origin, mm.text(block.id)) for block in mm.memory.blocks()]
    return blocks, mm.memory.core.file("langgraph.json")


def test_items_that_many_threads_put_are_all_there_and_found() -> None:
    with open_model(config=TINY_MEMORY) as mm, ThreadPoolExecutor(THREADS) as pool:
        stores = [EverlongStore(mm) for _ in range(3)]

        def work(n: int) -> None:
            store = stores[n % len(stores)]
            store.put(ADA, f"k{n}", {"text": f"fact {n} of many"})
            store.put(ADA, "shared", {"text": f"seen by {n}"})
            store.put(ADA, f"k{n}", {"text": f"fact {n}, once more"})

        list(pool.map(work, range(THREADS)))
        found = items(stores[0])
        assert {key for _, key in found} == {"shared", *(f"k{n}" for n in range(THREADS))}
        assert all(found[ADA, f"k{n}"] == {"text": f"fact {n}, once more"} for n in range(THREADS))
        assert origins(mm) == sorted(origin(*name) for name in found)
        (block,) = [one for one in mm.memory.blocks() if one.origin == origin(ADA, "shared")]
        assert found[ADA, "shared"]["text"] in mm.text(block.id)


def test_items_that_tasks_of_a_loop_put_are_all_there() -> None:
    with open_model(config=TINY_MEMORY) as mm:
        store, history = EverlongStore(mm), EverlongChatMessageHistory(mm, "ada")

        async def work() -> None:
            puts = [store.aput(ADA, f"k{n}", {"text": f"fact {n}"}) for n in range(THREADS)]
            said = [[HumanMessage(f"word {n}"), HumanMessage(f"end {n}")] for n in range(THREADS)]
            await asyncio.gather(*puts, *map(history.aadd_messages, said))

        asyncio.run(work())
        assert len(items(store)) == THREADS
        said = [str(one.content) for one in history.messages]
        assert sorted(said) == sorted([f"word {n}" for n in range(THREADS)] + [f"end {n}" for n in range(THREADS)])
        assert all(said[at + 1] == said[at].replace("word", "end") for at in range(0, len(said), 2))  # a call is whole
        assert len({block.origin for block in mm.memory.blocks("ada")}) == len(said)


def put_from_a_process(folder: Path, number: int) -> None:
    for n in range(2):
        while True:  # one process writes to a memory at a time
            try:
                mm = open_model(folder, TINY_MEMORY)
                break
            except MemoryBusyError:
                time.sleep(0.01)
        with mm:
            EverlongStore(mm).put(ADA, f"p{number} {n}", {"text": f"fact {n} of process {number}"})
            EverlongChatMessageHistory(mm, "s").add_user_message(f"message {n} of process {number}")


@pytest.mark.slow
def test_what_four_processes_write_is_all_there(tmp_path: Path) -> None:
    open_model(tmp_path / "m", TINY_MEMORY).close()
    processes = [PROCESSES.Process(target=put_from_a_process, args=(tmp_path / "m", number)) for number in range(4)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0] * 4
    names = [(number, n) for number in range(4) for n in range(2)]
    with open_model(tmp_path / "m", TINY_MEMORY) as mm:
        assert sorted(items(EverlongStore(mm))) == sorted((ADA, f"p{number} {n}") for number, n in names)
        said = [str(one.content) for one in EverlongChatMessageHistory(mm, "s").messages]
        assert sorted(said) == sorted(f"message {n} of process {number}" for number, n in names)


@pytest.mark.parametrize("bad", [{"text": object()}, {"text": "half \ud800"}], ids=["no JSON", "no text"])
def test_a_batch_that_fails_changes_nothing(bad: dict[str, Any]) -> None:
    with open_model(config=TINY_MEMORY) as mm:
        store = EverlongStore(mm)
        store.batch([PutOp(ADA, "a", {"text": "one at first"}), PutOp(ADA, "b", {"text": "two at first"})])
        before = held(mm)
        with pytest.raises((TypeError, ValueError)):
            store.batch([PutOp(ADA, "c", {"text": "three"}), PutOp(ADA, "a", None), PutOp(ADA, "b", bad)])
        assert held(mm) == before
        history = EverlongChatMessageHistory(mm, "s")
        history.add_user_message("kept")
        with pytest.raises((TypeError, ValueError)):
            history.add_messages([HumanMessage("gone again"), HumanMessage("half \ud800")])
        assert [one.content for one in history.messages] == ["kept"]
        assert len(mm.memory.blocks("s")) == 1


def test_a_table_that_finds_no_room_leaves_all_as_it_was() -> None:
    with open_model(config=SMALL.changed(archive={"host_bytes": 2_000_000})) as mm:
        store = EverlongStore(mm)
        store.put(ADA, "a", {"text": "the boat is called Petrel"})
        before = held(mm)
        with pytest.raises(CapacityError):
            store.batch([PutOp(ADA, "a", {"text": "short", "more": "x" * 4_000_000}, index=["text"])])
        assert held(mm) == before
        store.put(ADA, "a", {"text": "the boat was sold"})
        assert items(store) == {(ADA, "a"): {"text": "the boat was sold"}}
        assert origins(mm) == [origin(ADA, "a")]


@pytest.mark.parametrize("session", ["notes", "", "a 1"])
def test_a_history_that_is_cleared_leaves_what_else_has_its_name(session: str) -> None:
    with open_model(config=TINY_MEMORY) as mm:
        mm.read("A file of the user.", source=session, origin="/home/ada/notes")
        mm.read("A text without a place.", source=session)
        other = EverlongChatMessageHistory(mm, f"{session} 1")
        other.add_user_message("of another session")
        before = held(mm)
        history = EverlongChatMessageHistory(mm, session)
        history.add_messages([HumanMessage("one"), HumanMessage("two")])
        assert held(mm) != before
        history.clear()
        assert history.messages == []
        assert held(mm) == before
        assert [one.content for one in other.messages] == ["of another session"]


NAMES = st.tuples(st.sampled_from([("a",), ("a", "b"), ("c",)]), st.sampled_from("kl"))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a red kite", "half \ud800", "the lamp"]))


@pytest.mark.slow
@examples(30)
@given(st.lists(st.lists(st.tuples(NAMES, TEXTS), min_size=1, max_size=4), max_size=6))
def test_items_and_blocks_stay_one(batches: list[list[tuple[Any, str | None]]]) -> None:
    """After any batches the items are those of a plain store that took the batches which passed, each with its text."""
    plain = InMemoryStore()
    with open_model(config=TINY_MEMORY) as mm:
        store = EverlongStore(mm)
        for batch in batches:
            ops = [PutOp(*name, None if text is None else {"text": text}, index=["text"]) for name, text in batch]
            newest = dict(batch)
            if any(text is not None and "\ud800" in text for text in newest.values()):
                with pytest.raises(ValueError, match="surrogate"):
                    store.batch(ops)
            else:
                store.batch(ops)
                plain.batch(ops)
            assert items(store) == items(plain)
            assert origins(mm) == sorted(origin(*name) for name, value in items(plain).items() if value["text"].strip())
