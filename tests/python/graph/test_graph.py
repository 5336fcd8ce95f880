"""A memory's graph as a user meets it: grown while a MemoryModel reads, looked at without a model."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import networkx
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

import everlong
from everlong.cli.app import app
from everlong.graph.derived import derived_from
from everlong.graph.graph import EdgeKind
from everlong.graph.naming import names_of
from support import SMALL, byte_tokenizer, random_text, tiny_model

GROWING = SMALL.changed(archive={"graph": True})
ALL_KINDS: tuple[EdgeKind, ...] = get_args(EdgeKind)
TEXTS = {"a": random_text(1500, seed=1), "b": random_text(700, seed=2), "c": random_text(700, seed=3)}


def open_model(folder: Path | None, config: everlong.MemoryConfig = GROWING) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_model(tmp_path / "m") as mm:
        for source, text in TEXTS.items():
            mm.read(text, source=source)
    return tmp_path / "m"


@pytest.fixture
def memory(folder: Path) -> Iterator[everlong.Memory]:
    with everlong.Memory.open(folder) as memory:
        yield memory


def check(memory: everlong.Memory) -> None:
    """Every block is a node, in the chain of its stream and below one topic; sums are those of the nodes below."""
    graph = memory.graph
    blocks = [block.id for block in memory.blocks()]
    assert [node.id for node in graph.nodes("block")] == blocks
    for before, after in itertools.pairwise(blocks):
        assert graph.neighbours(before, "next") == [after]
        assert graph.neighbours(after, "previous") == [before]
    below: dict[int, list[int]] = {}
    for topic in sorted(graph.nodes("topic"), key=lambda topic: topic.level):
        members = graph.neighbours(topic.id, "belongs_to", incoming=True)
        assert all(graph.neighbours(member, "belongs_to") == [topic.id] for member in members)
        below[topic.id] = members if topic.level == 0 else [block for member in members for block in below[member]]
        core = memory.core.graph.node(topic.id)
        vectors = np.array([graph.node(block).vector for block in below[topic.id]], dtype=np.float64)
        sums = np.rint(vectors * 2**22).sum(0)
        assert topic.count == core.count == len(vectors)
        np.testing.assert_array_equal(core.linear_sum * 2**22, sums)
        np.testing.assert_allclose(topic.vector, vectors.mean(0), atol=1e-6)
    assert sorted(block for topic in graph.nodes("topic") if topic.level == 0 for block in below[topic.id]) == blocks


def test_reading_grows_it(memory: everlong.Memory) -> None:
    assert len(memory.blocks()) > 20
    check(memory)
    for block in memory.blocks():
        keys = [
            memory.core.blocks.read_keys(page, memory.core.manifest().layers - 1)
            for page in memory.core.blocks.pages()
            if page.block == block.id
        ]
        summed = sum(of_page.astype(np.float64).sum(1).reshape(-1) for of_page in keys)
        node = memory.graph.node(block.id)
        np.testing.assert_allclose(node.vector, summed / np.linalg.norm(summed), atol=1e-4)
        assert node.created_at == block.created_at


def test_nobody_who_did_not_ask_has_one(tmp_path: Path) -> None:
    with open_model(tmp_path / "m", SMALL) as mm:
        mm.read(TEXTS["a"])
    with everlong.Memory.open(tmp_path / "m") as memory:
        assert len(memory.graph) == 0
        assert memory.graph.nodes() == []
        assert memory.graph.edges() == []
    # Who asks later has all of it.
    with open_model(tmp_path / "m") as mm:
        mm.searcher.settle()
        check(mm.memory)


def test_a_memory_in_ram_has_one_too() -> None:
    with open_model(None) as mm:
        mm.read(TEXTS["a"])
        mm.searcher.settle()
        check(mm.memory)
        mm.memory.forget([2, 3])
        check(mm.memory)


def test_forgetting_and_going_on(folder: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        memory.forget(source="b")
        check(memory)
        assert memory.verify().damage == ()
    with open_model(folder) as mm:
        mm.read(random_text(200, seed=9), source="d")
    with everlong.Memory.open(folder) as memory:
        assert {block.source for block in memory.blocks()} == {"a", "c", "d"}
        check(memory)
        memory.forget([block.id for block in memory.blocks()])
        assert len(memory.graph) == 0


class Encoder:
    """A vector says how often letters are there."""

    name = "letters"

    def encode(self, sentences: list[str]) -> npt.NDArray[np.float32]:
        rows = [[1.0 + text.count(letter) for letter in "aeiost"] for text in sentences]
        return np.array(rows, dtype=np.float32)


def test_with_an_encoder_its_vectors(folder: Path) -> None:
    config = GROWING.changed(search={"index": ("lexical", "embedding"), "encoder": Encoder()})
    with open_model(folder, config) as mm:
        mm.searcher.settle()
        assert {node.vector.shape for node in mm.memory.graph.nodes("block")} == {(6,)}
        check(mm.memory)
        mm.read(random_text(200, seed=10), source="d")
        mm.searcher.settle()
        check(mm.memory)


def test_ways_and_networkx_agree(memory: everlong.Memory) -> None:
    graph = memory.graph.to_networkx()
    assert graph.number_of_nodes() == len(memory.graph) == len(memory.graph.nodes())
    assert graph.number_of_edges() == len(memory.graph.edges())
    blocks = {block.id: block for block in memory.blocks()}
    for id, attributes in graph.nodes(data=True):
        node = memory.graph.node(id)
        assert (attributes["kind"], attributes["level"], attributes["count"]) == (node.kind, node.level, node.count)
        if node.kind == "block":
            assert attributes["source"] == blocks[id].source
            assert (attributes["begin"], attributes["end"]) == blocks[id].span
    blocks_and_topics = sorted(id for id, kind in graph.nodes(data="kind") if kind in ("block", "topic"))
    for kinds in (("next", "previous", "belongs_to"), ("happened", "next_session"), ALL_KINDS):
        either = graph.edge_subgraph(edge for edge in graph.edges(keys=True) if edge[2] in kinds).to_undirected()
        ids = [id for id in blocks_and_topics if id in either]
        for source, target in ((ids[0], ids[-1]), (ids[3], ids[20]), (ids[5], ids[5])):
            way = memory.graph.path(source, target, kinds=kinds)
            assert len(way) == len(networkx.shortest_path(either, source, target))
            assert networkx.is_path(either, way)
    assert memory.graph.path(blocks_and_topics[0], blocks_and_topics[1], kinds=("mentions",)) == []
    with pytest.raises(everlong.errors.MemoryNotFoundError):
        memory.graph.node(999)
    with pytest.raises(everlong.errors.MemoryNotFoundError):
        memory.graph.neighbours(999)


def test_the_command_line_shows_and_writes_it(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.graphml"
    shown = CliRunner().invoke(app, ["graph", str(folder), "--graphml", str(file)])
    assert shown.exit_code == 0, shown.output
    with everlong.Memory.open(folder, read_only=True) as memory:
        read = networkx.read_graphml(file, node_type=int, force_multigraph=True)
        assert set(read.nodes) == {node.id for node in memory.graph.nodes()}
        assert read.number_of_edges() == len(memory.graph.edges())
        blocks = len(memory.blocks())
        topics = memory.graph.nodes("topic")
    assert f"{blocks:,} blocks" in shown.output
    table = shown.output[shown.output.index("┏") : shown.output.index("written to")]
    assert max(map(len, table.splitlines())) <= 80
    told = CliRunner().invoke(app, ["graph", str(folder), "--json", "--topics", "3"])
    report: dict[str, Any] = json.loads(told.output)
    assert (report["blocks"], sum(report["topics"])) == (blocks, len(topics))
    first = sorted((-topic.count, topic.id) for topic in topics if topic.level == 0)[:3]
    assert [(-topic["blocks"], topic["id"]) for topic in report["largest"]] == first
    for topic in report["largest"]:
        assert sum(topic["sources"].values()) == topic["blocks"]


def test_the_command_line_says_where_there_is_none(tmp_path: Path) -> None:
    with open_model(tmp_path / "m", SMALL) as mm:
        mm.read(TEXTS["a"])
    shown = CliRunner().invoke(app, ["graph", str(tmp_path / "m")])
    assert shown.exit_code == 0
    assert "no graph" in shown.output


def test_settings_of_it() -> None:
    config = everlong.MemoryConfig().with_settings(["archive.graph=true", "archive.graph_share=0.5"])
    assert (config.archive.graph, config.archive.graph_share) == (True, 0.5)
    assert not everlong.MemoryConfig().archive.graph
    for wrong in ("archive.graph=1", "archive.graph_share=0", "archive.graph_share=1.5"):
        with pytest.raises(ValueError, match="graph"):
            everlong.MemoryConfig().with_settings([wrong])


def test_topics_are_called_by_the_words_that_set_them_apart() -> None:
    phrases = {
        1: [["alice", "white rabbit"], ["alice", "rabbit", "queen"], ["white rabbit", "gloves"]],
        2: [["alice", "hatter", "tea"], ["hatter", "dormouse"]],
        3: [["alice"], []],
        4: [[], []],
    }
    names = names_of(phrases)
    # By the definition: tf-idf, in numpy.
    words = sorted({word for blocks in phrases.values() for block in blocks for word in block})
    counts = np.array([[sum(word in block for block in blocks) for word in words] for blocks in phrases.values()])
    scores = counts * np.log(len(phrases) / (counts > 0).sum(0))
    for row, topic in enumerate(phrases):
        first = names[topic].partition(", ")[0]
        assert (counts[row].max() == 0) == (first == "")
        assert first == "" or scores[row][words.index(first)] == scores[row].max()
    assert names[1] == "white rabbit, gloves, queen"  # "rabbit" is said, and "alice" is everywhere
    assert names[2].startswith("hatter, ")
    assert (names[3], names[4]) == ("alice", "")


def test_a_memory_names_its_topics(memory: everlong.Memory) -> None:
    names = memory.graph.names()
    assert names.keys() == {node.id for node in memory.graph.nodes("topic")}
    assert set(names.values()) <= set(TEXTS)  # without a tagger: what most of its blocks are from


BRANDY = "The old Captain Brandy walked down to the harbour, and Captain Brandy sang. "
MAY, JUNE = datetime.datetime(2024, 5, 30), datetime.datetime(2024, 6, 2, tzinfo=datetime.UTC)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A memory of three texts that happened on two days; two of them name somebody, one has a tag."""
    with open_model(tmp_path / "told", GROWING.changed(archive={"tagger": "keyphrases"})) as mm:
        mm.read(BRANDY * 6, source="one", happened=MAY.replace(tzinfo=datetime.UTC))
        mm.read("Nobody was at home when it rained. " * 6, source="two", happened=JUNE, tags=["weather"])
        mm.read(BRANDY * 6, source="three", happened=JUNE)
    return tmp_path / "told"


def expect_derived(memory: everlong.Memory) -> None:
    """Times and entities against the blocks, one by one."""
    graph, blocks = memory.graph, memory.blocks()
    days, names = {}, {}
    for block in blocks:
        when = block.happened or block.created_at
        for level, name in enumerate((f"{when:%Y-%m-%d}", f"{when:%Y-%m}", f"{when:%Y}")):
            days.setdefault((level, name), []).append(block.id)
        for name in {*block.tags, *(phrase for phrase in block.keyphrases if " " in phrase)}:
            names.setdefault(name, []).append(block.id)
    given = {tag for block in blocks for tag in block.tags}
    names = {name: of for name, of in names.items() if name in given or len(of) > 1}
    timeline = {(node.level, node.name): node for node in graph.nodes("timeline")}
    assert {key: node.count for key, node in timeline.items()} == {key: len(of) for key, of in days.items()}
    for (level, name), of in days.items():
        below = graph.neighbours(timeline[level, name].id, "happened", incoming=True)
        while below and below[0] > 1 << 40:
            below = sorted(block for id in below for block in graph.neighbours(id, "happened", incoming=True))
        assert below == of
    entities = {node.name: node for node in graph.nodes("entity")}
    assert entities.keys() == names.keys()
    for name, of in names.items():
        assert graph.neighbours(entities[name].id, "mentions", incoming=True) == sorted(of)
        times = [block.happened or block.created_at for block in blocks if block.id in of]
        assert (entities[name].created_at, entities[name].updated_at) == (min(times), max(times))
        assert graph.node(entities[name].id) == entities[name]


@dataclasses.dataclass(frozen=True)
class Said:
    """What `derived_from` reads of a block."""

    id: int
    stream: int
    begin: int
    created_at: float = 1000.0
    tags: tuple[str, ...] = ()


def test_the_last_block_of_a_session_leads_to_the_first_of_the_next() -> None:
    # Streams that go on beside each other; of the third one block alone is left.
    blocks = [Said(2, 7, 0), Said(3, 7, 10), Said(5, 1, 40), Said(6, 7, 20), Said(8, 1, 50), Said(9, 4, 30)]
    edges = derived_from(blocks).edges  # type: ignore[arg-type]
    ways = {(edge.source, edge.target): edge.kind for edge in edges if "session" in edge.kind}
    following = {(6, 5): "next_session", (8, 9): "next_session"}
    assert ways == following | {(target, source): "previous_session" for source, target in following}
    assert derived_from([]) == ([], [])


def test_times_and_names_are_nodes(told: Path, tmp_path: Path) -> None:
    with everlong.Memory.open(told) as memory:
        expect_derived(memory)
        names = {node.name: node for node in memory.graph.nodes("entity")}
        assert {"captain brandy", "weather"} <= names.keys()
        assert [node.name for node in memory.graph.nodes("timeline")] == [
            "2024-05-30", "2024-06-02", "2024-05", "2024-06", "2024",
        ]  # fmt: skip
        ids = {node.name: node.id for node in memory.graph.nodes("timeline")}
        assert memory.graph.neighbours(ids["2024-06-02"], "happened") == [ids["2024-06"]]
        of_may = memory.graph.neighbours(ids["2024-05-30"], "happened", incoming=True)
        of_june = memory.graph.neighbours(ids["2024-06-02"], "happened", incoming=True)
        way = memory.graph.path(of_may[0], of_june[-1], kinds=("mentions",))
        assert way == [of_may[0], names["captain brandy"].id, of_june[-1]]
        # The same in a copy, and right after whatever goes.
        before = memory.graph.nodes("entity"), memory.graph.edges()
        memory.export(tmp_path / "file")
        with everlong.Memory.import_file(tmp_path / "file", None) as copy:
            assert (copy.graph.nodes("entity"), copy.graph.edges()) == before
        memory.forget(source="three")
        memory.compact()
        assert memory.verify().damage == ()
        expect_derived(memory)
        memory.forget(source="one")
        expect_derived(memory)
        assert "captain brandy" not in {node.name for node in memory.graph.nodes("entity")}
        assert all(edge.target in {node.id for node in memory.graph.nodes()} for edge in memory.graph.edges())
    shown = CliRunner().invoke(app, ["graph", str(told)])
    assert "named most: weather" in shown.output
