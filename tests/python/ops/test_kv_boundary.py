"""The operators called with anything: a result or an exception, never a crash. Under ASan too: `make asan-python`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong import ops

ELEMENTS = [torch.float32, torch.float16, torch.bfloat16]
OTHERS = [torch.float64, torch.int64, torch.uint8, torch.bool]

sizes = st.sampled_from([0, 1, 2, 3, 7, 16, 17, 40])
codecs = st.sampled_from([*ops.CODECS, "", "int3"])
small = st.integers(-3, 45)
integers = st.one_of(small, st.sampled_from([2**30, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)]))
scalings = st.sampled_from([1.0, 1.25, 0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])


@st.composite
def views(draw: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a shape, laid out in one of the ways that a caller's views are."""
    layout = draw(st.sampled_from(["contiguous", "sliced", "transposed", "expanded", "strided", "unaligned"]))
    values = draw(st.sampled_from(["random", "zeros", "huge", "nan"]))
    if layout == "expanded" and shape:
        base = torch.ones(1, *shape[1:]).to(dtype)
        return base.expand(shape)
    grown = tuple(n + 2 for n in shape) if layout == "sliced" else shape
    if layout == "strided" and shape:
        grown = (*shape[:-1], 2 * shape[-1])
    if layout == "transposed" and len(shape) > 1:
        grown = (*shape[:-2], shape[-1], shape[-2])
    count = 1
    for n in grown:
        count *= n
    flat = torch.randn(count + 1, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    flat = {"random": flat, "zeros": flat * 0, "huge": flat * 3e38, "nan": flat / 0}[values].to(dtype)
    tensor = (flat[1:] if layout == "unaligned" else flat[:-1]).view(grown)
    if layout == "sliced":
        return tensor[tuple(slice(1, n + 1) for n in shape)]
    if layout == "strided" and shape:
        return tensor[..., ::2]
    return tensor.mT if layout == "transposed" and len(shape) > 1 else tensor


@st.composite
def tensors(draw: Callable[..., Any], *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Mostly what an argument should be, sometimes of another shape, rank or type."""
    wrong = draw(st.sampled_from(["", "", "", "", "size", "rank", "dtype"]))
    wanted = list(shape)
    if wrong == "size" and wanted:
        wanted[draw(st.integers(0, len(wanted) - 1))] = draw(sizes)
    if wrong == "rank":
        wanted = draw(st.lists(st.sampled_from([0, 1, 5]), max_size=5))
    return draw(views(tuple(wanted), draw(st.sampled_from([*ELEMENTS, *OTHERS])) if wrong == "dtype" else dtype))


@st.composite
def frames(draw: Callable[..., Any]) -> dict[str, Any]:
    """k, v [L, Hkv, F, D] and cos, sin [F, R/2], the frequencies too."""
    layers, heads, slots, dim = draw(st.tuples(sizes, sizes, sizes, sizes))
    half = draw(st.integers(0, dim // 2 + 1))
    dtype = draw(st.sampled_from(ELEMENTS))
    return {
        "k": draw(tensors(layers, heads, slots, dim, dtype=dtype)),
        "v": draw(tensors(layers, heads, slots, dim, dtype=dtype)),
        "cos": draw(tensors(slots, half, dtype=torch.float32)),
        "sin": draw(tensors(slots, half, dtype=torch.float32)),
        "inv_freq": draw(tensors(half, dtype=torch.float64)),
        "interleaved": draw(st.booleans()),
    }


def call(operator: Callable[..., object], **arguments: object) -> object:
    """The operator's result, or None after an exception that says which operator it comes from."""
    try:
        return operator(**arguments)
    except RuntimeError as error:
        message = str(error)
    assert operator.__name__ in message, message
    return None


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


@given(frames(), integers, integers, integers, integers)
def test_shift(frame: dict[str, Any], source: int, target: int, count: int, delta: int) -> None:
    call(ops.shift_kv_, **frame, source=source, target=target, count=count, delta=delta)


@given(frames(), frames(), st.lists(st.tuples(integers, integers, integers), max_size=4), scalings)
def test_gather(
    source: dict[str, Any], target: dict[str, Any], rows: list[tuple[int, int, int]], scaling: float
) -> None:
    table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
    call(
        ops.gather_kv_,
        **{f"from_{name}": source[name] for name in ("k", "v", "cos", "sin")},
        **{f"to_{name}": target[name] for name in ("k", "v", "cos", "sin")},
        **dict(zip(("sources", "targets", "positions"), table.unbind(1), strict=True)),
        inv_freq=target["inv_freq"],
        attention_scaling=scaling,
        interleaved=target["interleaved"],
    )


@given(frames(), st.data())
def test_derotate_and_rerotate(frame: dict[str, Any], data: st.DataObject) -> None:
    k, v, inv_freq, interleaved = (frame[name] for name in ("k", "v", "inv_freq", "interleaved"))
    tokens = k.shape[2] if k.dim() == 4 else 3
    positions = data.draw(st.lists(integers, min_size=tokens, max_size=tokens))
    call(
        ops.rerotate_kv,
        k=k,
        v=v,
        new_pos_ids=torch.tensor(positions, dtype=torch.int64),
        inv_freq=inv_freq,
        attention_scaling=data.draw(scalings),
        interleaved=interleaved,
    )
    width = data.draw(sizes)
    full = data.draw(tensors(tokens, width, dtype=data.draw(st.sampled_from([*ELEMENTS, torch.float64]))))
    if data.draw(st.booleans()) and full.dim() == 2:
        full = torch.cat((full, full), -1)
    call(ops.derotate_kv, k=k, v=v, cos=full, sin=full, interleaved=interleaved)


@given(frames(), small, small, st.one_of(st.sampled_from([1, 16, 64]), integers), codecs, scalings, st.data())
def test_archive_and_restore(
    frame: dict[str, Any],
    first_slot: int,
    tokens: int,
    page_tokens: int,
    codec: str,
    scaling: float,
    data: st.DataObject,
) -> None:
    inv_freq = frame.pop("inv_freq")
    pages = {"page_tokens": page_tokens, "codec": codec}
    payload = call(ops.archive_kv, **frame, first_slot=first_slot, tokens=tokens, **pages)
    if data.draw(st.booleans()):
        size = 0 if payload is None else len(payload)
        out = data.draw(st.one_of(tensors(size, dtype=torch.uint8), st.just(whole_storage(frame["k"]))))
        call(ops.archive_kv, **frame, first_slot=first_slot, tokens=tokens, **pages, out=out)
    if payload is None or data.draw(st.booleans()):
        payload = data.draw(tensors(data.draw(st.integers(0, 3000)), dtype=torch.uint8))
    runs = data.draw(st.lists(st.tuples(*[integers] * 6), max_size=4))
    placements = torch.tensor(runs, dtype=torch.int64).reshape(-1, 6)
    if data.draw(st.booleans()):
        placements = torch.tensor([[0, min(tokens, page_tokens), 0, min(tokens, page_tokens), 0, 5]])
    call(
        ops.restore_kv,
        payload=payload,
        placements=placements,
        **frame,
        **pages,
        inv_freq=inv_freq,
        attention_scaling=scaling,
    )


@given(frames(), st.one_of(st.sampled_from([1, 16]), integers), codecs, st.lists(integers, min_size=4, max_size=4))
def test_encode_and_decode(frame: dict[str, Any], page_tokens: int, codec: str, shape: list[int]) -> None:
    k, v = frame["k"], frame["v"]
    pages = {"page_tokens": page_tokens, "codec": codec}
    payload = call(ops.encode_kv, k=k, v=v, **pages)
    layers, kv_heads, tokens, head_dim = shape
    given_shape = {"layers": layers, "kv_heads": kv_heads, "tokens": tokens, "head_dim": head_dim}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        call(ops.decode_kv, payload=torch.zeros(100, dtype=torch.uint8), **given_shape, **pages, dtype=dtype)
    if isinstance(payload, torch.Tensor):
        call(ops.decode_kv, payload=payload, **given_shape, **pages, dtype=torch.float16)
        layers, kv_heads, tokens, head_dim = k.shape
        fits = {"layers": layers, "kv_heads": kv_heads, "tokens": tokens, "head_dim": head_dim}
        assert ops.decode_kv(payload=payload, **fits, **pages, dtype=k.dtype)[0].shape == k.shape
