"""The trigger: its arithmetic against numpy in fp64, as a stream and whole, its pack, its training, its thresholds."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pytest
import torch

import everlong
import everlong._core as _core
from everlong.models.pack import load_pack, pack_of
from everlong.parts.towers.model import LateTowers, TowerSettings
from everlong.parts.trigger import Trigger
from everlong.parts.trigger.model import TRIGGER, TriggerNet, calibration_of
from everlong.parts.trigger.runtime import (
    TriggerRuntime,
    block_lengths,
    blocks_of,
    predict_boundaries,
    threshold_for,
)
from support import tiny_model
from support.parts.trigger import LAYERS, SETTINGS, SIZE, drawn_pack, drawn_texts, drawn_trigger

WIDTH = len(LAYERS) * SIZE


def said_by_numpy(trigger: TriggerNet, states: torch.Tensor) -> np.ndarray:
    """Place by place, as its definition says."""
    weights = {name: tensor.double().numpy() for name, tensor in trigger.state_dict().items()}
    normal = np.clip((states.double().numpy() - weights["center"]) * weights["scale"], -5, 5)
    before_tokens, lookahead = trigger.settings.before_tokens, trigger.settings.lookahead
    said = np.zeros(len(states))
    for read in range(1, len(states) + 1):
        place = read - lookahead
        if place < 1:
            continue
        step = normal[place:read].mean(0) - normal[max(0, place - before_tokens) : place].mean(0)
        looked_at = np.concatenate([normal[place - 1], normal[place], step, np.abs(step)])
        inner = weights["inner.weight"] @ looked_at + weights["inner.bias"]
        gelu = inner * 0.5 * (1 + np.asarray([math.erf(x / math.sqrt(2)) for x in inner]))
        said[read - 1] = 1 / (1 + np.exp(-(weights["outer.weight"] @ gelu + weights["outer.bias"])[0]))
    return said


@pytest.mark.parametrize("tokens", [1, 3, 4, 40])
def test_probabilities_are_those_of_numpy_in_fp64(tokens: int) -> None:
    trigger, states = drawn_trigger(), torch.randn(tokens, WIDTH)
    assert np.abs(trigger.probabilities(states).numpy() - said_by_numpy(trigger, states)).max() < 1e-6


def test_no_later_token_changes_what_was_said() -> None:
    trigger = drawn_trigger()
    states = torch.randn(50, WIDTH)
    whole = trigger.probabilities(states).numpy()
    for read in (3, 4, 20, 49):
        assert np.abs(trigger.probabilities(states[:read]).numpy() - whole[:read]).max() < 1e-6
        other = torch.cat([states[:read], torch.randn(50 - read, WIDTH)])
        assert np.abs(trigger.probabilities(other).numpy()[:read] - whole[:read]).max() < 1e-6
    # And of what lies further back than it looks, nothing.
    reach = SETTINGS.reach
    other = torch.cat([torch.randn(20, WIDTH), states[20:]])
    assert np.abs(trigger.probabilities(other).numpy()[20 + reach :] - whole[20 + reach :]).max() < 1e-6


def test_a_stream_in_chunks_says_what_the_whole_does() -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    ends = TriggerRuntime(drawn_pack(model), _core.MemoryOsConfig(), 256)
    states = {layer: torch.randn(70, model.config.hidden_size) for layer in LAYERS}
    ids = torch.zeros(70, dtype=torch.int64)
    whole = ends.boundary_probabilities(ids, states, begins=True)
    assert (
        np.abs(whole - ends.trigger.probabilities(torch.cat([states[layer] for layer in LAYERS], dim=-1)).numpy()).max()
        < 1e-6
    )
    for chunk in (1, 3, 64):
        said = [
            ends.boundary_probabilities(
                ids[at : at + chunk], {layer: rows[at : at + chunk] for layer, rows in states.items()}, begins=at == 0
            )
            for at in range(0, 70, chunk)
        ]
        assert np.abs(np.concatenate(said) - whole).max() < 1e-6
    # Where none begins the text goes on; where one does, nothing of the other is seen.
    assert np.abs(ends.boundary_probabilities(ids, states, begins=False)[:8] - whole[:8]).max() > 1e-3
    assert np.abs(ends.boundary_probabilities(ids, states, begins=True) - whole).max() < 1e-6


def test_a_pack_keeps_both_parts(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    torch.manual_seed(3)
    towers = LateTowers(TowerSettings(LAYERS, model.config.hidden_size, dimension=16))
    pack_of(model, {"towers": towers.part({"data": {}})}).save(tmp_path)
    bits = (tmp_path / "towers.safetensors").read_bytes()
    texts = drawn_texts()
    drawn_pack(model, texts).save(tmp_path)
    both = load_pack(tmp_path)
    assert set(both.parts) == {"towers", "trigger"}
    assert (tmp_path / "towers.safetensors").read_bytes() == bits
    again = predict_boundaries(calibration_of(both.parts[TRIGGER]))
    assert [text.ends for text in again] == [text.ends for text in texts]
    assert all(np.array_equal(a.probabilities, b.probabilities) for a, b in zip(again, texts, strict=True))
    trigger, states = TriggerNet.of_part(both.parts[TRIGGER]), torch.randn(30, 2 * model.config.hidden_size)
    expected = drawn_pack(model, texts)
    assert torch.equal(trigger.probabilities(states), TriggerNet.of_part(expected.parts[TRIGGER]).probabilities(states))
    assert trigger.settings == TriggerNet.of_part(expected.parts[TRIGGER]).settings


@pytest.mark.parametrize("mean", [110, 128, 200, 350])
def test_thresholds_make_blocks_of_the_asked_length(mean: int) -> None:
    texts, unseen = drawn_texts(4, 6000), drawn_texts(4, 6000, seed=9)
    threshold = threshold_for(texts, _core.MemoryOsConfig(), 5, mean)
    for some in (texts, unseen):
        lengths = [n for text in some for n in block_lengths(text, _core.MemoryOsConfig(), threshold, 5)]
        assert np.mean(lengths) == pytest.approx(mean, rel=0.1)


def test_blocks_keep_to_the_rules() -> None:
    config = _core.MemoryOsConfig(block_tokens=200, least_tokens=40, cooldown_tokens=30)
    (text,) = drawn_texts(1, 5000)
    blocks = list(blocks_of(text, config, 0.4, 7))
    reaching = np.nonzero(text.probabilities >= 0.4)[0] + 1 - 7  # places
    by_topic = 0
    for begin, end in blocks:
        assert end - begin <= 200
        if end in reaching:
            by_topic += 1
            assert end - begin >= 40
            too_soon = [at for at in reaching if begin < at < begin + 40]
            last = max((at for at in too_soon), default=None)
            assert last is None or end >= min(too_soon) + 30
    assert by_topic > len(blocks) / 2
    assert [begin for begin, _ in blocks] == [0, *(end for _, end in blocks[:-1])]


def test_the_core_takes_one_probability_a_token_or_none() -> None:
    os = _core.MemoryOs(_core.MemoryOsConfig())
    with pytest.raises(ValueError, match="topic_probabilities"):
        os.observe(3, "read", [], np.zeros(2, dtype=np.float32))
    assert os.stream_end == 0
    assert os.observe(3, "read", [], np.zeros(3, dtype=np.float32)) == []
    with pytest.raises(ValueError, match="topic_threshold"):
        _core.MemoryOs(_core.MemoryOsConfig(topic_threshold=float("nan")))


def test_settings_that_look_at_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TriggerNet(dataclasses.replace(SETTINGS, lookahead=0))
    with pytest.raises(ValueError, match=r"trigger\.mean_tokens"):
        everlong.MemoryConfig(parts=(Trigger(mean_tokens=600),))
    with pytest.raises(TypeError, match="segmenter"):
        everlong.MemoryConfig(segmenter="other")
