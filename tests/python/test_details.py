"""Detail Tokens: written with a block, and back in the frame as the soft tokens that they are.

The references are plain transformers over `inputs_embeds`, and numpy's own means.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import everlong
from everlong.frame.details import BRACKET_TOKENS
from everlong.frame.frame import Recalled
from everlong.learned.details import MeanPool
from everlong.text.control import MEM_END, MEM_START
from test_exactness import SMALL, TOLERANCE, random_text
from tiny_models import byte_tokenizer, tiny_model

N = 6
TENSOR = f"details.mean-{N}"
DETAILED = dataclasses.replace(SMALL, details=N, recall_mode="detail", index=("lexical",))
SHAPES = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")]
TEXT = random_text(1500)


def embeddings_of(model: Any, ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """[n, hidden size], of the space that `inputs_embeds` are in."""
    with torch.no_grad():
        rows = model.get_input_embeddings()(torch.as_tensor(np.asarray(ids), dtype=torch.int64))
    return np.asarray(rows.double())


def pooled(embeddings: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """The means of equal runs, by their definition."""
    length = len(embeddings)
    count = min(count, length)
    return np.stack(
        [np.mean(embeddings[i * length // count : (i + 1) * length // count], axis=0) for i in range(count)]
    )


def soft_tokens(model: Any, core: Any, blocks: list[int]) -> torch.Tensor:
    """`<MEM_START>` D `<MEM_END>` of each, as they are to stand in the frame: [slots, hidden size] fp32."""
    tokenizer = byte_tokenizer()
    around = [
        embeddings_of(model, tokenizer.encode(token, add_special_tokens=False)).mean(axis=0, keepdims=True)
        for token in (MEM_START, MEM_END)
    ]
    rows = []
    for block in blocks:
        info = core.block(block)
        ids = core.token_ids(info.stream, info.begin, info.end)
        details = pooled(embeddings_of(model, ids), N).astype(np.float16).astype(np.float64)
        rows += [around[0], details, around[1]]
    return torch.from_numpy(np.concatenate(rows)).float()


@given(length=st.integers(1, 70), count=st.integers(1, 40), seed=st.integers(0, 3))
@settings(deadline=None)
def test_a_writer_that_was_never_trained_means_equal_runs(length: int, count: int, seed: int) -> None:
    embeddings = np.random.default_rng(seed).normal(size=(length, 5))
    got = MeanPool(count).details(torch.zeros(length, 0), torch.from_numpy(embeddings).float())
    np.testing.assert_allclose(got.numpy(), pooled(embeddings, count), atol=1e-6)
    if count <= length:  # whatever the runs, each token weighs in one of them alone
        sizes = np.diff([i * length // count for i in range(count + 1)])
        assert set(sizes) <= {length // count, -(-length // count)}
        np.testing.assert_allclose((got.numpy() * sizes[:, None]).sum(axis=0), embeddings.sum(axis=0), atol=1e-4)


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_details_are_written_with_each_block_and_told(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.read(TEXT)
        core, stats = mm.memory.core, mm.memory.stats()
        written = 0
        for block in mm.memory.blocks():
            details = core.block_tensor(block.id, TENSOR)
            ids = core.token_ids(0, *block.span)
            assert details.dtype == np.float16
            np.testing.assert_allclose(details, pooled(embeddings_of(model, ids), N), atol=2e-3)
            written += details.nbytes
        assert written == stats.detail_bytes > 0
        assert stats.detail_token_bytes == written / stats.tokens
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        assert memory.stats().detail_bytes == written
        assert not memory.verify().damage


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("qwen3", "yarn"), ("smollm3", "default")])
def test_recalled_details_are_a_plain_forward_over_soft_tokens(kind: str, rope: str) -> None:
    """Sinks, blocks as soft tokens where rolling begins, then text: transformers over `inputs_embeds` of just that."""
    model, rest = tiny_model(kind, rope), random_text(30, seed=2)
    with everlong.MemoryModel(model, byte_tokenizer(), config=DETAILED) as mm:
        mm.read(TEXT)
        core, frame = mm.memory.core, mm.frame
        blocks = [7, 2, 4]
        with frame.branch():
            frame.begin_prompt(None)
            frame.bring_back(Recalled(blocks=blocks))
            assert frame.os.recalled_tokens == len(blocks) * (N + BRACKET_TOKENS)
            assert frame.resident_tokens == SMALL.sink_tokens + frame.os.recalled_tokens
            rest_ids = mm._encode(rest)
            got = frame.extend(rest_ids, "prompt", logits=True)
        sinks, own = (embeddings_of(model, ids) for ids in (core.token_ids(0, 0, SMALL.sink_tokens), rest_ids))
        soft = soft_tokens(model, core, blocks)
    embeds = torch.cat([torch.from_numpy(sinks).float(), soft, torch.from_numpy(own).float()])
    rolling = SMALL.sink_tokens + SMALL.recalled_tokens
    positions = [*range(SMALL.sink_tokens), *range(rolling - len(soft), rolling + len(rest_ids))]
    first = frame.served.first_position
    with torch.no_grad():
        expected = model(inputs_embeds=embeds[None], position_ids=torch.tensor([positions]) + first).logits[0]
    assert (got - expected[-len(rest_ids) :]).abs().max() <= TOLERANCE
