"""The Walker: walks through memories with planted chains, its training, its place in recall, its trace."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import everlong._core as _core
from everlong import MemoryConfig, MemoryModel, SearchConfig
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.parts.walker import Walker
from everlong.parts.walker.model import FEATURES, WALKER
from everlong.pictures import draw_report
from everlong.text.prompt import build_prompt
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.parts.walker import some_walker


def test_the_policy_is_that_of_numpy_in_fp64() -> None:
    walker = some_walker()
    features = np.random.default_rng(0).uniform(-1, 1, (50, len(FEATURES))).astype(np.float32)
    inner, inner_bias, outer, outer_bias = (
        tensor.detach().double().numpy()
        for tensor in (walker.inner.weight, walker.inner.bias, walker.outer.weight[0], walker.outer.bias)
    )
    expected = np.maximum(0, features.astype(np.float64) @ inner.T + inner_bias) @ outer + outer_bias[0]
    np.testing.assert_allclose(walker.policy().logits(features), expected, rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        np.testing.assert_allclose(walker(torch.from_numpy(features)), expected, rtol=1e-4, atol=1e-5)


def test_a_policy_refuses_what_is_none() -> None:
    good = np.zeros((2, len(FEATURES)), np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)
    _core.WalkerPolicy(*good, 0.0)
    with pytest.raises(ValueError, match="expected 48 and 2"):
        _core.WalkerPolicy(good[0], np.zeros(3, np.float32), good[2], 0.0)
    with pytest.raises(ValueError, match="finite"):
        _core.WalkerPolicy(*good, float("nan"))
    with pytest.raises(ValueError, match="expected at least 1"):
        _core.Walk(_core.WalkerPolicy(*good, 0.0), loads=0)


def test_a_walk_takes_part_in_recall_and_is_told(tmp_path: Path) -> None:
    model = tiny_model("llama")
    never_ends = some_walker()
    with torch.no_grad():
        never_ends.inner.weight[0] = torch.tensor([20.0 if name == "stop" else 0.0 for name in FEATURES])
        never_ends.outer.weight[0, 0] = -1.0
    part = never_ends.part({})
    Pack(weights_fingerprint(model), "tiny", {WALKER: part}).save(tmp_path / "pack")
    config = TINY_MEMORY.with_part(Walker())
    with MemoryModel(model, byte_tokenizer(), config=config, pack=tmp_path / "pack") as mm:
        mm.read("The key of the chest is with Orla Vesk. " + "It rained on the town all day. " * 60)
        mm.read("Orla Vesk lives in Brunnow. " + "And then the sun came out again. " * 60)
        answer = mm.generate("Where does the owner of the key live?", 4)
        assert answer.walk is not None
        assert answer.walk == mm.last_walk
        assert answer.walk.loads
        spans = [recall.span for recall in answer.recalled]
        begin, end = answer.walk.loads[0].span  # the others as far as the budget of tokens goes
        assert any(first <= begin and end <= last for first, last in spans)
        mm.config = mm.config.with_part(Walker(searches=False))
        assert mm.generate("Where does the owner of the key live?", 4).walk is None
    report = json.loads(json.dumps(dataclasses.asdict(answer)))
    pictures = draw_report(report, tmp_path)
    assert [picture.name for picture in pictures] == ["walk.png", "walk.svg"]
    assert pictures[1].read_text().startswith("<?xml")


def test_a_walk_alone_is_no_search() -> None:
    with pytest.raises(ValueError, match="index is 'graph'"):
        SearchConfig(index="graph")  # type: ignore[arg-type]
    by_text = MemoryConfig(search=SearchConfig(index=("heads", "lexical")), parts=(Walker(),)).of_text_alone()
    assert by_text.search.index == ("lexical",)
    assert by_text.parts == (Walker(),)
    with pytest.raises(ValueError, match="none"):
        MemoryConfig(search=SearchConfig(index="heads"), parts=(Walker(),)).of_text_alone()


def test_a_walk_begins_in_the_topics_nearest_to_the_question() -> None:
    """Its topics are the Gardener's: what is alike to the question is told by the mean of its queries."""
    config = TINY_MEMORY.changed(archive={"graph": True, "graph_share": 1.0}).with_part(Walker())
    with MemoryModel(tiny_model("llama"), byte_tokenizer(), config=config, pack=None) as mm:
        for text in ("The miller ground corn. ", "A ship came home. "):
            mm.read(text * 60)
        mm.searcher.settle()
        graph = mm.memory.graph
        blocks = {block.id for block in mm.memory.blocks()}
        topics = {id: graph.neighbours(id, "belongs_to") for id in blocks}
        inputs = mm.searcher.inputs(build_prompt(byte_tokenizer(), "Who ground the corn?"))
        walk = _core.Walk(some_walker().policy(), loads=3, by="draw", keep_all=True)
        report = mm.memory.core.search.find(**inputs, walk=walk).walk
        assert report is not None
        query = inputs["mean_query"] / np.linalg.norm(inputs["mean_query"])
        centres = {
            node.id: node.vector / np.linalg.norm(node.vector) for node in graph.nodes("topic") if node.level == 0
        }
        nearest = sorted(centres, key=lambda id: -float(centres[id] @ query))[:2]
        first = report.steps[0]
        for page, features in zip(first.pages, first.features, strict=True):
            if page.block == 0:
                continue
            (topic,) = topics[page.block]
            expected = max(0.0, float(centres[topic] @ query)) if topic in nearest else 0.0
            assert features[FEATURES.index("topic")] == pytest.approx(expected, abs=1e-5)
        for step in report.steps[1:]:
            for page, came_from, features in zip(step.pages, step.came_from, step.features, strict=True):
                if page.block != 0 and came_from >= 0:
                    beside = topics[page.block] == topics[report.loads[came_from].block]
                    assert features[FEATURES.index("same_topic")] == float(beside)
