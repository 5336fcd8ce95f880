"""The Trimmer: its arithmetic against numpy in fp64, what it learns from, its pack, its training, its evaluation."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.models.attention_stats import AttentionStats, AttentionWindow
from everlong.models.pack import Pack, load_pack
from everlong.models.trimmed_cache import go_on, read_whole
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, tokens_to_keep, trimmer_of
from support import tiny_model
from support.parts.trimmer import WIDTH, drawn_trimmer, eager_attentions


def scores_by_numpy(trimmer: TrimmerNet, states: torch.Tensor, behind: int) -> np.ndarray:
    """Token by token, as its definition says."""
    own = trimmer.settings
    weights = {name: tensor.double().numpy() for name, tensor in trimmer.state_dict().items()}
    normal = np.clip((states.double().numpy() - weights["center"]) * weights["scale"], -8, 8)
    block = normal.mean(0)
    logits = []
    for row in normal:
        both = np.concatenate([row, block])
        both = (both - both.mean()) / np.sqrt(both.var() + 1e-5)
        inner = weights["inner.weight"] @ both + weights["inner.bias"]
        gelu = inner * 0.5 * (1 + np.asarray([math.erf(x / math.sqrt(2)) for x in inner]))
        linear = weights["linear.weight"] @ row + weights["linear.bias"]
        logits.append((linear + weights["outer.weight"] @ gelu + weights["outer.bias"])[0])
    return np.asarray(logits) - own.age_weight * math.log(1 + behind / own.age_tokens)


@pytest.mark.parametrize(("tokens", "behind"), [(1, 0), (2, 7), (40, 300)])
def test_scores_are_those_of_numpy_in_fp64(tokens: int, behind: int) -> None:
    trimmer, states = drawn_trimmer(), torch.randn(tokens, WIDTH)
    assert np.abs(trimmer.scores(states, behind).numpy() - scores_by_numpy(trimmer, states, behind)).max() < 1e-5
    assert len(trimmer.scores(states[:0])) == 0


@given(st.lists(st.floats(-5, 5), max_size=30), st.integers(0, 40))
def test_what_is_kept_scores_highest(scores: list[float], count: int) -> None:
    drawn = torch.tensor(scores, dtype=torch.float64)
    kept = tokens_to_keep(drawn, count).tolist()
    assert len(kept) == min(count, len(scores))
    assert kept == sorted(set(kept))
    left = set(range(len(scores))) - set(kept)
    assert not left or not kept or max(scores[at] for at in left) <= min(scores[at] for at in kept)
    # One order serves every budget: what a smaller one keeps, a larger one does, too.
    assert set(tokens_to_keep(drawn, count // 2).tolist()) <= set(tokens_to_keep(drawn, count).tolist())


def test_a_pack_gives_it_back(tmp_path: pathlib.Path) -> None:
    trimmer, states = drawn_trimmer(), torch.randn(30, WIDTH)
    Pack("weights", "name", {TRIMMER: trimmer.part({"data": {}})}).save(tmp_path)
    again = trimmer_of(load_pack(tmp_path))
    assert again is not None
    assert again.settings == trimmer.settings
    assert torch.equal(again.scores(states), TrimmerNet.of_part(trimmer.part({})).scores(states))
    assert (again.scores(states) - trimmer.scores(states)).abs().max() < 0.1
    assert trimmer_of(Pack("weights", "name", {})) is None


def test_watched_attention_is_what_transformers_gives_back() -> None:
    model, ids = tiny_model("llama"), torch.randint(97, 123, (300,))
    before = model.config._attn_implementation
    with AttentionStats(
        model, {"late": AttentionWindow((270, 300), (4, 280)), "all": AttentionWindow((0, 300), (10, 290))}
    ) as watched:
        read = read_whole(model, ids)
    assert model.config._attn_implementation == before
    every = eager_attentions(model, ids)
    for name, rows, keys in (("late", slice(270, 300), slice(4, 280)), ("all", slice(0, 300), slice(10, 290))):
        mass = torch.stack([layer[:, rows, keys].sum(1).mean(0) for layer in every]).mean(0)
        largest = torch.stack([layer[:, rows, keys].amax((0, 1)) for layer in every]).mean(0)
        assert (watched.mass(name) - mass).abs().max() < 1e-5
        assert (watched.largest(name) - largest).abs().max() < 1e-5
    with torch.no_grad():
        assert (read.logits[0] - model(ids[None]).logits[0, -1]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_cut_cache_is_a_mask_over_the_whole(kind: str) -> None:
    model, ids = tiny_model(kind), torch.randint(97, 123, (60,))
    read = read_whole(model, ids[:50])
    kept = torch.stack([torch.randperm(50)[:20].sort().values for _ in range(3)])
    logits = go_on(model, read.cache, kept, ids[50:][None].expand(3, -1), 50)
    for row, own in zip(logits, kept, strict=True):
        seen = torch.ones(60, 60, dtype=torch.bool).tril()
        seen[50:, :50] = False
        seen[50:, own] = True
        with torch.no_grad():
            expected = model(ids[None], attention_mask=seen[None, None]).logits[0, 50:]
        assert (row - expected).abs().max() < 1e-4
    assert read.cache.get_seq_length() == 50  # as it was
