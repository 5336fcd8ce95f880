"""LangGraph: a store whose items a memory keeps, and finds by what they say."""

from __future__ import annotations

import datetime
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from everlong.generation.memory_model import MemoryModel
from everlong.integrations.exclusive import exclusive
from everlong.integrations.extras import missing
from everlong.integrations.table import Rows, Table
from everlong.integrations.threads import in_thread
from everlong.memory.where import Where

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        get_text_at_path,
        tokenize_path,
    )
except ImportError as error:
    raise missing(error, "langgraph") from error

_FILE = "langgraph.json"
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
Namespace = tuple[str, ...]
Name = tuple[Namespace, str]  # of an item: its namespace and its key


class EverlongStore(BaseStore):
    """Items of JSON by namespace and key. `search(namespace, query="...")` finds them by the memory's index.

    What an item says is read into the memory when it is put: all of it, or the fields of `index`. A search with a query
    returns what was found, best first, and one without returns the newest first.
    """

    supports_ttl = False

    def __init__(self, memory: MemoryModel) -> None:
        self._memory, self._table = memory, Table(memory, _FILE)

    # --- operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations, all or none. All that look see what was there before."""
        several = list(ops)
        puts = {(tuple(op.namespace), op.key): op for op in several if isinstance(op, PutOp)}
        if not puts:
            return self._looked(several, _items(self._table.rows()))
        # What is no JSON is refused before anything is read.
        told = {name: (_text(op), json.loads(json.dumps(op.value))) for name, op in puts.items()}
        with self._table.change() as change:
            items = _items(change.rows)
            results = self._looked(several, items)
            for name, (text, value) in told.items():
                change.replace(_origin(name))
                change.read(text, _source(name[0]), _origin(name), again=True)
                before = items.pop(name, None)
                if value is not None:
                    now = datetime.datetime.now(datetime.UTC)
                    since = now if before is None else before.created_at
                    items[name] = Item(value=value, key=name[1], namespace=name[0], created_at=since, updated_at=now)
            change.rows = _rows(items)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do as `batch`, in a thread."""
        several = list(ops)
        return await in_thread(lambda: self.batch(several))

    def _looked(self, ops: Sequence[Op], items: Mapping[Name, Item]) -> list[Result]:
        return [self._look(op, items) for op in ops]

    def _look(self, op: Op, items: Mapping[Name, Item]) -> Result:
        """Return what an operation says of the items; None for one that changes them."""
        if isinstance(op, GetOp):
            return items.get((tuple(op.namespace), op.key))
        if isinstance(op, SearchOp):
            return self._search(op, items)
        if isinstance(op, ListNamespacesOp):
            return _namespaces(op, {namespace for namespace, _ in items})
        if isinstance(op, PutOp):
            return None
        raise ValueError(f"{op!r} is no operation of a store")

    def _search(self, op: SearchOp, items: Mapping[Name, Item]) -> list[SearchItem]:
        prefix = tuple(op.namespace_prefix)
        passing = {
            name: item
            for name, item in items.items()
            if name[0][: len(prefix)] == prefix and _passes(item.value, op.filter or {})
        }
        ranked: list[tuple[Name, float | None]]
        if op.query:
            ranked = list(self._ranked(op.query, passing))
        else:
            newest = sorted(passing, key=lambda name: passing[name].updated_at, reverse=True)
            ranked = [(name, None) for name in newest]
        return [
            SearchItem(
                namespace=passing[name].namespace,
                key=passing[name].key,
                value=passing[name].value,
                created_at=passing[name].created_at,
                updated_at=passing[name].updated_at,
                score=score,
            )
            for name, score in ranked[op.offset : op.offset + op.limit]
        ]

    def _ranked(self, query: str, passing: Mapping[Name, Item]) -> Iterable[tuple[Name, float]]:
        """Return the items that a query finds, best first, with scores that are comparable within the search."""
        if not passing:
            return ()
        of = {_origin(name): name for name in passing}
        where = Where(source=sorted({_source(namespace) for namespace, _ in passing}))
        # Other items of the same namespaces, and other passages of one item, may stand before.
        found = exclusive(lambda: self._memory.find(query, k=4 * len(of) + 16, where=where))
        best: dict[Name, float] = {}
        for one in found:
            if one.origin in of:
                best.setdefault(of[one.origin], one.score)
        return best.items()


def _items(rows: Rows) -> dict[Name, Item]:
    items = [Item(value=v, key=k, namespace=n, created_at=c, updated_at=u) for n, k, v, c, u in rows]
    return {(item.namespace, item.key): item for item in items}


def _rows(items: Mapping[Name, Item]) -> Rows:
    return [
        (one.namespace, one.key, one.value, one.created_at.isoformat(), one.updated_at.isoformat())
        for one in items.values()
    ]


def _origin(name: Name) -> str:
    return f"langgraph {json.dumps([*name[0], name[1]])}"


def _source(namespace: Sequence[str]) -> str:
    return ".".join(namespace)


def _text(op: PutOp) -> str:
    """Return what is read of an item: all of it, or the fields that its `index` names; nothing where that is False."""
    if op.index is False or op.value is None:
        return ""
    if op.index is None:
        return "\n".join(
            f"{name}: {said if isinstance(said, str) else json.dumps(said)}" for name, said in op.value.items()
        )
    return "\n".join(text for path in op.index for text in get_text_at_path(op.value, tokenize_path(path)))


def _passes(value: Any, wanted: Mapping[str, Any]) -> bool:
    return all(_agrees(value.get(name), one) for name, one in wanted.items())


def _agrees(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping) or not any(str(name).startswith("$") for name in wanted):
        return bool(value == wanted)
    unknown = set(wanted) - set(_COMPARED)
    if unknown:
        raise ValueError(f"the filter has {sorted(unknown)[0]!r}, expected {', '.join(_COMPARED)}")
    ordered = value is not None or set(wanted) <= {"$eq", "$ne"}
    return ordered and all(_COMPARED[name](value, one) for name, one in wanted.items())


def _namespaces(op: ListNamespacesOp, there: Iterable[Namespace]) -> list[Namespace]:
    passing = [one for one in there if all(_matches(one, condition) for condition in op.match_conditions or ())]
    cut = sorted({one[: op.max_depth] for one in passing})
    return cut[op.offset : op.offset + op.limit]


def _matches(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
