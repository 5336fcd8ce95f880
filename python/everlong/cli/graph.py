"""`everlong graph`: what a memory's graph has, and its export."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from everlong.cli.app import Json, app, print_json
from everlong.text.terminal import escape_controls, escaping_console, print_escaped

_SHOWN_SOURCES = 2


@app.command()
def graph(
    memory: Annotated[Path, typer.Argument(help="Folder of the memory.")],
    graphml: Annotated[
        Path | None,
        typer.Option(
            help="Write the whole graph as GraphML into this file, for Gephi, yEd or Cytoscape.", dir_okay=False
        ),
    ] = None,
    topics: Annotated[int, typer.Option(help="Number of topics to list, the largest first.", min=0)] = 20,
    as_json: Json = False,
) -> None:
    """Show the topics of a memory and their blocks, without a model. `everlong read --set archive.graph=true` grows
    them.
    """
    from everlong.memory import Memory

    with Memory.open(memory, read_only=True) as kept:
        report = _report(kept, topics)
        if graphml is not None:
            kept.graph.write_graphml(graphml)
    if as_json:
        print_json(report)
        return
    _print(memory, report)
    if graphml is not None:
        print_escaped(f"written to {graphml}")


def _report(memory: Any, listed: int) -> dict[str, Any]:
    blocks = {block.id: block for block in memory.blocks()}
    nodes, edges = memory.graph.nodes(), memory.graph.edges()
    found = [node for node in nodes if node.kind == "topic"]
    entities = sorted((node for node in nodes if node.kind == "entity"), key=lambda node: (-node.count, node.name))
    members, belongs = collections.defaultdict(list), collections.defaultdict(list)
    for edge in edges:
        if edge.kind == "belongs_to":
            members[edge.target].append(edge.source)
            belongs[edge.source].append(edge.target)
    names = memory.graph.names()
    largest = sorted((node for node in found if node.level == 0), key=lambda node: (-node.count, node.id))[:listed]
    return {
        "nodes": len(nodes),
        "edges": len(edges),
        "blocks": sum(node.kind == "block" for node in nodes),
        "topics": [count for _, count in sorted(collections.Counter(node.level for node in found).items())],
        "largest": [
            {
                "id": node.id,
                "about": names[node.id],
                "blocks": node.count,
                "belongs_to": sorted(belongs[node.id]),
                "first": node.created_at.isoformat(),
                "newest": node.updated_at.isoformat(),
                "sources": collections.Counter(blocks[id].source for id in members[node.id] if id in blocks),
            }
            for node in largest
        ],
        "days": {node.name: node.count for node in nodes if node.kind == "timeline" and node.level == 0},
        "entities": {node.name: node.count for node in entities[:listed]},
        # for `everlong plot`: all blocks, in the order of archiving
        "graph": [
            {
                "id": block.id,
                "topic": (topic := _topic_of(belongs, block.id)),
                "about": "" if topic is None else names[topic],
                "above": None if topic is None else _topic_of(belongs, topic),
                "source": block.source,
                "tokens": block.span[1] - block.span[0],
                "keyphrases": block.keyphrases,
            }
            for block in blocks.values()
        ],
    }


def _topic_of(belongs: dict[int, list[int]], id: int) -> int | None:
    return min(belongs.get(id, ()), default=None)


def _print(folder: Path, report: dict[str, Any]) -> None:
    if report["nodes"] == 0:
        print_escaped(f"{folder}: no graph; a reading with --set archive.graph=true grows one")
        return
    levels = ", ".join(f"{count:,} on level {level}" for level, count in enumerate(report["topics"])) or "none"
    print_escaped(
        f"{folder}: {report['blocks']:,} blocks, days: {len(report['days']):,}, topics: {levels}; "
        f"{report['edges']:,} edges"
    )
    if report["entities"]:
        names = ", ".join(f"{name} {count:,}" for name, count in report["entities"].items())
        print_escaped(f"named most: {names}")
    if not report["largest"]:
        return
    table = Table()
    table.add_column("topic", no_wrap=True)
    table.add_column("about", ratio=3)
    table.add_column("blocks", justify="right", no_wrap=True)
    table.add_column("sources", ratio=2)
    for topic in report["largest"]:
        named = [f"{name or 'conversation'} {count:,}" for name, count in topic["sources"].most_common(_SHOWN_SOURCES)]
        more = ["..."] if len(topic["sources"]) > _SHOWN_SOURCES else []
        about, sources = escape_controls(topic["about"]), escape_controls(", ".join(named + more))
        table.add_row(str(topic["id"]), about, f"{topic['blocks']:,}", sources)
    escaping_console().print(table)
