"""Products with matrices in the blocks of GGUF files, against the package `gguf` and numpy in fp64."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong import ops
from support.gguf_files import HALVES, Q, random_blocks

formats = st.sampled_from(sorted(HALVES))
counts = st.sampled_from([1, 2, 3, 8, 9, 17])
seeds = st.integers(0, 99)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def columns_of(format: Any, blocks: int) -> int:
    return blocks * int(gguf.GGML_QUANT_SIZES[format][0])


def close(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """How far a product may be from fp64: half a step of 8 bits in each number of x, and what fp32 rounds."""
    groups = np.abs(x).reshape(len(x), -1, 32).max(-1)
    steps = np.repeat(groups / 127 / 2, 32, axis=1)
    bound: np.ndarray = steps @ np.abs(w).T + 1e-5 * (np.abs(x) @ np.abs(w).T)
    return bound


@given(formats, st.integers(1, 3), counts, counts, seeds)
def test_a_product_is_that_of_the_decoded_numbers(format: Any, width: int, rows: int, count: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    blocks = random_blocks(drawn, rows, columns_of(format, width), format)
    w = gguf.dequantize(blocks, format).astype(np.float64)
    x = drawn.standard_normal((count, w.shape[1])).astype(np.float32)
    bias = drawn.standard_normal(rows).astype(np.float32)
    found = ops.block_linear(torch.from_numpy(x), torch.from_numpy(blocks), int(format), torch.from_numpy(bias))
    assert (np.abs(found.numpy() - (x @ w.T + bias)) <= close(x.astype(np.float64), w) + 1e-6).all()


@given(formats, st.integers(1, 2), counts, seeds, st.sampled_from(DTYPES))
def test_rows_are_bit_for_bit_those_of_gguf(format: Any, width: int, rows: int, seed: int, dtype: torch.dtype) -> None:
    drawn = np.random.default_rng(seed)
    blocks = random_blocks(drawn, rows, columns_of(format, width), format)
    ids = torch.from_numpy(drawn.integers(0, rows, (2, 5)))
    expected = torch.from_numpy(gguf.dequantize(blocks, format))[ids].to(dtype)
    assert torch.equal(ops.block_rows(torch.from_numpy(blocks), ids, int(format), dtype), expected)
    assert torch.equal(ops.block_rows(torch.from_numpy(blocks), ids.int(), int(format), dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(dtype: torch.dtype) -> None:
    drawn = np.random.default_rng(0)
    blocks = torch.from_numpy(random_blocks(drawn, 300, 512, Q.Q6_K))
    x = torch.from_numpy(drawn.standard_normal((3, 90, 512))).to(dtype)
    together = ops.block_linear(x, blocks, int(Q.Q6_K))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(ops.block_linear(x, blocks, int(Q.Q6_K)), together)
    finally:
        torch.set_num_threads(threads)
    for t in (0, 50, 89):
        assert torch.equal(ops.block_linear(x[1, t], blocks, int(Q.Q6_K)), together[1, t])


def test_the_operators_pass_torchs_own_check() -> None:
    blocks = torch.from_numpy(random_blocks(np.random.default_rng(0), 7, 256, Q.Q4_K))
    x, ids = torch.randn(2, 3, 256), torch.tensor([[1, 6]])
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (torch.ops.everlong.block_linear.default, (x, blocks, int(Q.Q4_K))),
        (torch.ops.everlong.block_linear.default, (x.bfloat16(), blocks, int(Q.Q4_K), torch.randn(7).bfloat16())),
        (torch.ops.everlong.block_linear.default, (x[:, :0], blocks, int(Q.Q4_K))),
        (torch.ops.everlong.block_linear.default, (x.transpose(0, 1), blocks, int(Q.Q4_K))),
        (torch.ops.everlong.block_rows.default, (blocks, ids, int(Q.Q4_K), torch.bfloat16)),
    ]
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_wrong_argument_is_named() -> None:
    blocks = torch.from_numpy(random_blocks(np.random.default_rng(0), 7, 64, Q.Q8_0))
    x, kind = torch.randn(2, 64), int(Q.Q8_0)
    for arguments, words in {
        (x[:, :32], blocks, kind): r"block_linear: x is Float \[2, 32\]",
        (x.double(), blocks, kind): "block_linear: x is Double",
        (x[0, 0], blocks, kind): "block_linear: x is",
        (x, blocks[:, :-1], kind): "block_linear: blocks is",
        (x, blocks[:, :-1].contiguous(), kind): "rows of whole blocks of 34 bytes",
        (x, blocks.float(), kind): "block_linear: blocks is Float",
        (x, blocks, 9): "the format of a matrix is 9",
        (x, blocks, -1): "format is -1",
        (x, blocks, 2**40): "format is",
        (x, blocks, kind, torch.randn(6)): r"bias is Float \[6\]",
    }.items():
        with pytest.raises(RuntimeError, match=words):
            ops.block_linear(*arguments)
    for ids in (torch.tensor([7]), torch.tensor([-1])):
        with pytest.raises(RuntimeError, match="an id is"):
            ops.block_rows(blocks, ids, kind, torch.float32)
    with pytest.raises(RuntimeError, match="ids is"):
        ops.block_rows(blocks, torch.tensor([1.0]), kind, torch.float32)
    with pytest.raises(RuntimeError, match="dtype is"):
        ops.block_rows(blocks, torch.tensor([1]), kind, torch.float64)
