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
from support.examples import examples
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
        (x[:, :0], blocks[:, :0].contiguous(), kind): "rows of whole blocks of 34 bytes",
        (torch.empty(1, 0), torch.empty(2**40, 0, dtype=torch.uint8), kind): "rows of whole blocks of 34 bytes",
        (torch.empty(0, 2**20, 0), blocks, kind): "block_linear: x is",
        (x, blocks.float(), kind): "block_linear: blocks is Float",
        (x, blocks, 9): "the format of a matrix is 9",
        (x, blocks, -1): "format is -1",
        (x, blocks, 2**40): "format is",
        (x, blocks, kind, torch.randn(6)): r"bias is Float \[6\]",
    }.items():
        with pytest.raises(RuntimeError, match=words):
            ops.block_linear(*arguments)
    with pytest.raises(RuntimeError, match="rows of whole blocks of 34 bytes"):
        ops.block_rows(torch.empty(2**40, 0, dtype=torch.uint8), torch.tensor([0]), kind, torch.float32)
    for ids in (torch.tensor([7]), torch.tensor([-1])):
        with pytest.raises(RuntimeError, match="an id is"):
            ops.block_rows(blocks, ids, kind, torch.float32)
    with pytest.raises(RuntimeError, match="ids is"):
        ops.block_rows(blocks, torch.tensor([1.0]), kind, torch.float32)
    with pytest.raises(RuntimeError, match="dtype is"):
        ops.block_rows(blocks, torch.tensor([1]), kind, torch.float64)


def test_shapes_without_data_are_checked_too() -> None:
    """As torch.compile and meta tensors see the operators."""
    kind = int(Q.Q8_0)
    x, blocks = torch.empty(2, 64, device="meta"), torch.empty(7, 68, dtype=torch.uint8, device="meta")
    assert ops.block_linear(x, blocks, kind).shape == (2, 7)
    ids = torch.empty(3, 1, dtype=torch.int64, device="meta")
    assert ops.block_rows(blocks, ids, kind, torch.bfloat16).shape == (3, 1, 64)
    for arguments, words in {
        (x[:, :32], blocks, kind): r"x is \[2, 32\]; expected \[..., 64\]",
        (x[0, 0], blocks, kind): r"x is \[\]",
        (x, blocks[:, :-1], kind): r"blocks is torch\.uint8 \[7, 67\]",
        (x[:, :0], blocks[:, :0], kind): r"blocks is torch\.uint8 \[7, 0\]",
        (x, blocks[0], kind): r"blocks is torch\.uint8 \[68\]",
        (x, blocks.float(), kind): "blocks is torch.float32",
        (x, blocks, 9): "the format of a matrix is 9",
        (x, blocks, -1): "the format of a matrix is -1",
        (x, blocks, 2**40): "the format of a matrix is",
        (x, blocks, kind, torch.empty(6, device="meta")): r"bias is \[6\]; expected \[7\]",
    }.items():
        with pytest.raises(RuntimeError, match=words):
            ops.block_linear(*arguments)
    with pytest.raises(RuntimeError, match="block_rows: blocks is"):
        ops.block_rows(blocks[:, :0], ids, kind, torch.float32)


@given(formats, st.integers(1, 2), st.sampled_from([1, 9, 1030]), seeds, st.sampled_from(DTYPES))
@examples(40)
def test_gradients_are_those_of_the_decoded_matrix(
    format: Any, width: int, rows: int, seed: int, dtype: torch.dtype
) -> None:
    drawn = np.random.default_rng(seed)
    blocks = random_blocks(drawn, rows, columns_of(format, width), format)
    w = torch.from_numpy(gguf.dequantize(blocks, format)).double()
    x = torch.from_numpy(drawn.standard_normal((2, 3, w.shape[1]))).to(dtype).requires_grad_()
    bias = torch.from_numpy(drawn.standard_normal(rows)).to(dtype).requires_grad_()
    grad = torch.from_numpy(drawn.standard_normal((2, 3, rows))).to(dtype)
    out = ops.block_linear(x, torch.from_numpy(blocks), int(format), bias)
    assert torch.equal(out, ops.block_linear(x.detach(), torch.from_numpy(blocks), int(format), bias.detach()))
    out.backward(grad)
    expected, of_bias = grad.double() @ w, grad.double().sum((0, 1))
    assert x.grad is not None
    assert bias.grad is not None
    assert x.grad.dtype == bias.grad.dtype == dtype
    step = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    scale = grad.double().abs() @ w.abs()
    assert ((x.grad.double() - expected).abs() <= step * expected.abs() + 2e-6 * scale + 6e-8).all()
    assert ((bias.grad.double() - of_bias).abs() <= step * of_bias.abs() + 1e-5).all()


def test_a_gradient_is_computed_where_it_is_wanted_alone() -> None:
    blocks = torch.from_numpy(random_blocks(np.random.default_rng(0), 7, 64, Q.Q8_0))
    x, bias, kind = torch.randn(2, 64), torch.randn(7), int(Q.Q8_0)
    assert not ops.block_linear(x, blocks, kind, bias).requires_grad
    ops.block_linear(x, blocks, kind, bias.requires_grad_()).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [2.0] * 7
    x.requires_grad_()
    with torch.no_grad():
        assert not ops.block_linear(x, blocks, kind, bias).requires_grad
    (first,) = torch.autograd.grad(ops.block_linear(x, blocks, kind).square().sum(), x, create_graph=True)
    assert first.requires_grad, "a gradient has a gradient"
    with pytest.raises(RuntimeError, match="floating point"):
        blocks.requires_grad_()


def test_a_compiled_function_has_the_same_gradient() -> None:
    blocks = torch.from_numpy(random_blocks(np.random.default_rng(0), 7, 64, Q.Q8_0))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return ops.block_linear(x.sin(), blocks, int(Q.Q8_0)).cos().sum()

    x = torch.randn(3, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(x), x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
