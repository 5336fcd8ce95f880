"""The picture of a memory's graph, from the command's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everlong import MemoryModel
from everlong.cli.app import app
from everlong.pictures.graph import draw_graph
from support import TINY_MEMORY, byte_tokenizer, tiny_model


def a_block(id: int, topic: int | None, **changes: Any) -> dict[str, Any]:
    said = {"id": id, "topic": topic, "above": 90, "source": "book", "tokens": 100, "about": "book"}
    return said | changes


def test_what_the_command_says_is_drawn(tmp_path: Path) -> None:
    config = TINY_MEMORY.changed(archive={"graph": True, "graph_share": 1.0, "tagger": "keyphrases"})
    with MemoryModel(tiny_model("llama"), byte_tokenizer(), tmp_path / "m", config) as mm:
        mm.read("The miller of the dell ground all the corn. " * 30, source="mill")
        mm.read("A ship came home with salt and silver. " * 30, source="sea")
    told = CliRunner().invoke(app, ["graph", str(tmp_path / "m"), "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert len(report["graph"]) == report["blocks"]
    by_topic = {block["topic"]: block["about"] for block in report["graph"]}
    assert by_topic.keys() >= {topic["id"] for topic in report["largest"]}
    assert all(by_topic[topic["id"]] == topic["about"] for topic in report["largest"])
    assert any("salt" in about or "corn" in about for about in by_topic.values())
    (tmp_path / "graph.json").write_text(told.stdout)
    drawn = CliRunner().invoke(app, ["plot", str(tmp_path / "graph.json"), "--out", str(tmp_path / "out")])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "out" / "graph.svg").read_text().startswith("<?xml")
    assert (tmp_path / "out" / "graph.png").stat().st_size > 5000


def test_topics_are_called_by_what_their_blocks_are_about(tmp_path: Path) -> None:
    blocks = [a_block(1, 7, about="corn, miller"), a_block(2, 7, about="corn, miller")]
    blocks += [a_block(3, 8), a_block(5, 8), a_block(6, 9)]
    svg = draw_graph([*blocks, a_block(4, None)], tmp_path / "a.svg").read_text()
    assert "corn, miller" in svg
    assert "book" in svg
    assert "1 smaller topics" in svg
    crowd = [a_block(id, id + 100, above=id % 3) for id in range(1, 41)]
    assert "16 smaller topics" in draw_graph(crowd, tmp_path / "b.svg").read_text()
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_graph([a_block(1, None)], tmp_path / "c.svg")
