"""Tombstones that wake: the mass on them against transformers' own attention, and what comes back for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame.tombstone_mass import TombstoneMass
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.models.releases import cache_argument
from everlong.parts.tombstones import Tombstones
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads
from everlong.parts.tombstones.runtime import LEAST_MASS, tombstone_scores
from everlong.parts.writer import Writer
from everlong.pictures import draw_timeline
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.memories import answering_of

STONES = SMALL.changed(frame={"tombstones": 4}, search={"index": ("lexical",)}, answer={"recall_mode": "kv"})
TEXT = random_text(1500)
SHAPES = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested"), ("smollm3", "default")]


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
@pytest.mark.parametrize("count", [1, 5])
def test_mass_is_what_the_model_attends(kind: str, rope: str, count: int) -> None:
    """Of every head of every archived layer, as eager attention gives its weights out."""
    model = tiny_model(kind, rope)
    model.set_attn_implementation("eager")
    with everlong.MemoryModel(model, byte_tokenizer(), config=STONES) as mm:
        mm.read(TEXT)
        frame, served, cache = mm.frame, mm.frame.served, mm.frame.cache
        zone = frame.os.anchor_zone["tombstones"]
        assert len(zone) == 4
        heads = [(layer, head) for layer in range(served.layers) for head in range(served.query_heads)]
        mass = TombstoneMass(served, heads)
        ids = mm.encode(random_text(count, seed=2))
        with frame.branch():
            frame.recall(mm.memory.core.blocks.pages_of(0, 300, 360))  # the zone moves with what comes back
            position = frame.os.next_position() + served.first_position
            stones = cache.tombstone_slots
            first = stones.start - cache.begin
            assert first == SMALL.frame.sink_tokens
            attended = attentions(mm, ids, position)
            with mass.tap() as tap:
                frame.extend(ids, "prompt")
            got = mass.of(tap, cache, position)
            newest = mass.of(tap, cache, position, newest=1)
    expected = np.stack([attended[served.archived[layer]][head, :, first : first + 4] for layer, head in heads], axis=1)
    assert got.shape == (count, len(heads), 4)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(newest[0], got[-1], rtol=1e-5)
    assert (got > 0).all()


def attentions(mm: Any, ids: torch.Tensor, position: int) -> list[np.ndarray[Any, Any]]:
    """By layer [heads, T, slots], of a forward in a branch."""
    with mm.frame.branch():
        cache = mm.frame.cache
        positions = torch.arange(position, position + len(ids))[None]
        with torch.no_grad(), cache.forward():
            out = mm.model(
                input_ids=ids[None],
                position_ids=positions,
                output_attentions=True,
                use_cache=True,
                **{cache_argument(mm.model): cache},
            )
    return [weights[0].double().numpy() for weights in out.attentions]


def test_a_score_is_a_weighted_sum_of_logarithms() -> None:
    mass = np.random.default_rng(0).uniform(size=(3, 2, 4))
    mass[0, 0, 0] = 0.0
    weights = np.array([0.5, -2.0])
    expected = (np.log(np.maximum(mass, LEAST_MASS)) * weights[:, None]).sum(axis=1) + 0.25
    got = tombstone_scores(torch.from_numpy(mass).float(), torch.from_numpy(weights).float(), 0.25)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)


def pack_of(model: Any, folder: Path, threshold: float) -> Path:
    heads = TombstoneHeads(heads=((0, 1), (1, 0)), weights=(0.5, 0.5), bias=0.0, threshold=threshold)
    Pack(weights_fingerprint(model), "tiny", {TOMBSTONES: heads.part({"text": "none"})}).save(folder)
    return folder


def waking(
    model: Any, tmp_path: Path, threshold: float = -1e6, part: Tombstones | None = None, **changes: Any
) -> everlong.MemoryModel:
    """`changes` of how it answers."""
    config = STONES.with_part(part or Tombstones()).with_part(Writer(tokens=4))
    config = config.changed(answer={"policy": "off", "protect_tokens": 4, **changes})
    return everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack_of(model, tmp_path, threshold))


@pytest.mark.parametrize("mode", ["kv", "detail"])
@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_the_tombstone_with_the_highest_score_comes_back(kind: str, rope: str, mode: str, tmp_path: Path) -> None:
    """What numpy says of the model's own masses is what wakes; its block is cited, traced and protected."""
    model = tiny_model(kind, rope)
    with waking(model, tmp_path, recall_mode=mode) as mm:
        mm.read(TEXT)
        zone = mm.frame.os.anchor_zone["tombstones"]
        answer = mm.generate("and then", max_new_tokens=7, remember=False)
        recalls = [event for event in mm.trace() if event["what"] == "recall"]
        assert [event["trigger"] for event in recalls] == ["tombstone"] * len(recalls)
        assert len(recalls) == 2  # each is protected for 4 tokens
        first = recalls[0]
        (span,) = [(begin, end) for begin, end, _ in zone if (begin, end) == (first["begin"], first["end"])]
        assert (recalls[1]["begin"], recalls[1]["end"]) != span  # it was there by then
        restored = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0]
        runs = restored[0]["restored"]
        assert all(run["begin"] < span[1] and run["end"] > span[0] for run in runs)
        assert {"detail_slots" in run for run in runs} == {mode == "detail"}
        assert {recall.found_by for recall in answer.recalled} == {("tombstone",)}
        assert {recall.as_details for recall in answer.recalled} == {mode == "detail"}
        expected = expected_scores(mm, "and then", answer.token_ids[0])
        assert zone[int(np.argmax(expected))][:2] == span
    draw_timeline(mm.trace(), tmp_path / "timeline.svg")
    assert "a tombstone wakes" in (tmp_path / "timeline.svg").read_text()


def expected_scores(mm: everlong.MemoryModel, question: str, token: int) -> np.ndarray[Any, Any]:
    """Of the first token of its answer, from the model's eager attention in fp64."""
    mm.model.set_attn_implementation("eager")
    frame, cache, served = mm.frame, mm.frame.cache, mm.frame.served
    with frame.branch():
        frame.clear_recalled()
        frame.extend(answering_of(mm).prompt(question, True, None).ids, "prompt")
        attended = attentions(mm, torch.tensor([token]), frame.os.next_position() + served.first_position)
        first = cache.tombstone_slots.start - cache.begin
        mass = [attended[served.archived[layer]][head, -1, first : first + 4] for layer, head in ((0, 1), (1, 0))]
    return 0.5 * np.log(np.stack(mass)).sum(axis=0)


def test_below_the_threshold_nothing_wakes_and_the_answer_is_the_same(tmp_path: Path) -> None:
    model = tiny_model()
    with waking(model, tmp_path, threshold=1e6) as mm:
        mm.read(TEXT)
        answer = mm.generate("and then", max_new_tokens=12, remember=False)
        assert answer.recalled == ()
        assert not [event for event in mm.trace() if event["what"] == "recall"]
    with everlong.MemoryModel(model, byte_tokenizer(), config=STONES.changed(answer={"policy": "off"})) as mm:
        mm.read(TEXT)
        assert mm.generate("and then", max_new_tokens=12, remember=False).token_ids == answer.token_ids
    with waking(model, tmp_path, threshold=1e6, part=Tombstones(threshold=-1e6)) as mm:  # a setting of one's own
        mm.read(TEXT)
        assert mm.generate("and then", max_new_tokens=12, remember=False).recalled


def test_policies_are_combined_and_the_others_come_first(tmp_path: Path) -> None:
    with waking(tiny_model(), tmp_path, policy="periodic", periodic_every=3, protect_tokens=0) as mm:
        mm.read(TEXT)
        mm.generate("and then", max_new_tokens=6, remember=False)
        triggers = [event["trigger"] for event in mm.trace() if event["what"] == "recall"]
        assert triggers == ["tombstone", "tombstone", "periodic"] * 2


def test_a_tombstone_that_wakes_may_have_the_newest_tokens_searched_for(tmp_path: Path) -> None:
    with waking(tiny_model(), tmp_path, part=Tombstones(recall="search")) as mm:
        mm.read(TEXT)
        found = mm.generate(TEXT[300:330], max_new_tokens=3, remember=False).recalled
        assert [event["trigger"] for event in mm.trace() if event["what"] == "recall"] == ["tombstone"]
        assert found
        assert {recall.found_by for recall in found} == {("lexical",)}


def test_only_what_a_question_may_hear_of_comes_back(tmp_path: Path) -> None:
    with waking(tiny_model(), tmp_path) as mm:
        mm.read(TEXT[:700], source="one")
        mm.read(TEXT[700:], source="two")
        heard = mm.generate("so", max_new_tokens=12, remember=False, where=everlong.Where(source="two")).recalled
        assert {recall.source for recall in heard} <= {"two"}
        assert mm.generate("so", max_new_tokens=12, remember=False, recall=False).recalled == ()


def test_a_model_without_a_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no calibration of tombstones for this model; `everlong eval tombstones"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", STONES.with_part(Tombstones()), pack=None)
    assert not (tmp_path / "m").exists()
    with pytest.raises(ValueError, match=r"frame.tombstones, which the part tombstones heeds, is 0"):
        STONES.changed(frame={"tombstones": 0}).with_part(Tombstones())


def test_heads_go_through_a_pack_as_they_are(tmp_path: Path) -> None:
    heads = TombstoneHeads(((3, 1), (0, 7)), (0.25, -1.5), 2.0, 0.75)
    part = heads.part({"seed": 1})
    assert TombstoneHeads.of_part(part) == heads
    Pack("print", "name", {TOMBSTONES: part}).save(tmp_path)
