"""Tokens that a CUDA graph computes are those that the model computes kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

import everlong
from everlong.frame.kv_zones import KvZones
from everlong.frame.read_request import ReadRequest
from everlong.kv_cache.cuda_graph import GraphStep
from support import OWN_STATE, SMALL, TINY_KINDS, TOLERANCE, byte_tokenizer, random_text, tiny_model
from support.gpu import GPU, NEEDS_GPU

pytestmark = NEEDS_GPU
TEXT = random_text(900)
# Of these the rotary embedding asks the host how long the text is.
ASKS_THE_HOST = ("dynamic", "longrope")


def opened(model: Any) -> everlong.MemoryModel:
    mm = everlong.MemoryModel(model, byte_tokenizer(), None, SMALL)
    mm.read(TEXT)
    return mm


def step_of(mm: everlong.MemoryModel) -> GraphStep:
    zones = mm.frame.zones
    assert isinstance(zones, KvZones)
    return zones.computing.step


def logits_one_by_one(mm: everlong.MemoryModel, ids: Sequence[int]) -> torch.Tensor:
    return torch.cat([mm.frame.extend(torch.tensor([token]), "generated") for token in ids])


def kernel_by_kernel(mm: everlong.MemoryModel) -> everlong.MemoryModel:
    step_of(mm)._able = False
    return mm


def test_in_16_bits_the_logits_differ_by_rounding() -> None:
    model = in_16_bits().to(GPU)
    ids = [(31 * i) % 250 for i in range(40)]
    with opened(model) as played, kernel_by_kernel(opened(model)) as plain:
        got, expected = logits_one_by_one(played, ids), logits_one_by_one(plain, ids)
        assert step_of(played).recorded
        torch.testing.assert_close(got, expected, atol=0.05 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(("kind", "rope"), [kind for kind in TINY_KINDS if kind not in OWN_STATE])
def test_a_played_step_gives_the_same_logits_and_the_same_archive(kind: str, rope: str) -> None:
    """Over 150 tokens: a block is archived and the frame evicts on the way."""
    model = tiny_model(kind, rope).to(GPU)
    ids = [(31 * i) % 250 for i in range(150)]
    with opened(model) as played, kernel_by_kernel(opened(model)) as plain:
        got, expected = logits_one_by_one(played, ids), logits_one_by_one(plain, ids)
        assert step_of(played).recorded == (rope not in ASKS_THE_HOST)
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
        assert played.frame.os.rolling == plain.frame.os.rolling
        same_slots(played, plain)
        for mm in (played, plain):  # what was archived of these tokens comes back
            mm.frame.recall(mm.memory.core.blocks.pages()[-4:-1])
        same_slots(played, plain)


def same_slots(one: everlong.MemoryModel, other: everlong.MemoryModel) -> None:
    a, b = one.frame.cache, other.frame.cache
    assert (a.begin, a.end) == (b.begin, b.end)
    for name in ("k", "v"):
        mine, theirs = (getattr(cache, name)[:, :, cache.begin : cache.end] for cache in (a, b))
        torch.testing.assert_close(mine, theirs, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(a.cos[a.begin : a.end], b.cos[b.begin : b.end], atol=TOLERANCE, rtol=0)


def test_answers_are_the_same_with_recall_and_without() -> None:
    model = tiny_model().to(GPU)
    with opened(model) as played, kernel_by_kernel(opened(model)) as plain:
        for question in (TEXT[100:160], TEXT[500:560], TEXT[40:90]):
            for remember in (False, True):
                answers = [
                    mm.generate(question, max_new_tokens=24, remember=remember).token_ids for mm in (played, plain)
                ]
                assert answers[0] == answers[1]
        assert step_of(played).recorded
        nobody = everlong.Where(source="nobody")
        hidden = [
            mm.generate(TEXT[100:160], max_new_tokens=12, remember=False, where=nobody).token_ids
            for mm in (played, plain)
        ]
        assert hidden[0] == hidden[1]


def test_whoever_listens_to_the_model_hears_every_token() -> None:
    model = tiny_model().to(GPU)
    with opened(model) as mm:
        logits_one_by_one(mm, range(10))
        assert step_of(mm).recorded
        heard: list[int] = []
        hook = model.model.layers[1].register_forward_hook(lambda *_: heard.append(1))
        logits_one_by_one(mm, range(5))
        hook.remove()
        assert len(heard) == 5
        states = mm.frame.forward(ReadRequest(torch.tensor([3]), "generated", hidden_layers=[2])).hidden[2]
        assert states.shape == (1, model.config.hidden_size)
        logits_one_by_one(mm, range(5))
        assert len(heard) == 5


def test_new_weights_are_heeded() -> None:
    """Those written in place, and those that lie elsewhere by now."""
    model, other = tiny_model().to(GPU), tiny_model(seed=9).to(GPU)
    ids = list(range(12))
    with opened(model) as played, kernel_by_kernel(opened(model)) as plain:
        for put in (replace_weights, write_weights):
            with played.frame.branch(), plain.frame.branch():
                logits_one_by_one(played, ids)
                put(model, other)
                for mm in (played, plain):  # a prompt comes between two answers
                    mm.frame.extend(torch.tensor([7, 8]), "prompt")
                got, expected = logits_one_by_one(played, ids), logits_one_by_one(plain, ids)
                torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
            other = tiny_model(seed=10).to(GPU)


def in_16_bits() -> Any:
    model = tiny_model()
    half = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16).eval()
    half.load_state_dict(model.state_dict())
    return half


@torch.no_grad()
def replace_weights(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data.clone()


@torch.no_grad()
def write_weights(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.copy_(theirs)
