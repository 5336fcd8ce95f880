"""transformers' way to `flash_attention_2` over the frame, whose kernel needs a GPU: torch does here what it does."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import pytest
import torch
from transformers import modeling_flash_attention_utils

import everlong
from support import ARCHITECTURES, SMALL, TOLERANCE, byte_tokenizer, plain_logits, random_text, tiny_model

calls: list[tuple[int, int]] = []  # queries and keys of every call of the kernel


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """q [B, T, H, D], k, v [B, S, Hkv, D] -> [B, T, H, D], as flash-attn 2 documents it.

    The last query stands at the last key; a window (left, right) counts from a query's own key, -1: without end.
    """
    assert dropout_p == 0.0
    calls.append((q.shape[1], k.shape[1]))
    heads = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(heads, 2), v.repeat_interleave(heads, 2)))
    scores = q @ k.transpose(-1, -2) * (softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    own = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
    behind = own - torch.arange(k.shape[-2])  # of a query, how far behind it a key stands
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if left >= 0:
        hidden |= behind > left
    if right >= 0:
        hidden |= -behind > right
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


@functools.wraps(flash_attn_func)  # transformers reads from its signature what a kernel can do
def flash_attn_varlen_func(*_: Any, **__: Any) -> NoReturn:
    """For several texts in one row."""
    raise AssertionError("transformers took one text for several")


@pytest.fixture(autouse=True)
def torch_as_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(*_: Any, **__: Any) -> tuple[Any, ...]:
        return flash_attn_func, flash_attn_varlen_func, None, None, None

    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", imported)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    calls.clear()


# flash-attn 2 has no attention sinks, and transformers leaves them out without a word.
SERVED = [one for one in ARCHITECTURES if one[0] != "gpt_oss"]


@pytest.mark.parametrize(("kind", "rope"), SERVED)
def test_flash_attention_2(kind: str, rope: str) -> None:
    """Reading in chunks, recalling, answering token by token: the same as with the attention that torch brings."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    config = SMALL.changed(frame={"tokens": 512, "recalled_tokens": 64})  # a longrope model's short factors
    ids = torch.tensor(tokenizer(random_text(300))["input_ids"])
    expected = plain_logits(model, ids)

    def read_and_ask() -> tuple[torch.Tensor, str]:
        with everlong.MemoryModel(model, tokenizer, config=config) as mm:
            logits = mm.frame.extend(ids, "read", logits=True)
            mm.read(random_text(600, seed=2))
            answer = mm.generate(random_text(20, seed=3), max_new_tokens=8)
        assert answer.recalled
        return logits, answer.text

    _, answer = read_and_ask()
    assert not calls
    model.config._attn_implementation = "flash_attention_2"  # as it is once transformers has found GPU and package
    logits, flash_answer = read_and_ask()
    assert (logits - expected).abs().max() <= TOLERANCE
    assert flash_answer == answer
    assert {queries for queries, _ in calls} >= {1, SMALL.frame.chunk_tokens}
