"""`torch.ops.everlong.*` with types: take the rotation off keys, put it on, and turn the frame to and from bytes.

Products with matrices in the blocks of GGUF files are the last three.

Letters of shapes: B batch, L archived layers, Hkv KV heads, T tokens, F slots of the frame, D head_dim, R rotary_dim.

k and v are float32, float16 or bfloat16, on the CPU or, in a build with one, on a GPU. All other tensors of a call lie
on the same device. Those that the host reads (new_pos_ids, inv_freq, placements, derotate_kv's cos and sin) may lie on
the CPU too, which saves a wait for the GPU. inv_freq is in radians a position, float64 or float32, which is widened.
Positions lie in [0, 2^30). Elements past R of a head pass through.

Arithmetic is fp32, angles are fp64. Every instruction set of a CPU gives the same bits. A GPU's kernels are made of the
same functions of one element, but its fp64 cos and sin may differ in the last bit.

A wrong argument raises RuntimeError, which names it, its value and what was expected. Lack of memory raises
torch.OutOfMemoryError. The ops run on torch's threads or the current stream and release the GIL. Two calls may run at
once on different tensors. They have no gradient, but for `block_linear`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch.library import register_fake

from everlong import _native

_native.load_ops(_native.check_core(_native.PACKAGE))
from everlong import _core  # noqa: E402

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


_CODECS = {codec.name: codec for codec in _core.codecs()}
CODECS = tuple(_CODECS)
REFUSED_BYTES = 16  # bytes of what an archive reports of a number that its codec cannot hold


def runs_on(device: torch.device) -> bool:
    """Return whether this build has the operators for tensors of `device`."""
    return refusal(device) is None


def refusal(device: torch.device) -> str | None:
    """Return why this build lacks the operators for tensors of `device`; None where it has them."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    if key is None or not torch._C._dispatch_has_kernel_for_dispatch_key("everlong::archive_kv", key):
        return "this everlong was built without operators for that: EVERLONG_CUDA=ON or EVERLONG_HIP=ON builds them"
    if key == "CPU":
        return None
    if not torch.cuda.is_available():
        return "torch finds no GPU on this machine"
    return _no_kernels(torch.device(device.type, device.index or 0))


@functools.cache
def _no_kernels(gpu: torch.device) -> str | None:
    """Return why a GPU cannot run the kernels. A build has them for some GPUs, which shows once one runs."""
    one = torch.ones(1, 1, 1, 2, device=gpu)
    phase = torch.ones(1, 2)
    try:
        derotate_kv(one, one, phase, phase)
    except RuntimeError as error:
        if "no kernels for this GPU" not in str(error):
            raise
        return str(error)
    return None


def _with_torchs_errors(operator: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Wrap a call of the native library, which raises RuntimeError alone: lack of memory becomes torch's error."""

    @functools.wraps(operator)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return operator(*args, **kwargs)
        except RuntimeError as error:
            if not str(error).startswith("out of memory"):
                raise
            raise torch.OutOfMemoryError(str(error)) from error

    return called


@_with_torchs_errors
def derotate_kv(
    k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys as they were before RoPE: k = (K cos - rot(K) sin) / (cos^2 + sin^2), and a contiguous copy of v.

    k, v [B, Hkv, T, D]; cos, sin [T, R] or [1 or B, T, R] as the model's `rotary_emb` returned them, of any
    floating-point type. They include the attention scaling and have both numbers of a pair. `interleaved`: pairs are
    (2i, 2i + 1), else (i, i + R/2).
    """
    out: tuple[torch.Tensor, torch.Tensor] = torch.ops.everlong.derotate_kv(k, v, cos, sin, interleaved)
    return out


@_with_torchs_errors
def rerotate_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    new_pos_ids: torch.Tensor,
    inv_freq: torch.Tensor | None = None,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return un-rotated keys put at positions, attention_scaling * R(new_pos_ids[t]) k, and a contiguous copy of v.

    k, v [B, Hkv, T, D]; new_pos_ids int64 [T]; inv_freq [R/2]: a model's own, its `rotary_emb.inv_freq`. Without it the
    table is RoFormer's over the whole of a head, 10000^(-2i/D), which few models still have.
    """
    out: tuple[torch.Tensor, torch.Tensor] = torch.ops.everlong.rerotate_kv(
        k, v, new_pos_ids, inv_freq, attention_scaling, interleaved
    )
    return out


@_with_torchs_errors
def shift_kv_(
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    source: int,
    target: int,
    count: int,
    delta: int,
    inv_freq: torch.Tensor,
    interleaved: bool = False,
) -> None:
    """Move slots [source, source + count) to [target, target + count) in place. Their keys turn by `delta` positions.

    k, v [L, Hkv, F, D], [F, D] contiguous; inv_freq [R/2]. The ranges may overlap. The rotation of each slot's key,
    cos, sin [F, R/2] float32, moves along and turns with it.
    """
    torch.ops.everlong.shift_kv_(k, v, cos, sin, source, target, count, delta, inv_freq, interleaved)


@_with_torchs_errors
def gather_kv_(
    from_k: torch.Tensor,
    from_v: torch.Tensor,
    from_cos: torch.Tensor,
    from_sin: torch.Tensor,
    sources: torch.Tensor,
    to_k: torch.Tensor,
    to_v: torch.Tensor,
    to_cos: torch.Tensor,
    to_sin: torch.Tensor,
    targets: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
) -> None:
    """Copy slot sources[i] of one buffer to slot targets[i] of another, and turn its key to positions[i].

    k, v [L, Hkv, F, D] and cos, sin [F, R/2] of either side are as in `shift_kv_`, with each side's own F. The int64
    [n] tensors are sources, targets and positions, with no target twice. A source with cos 1 and sin 0 carries no
    rotation. Position 0 with attention_scaling 1 leaves a target without one. There is one turn and one rounding:
    un-rotated sources give the bits of `rerotate_kv`, un-rotated targets those of `derotate_kv`.
    """
    torch.ops.everlong.gather_kv_(
        from_k,
        from_v,
        from_cos,
        from_sin,
        sources,
        to_k,
        to_v,
        to_cos,
        to_sin,
        targets,
        positions,
        inv_freq,
        attention_scaling,
        interleaved,
    )


@_with_torchs_errors
def archive_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    first_slot: int,
    tokens: int,
    page_tokens: int,
    codec: str,
    interleaved: bool = False,
    *,
    out: torch.Tensor | None = None,
    refused: torch.Tensor | None = None,
) -> torch.Tensor:
    """Encode slots [first_slot, first_slot + tokens) without rotation as a block's payload, uint8 [bytes].

    k, v [L, Hkv, F, D], cos, sin [F, R/2] as in `shift_kv_`. codec: one of CODECS. The bytes are laid out as in
    cpp/kv/include/everlong/kv/payload.h; `payload_bytes` returns their number. NaN and inf are refused, by name. `out`,
    apart from k and v, gets the bytes where it is given: memory that was used before costs no page faults. With
    `refused` too, uint8 [REFUSED_BYTES] on k's device, the call does not wait for a GPU. Then call `require_archived`
    with a copy of `refused` on the host before the payload is used.
    """
    if out is not None:
        torch.ops.everlong.archive_kv.out(
            k, v, cos, sin, first_slot, tokens, page_tokens, codec, interleaved, out=out, refused=refused
        )
        return out
    if refused is not None:
        raise ValueError("refused= needs out=")
    payload: torch.Tensor = torch.ops.everlong.archive_kv(
        k, v, cos, sin, first_slot, tokens, page_tokens, codec, interleaved
    )
    return payload


def require_archived(
    refused: torch.Tensor, k_shape: Sequence[int], first_slot: int, page_tokens: int, codec: str
) -> None:
    """Raise what `archive_kv` would have raised, had it waited. k_shape: [L, Hkv, F, D] of its keys."""
    layers, kv_heads, _, head_dim = k_shape
    torch.ops.everlong.require_archived(refused, layers, kv_heads, head_dim, first_slot, page_tokens, codec)


@_with_torchs_errors
def restore_kv(
    payload: torch.Tensor,
    placements: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    page_tokens: int,
    codec: str,
    inv_freq: torch.Tensor,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
) -> None:
    """Decode runs of archived tokens, rotate them to frame positions and write k, v, cos, sin of their slots in place.

    payload uint8 [bytes]; placements int64 [N, 6], one run of one page a row. A row holds the byte offset of the page
    in the payload and the tokens of the page. Then come the first token of the run within the page, the tokens of the
    run, the slot of the first, and its frame position. Runs may not overlap in slots. On an error nothing is written.
    """
    torch.ops.everlong.restore_kv(
        payload,
        placements,
        k,
        v,
        cos,
        sin,
        page_tokens,
        codec,
        inv_freq,
        attention_scaling,
        interleaved,
    )


@_with_torchs_errors
def encode_kv(k: torch.Tensor, v: torch.Tensor, page_tokens: int, codec: str) -> torch.Tensor:
    """Return un-rotated keys and values as a block's payload, uint8 [bytes]: `archive_kv` without the rotation.

    k, v [L, Hkv, T, D] of any strides, T = 0 allowed. NaN and inf are refused, by name.
    """
    payload: torch.Tensor = torch.ops.everlong.encode_kv(k, v, page_tokens, codec)
    return payload


@_with_torchs_errors
def decode_kv(
    payload: torch.Tensor,
    layers: int,
    kv_heads: int,
    tokens: int,
    head_dim: int,
    page_tokens: int,
    codec: str,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the un-rotated k, v [L, Hkv, T, D] of a payload uint8 [bytes], in `dtype`: undo `encode_kv`."""
    out: tuple[torch.Tensor, torch.Tensor] = torch.ops.everlong.decode_kv(
        payload, layers, kv_heads, tokens, head_dim, page_tokens, codec, dtype
    )
    return out


@_with_torchs_errors
def block_linear(x: torch.Tensor, blocks: torch.Tensor, format: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [..., K] times a matrix [N, K] transposed, plus `bias`: [..., N] in the dtype of x.

    The matrix is blocks, uint8 [N, bytes of a row], as GGUF files have them in `format`, GGUF's number for Q4_0, Q4_1,
    Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K. x is coded in 8 bits, 32 numbers to a scale; sums are fp32. A row's result
    does not depend on the other rows of the call. bias [N] is of the dtype of x, or float32. On the CPU alone.

    x and bias have gradients, those of a product with the matrix decoded to float32. Blocks are bytes and have none:
    torch refuses `requires_grad` for them.
    """
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        differentiable: torch.Tensor = _BlockProduct.apply(x, blocks, format, bias)  # type: ignore[no-untyped-call]
        return differentiable
    out: torch.Tensor = torch.ops.everlong.block_linear(x, blocks, format, bias)
    return out


@_with_torchs_errors
def block_rows(blocks: torch.Tensor, ids: torch.Tensor, format: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of such a matrix, [*ids.shape, K] in `dtype`. ids are int64 or int32, each below N."""
    out: torch.Tensor = torch.ops.everlong.block_rows(blocks, ids, format, dtype)
    return out


@_with_torchs_errors
def decode_tokens_(
    hidden: torch.Tensor,
    matrices: list[torch.Tensor],
    vectors: list[torch.Tensor],
    formats: list[int],
    k: list[torch.Tensor],
    v: list[torch.Tensor],
    spans: list[int],
    cos: torch.Tensor,
    sin: torch.Tensor,
    epsilon: float,
    scale: float,
) -> None:
    """Replace hidden [T, E] by what L layers of Llama's kind make of the tokens of some streams. On the CPU, float32.

    Each layer has 7 matrices [out, in] in blocks of their `formats`: query, key, value, output, gate, up, down. It has
    11 vectors: the norms before attention, of queries and of keys [D], and before the feed-forward, then a bias for
    each matrix. A vector that a layer lacks is empty. A stream has k, v [L, Hkv, F, D], and three numbers of `spans`:
    begin, end, tokens. Its tokens' keys, turned by cos, sin [T, D / 2], and their values go to slots from `end` on.
    Each token attends to all slots from `begin` to its own. `scale` multiplies q . k. A token's result does not depend
    on those that follow it, nor on other streams.
    """
    torch.ops.everlong.decode_tokens_(hidden, matrices, vectors, formats, k, v, spans, cos, sin, epsilon, scale)


_ROWS_AT_ONCE = 1024  # of a matrix that are decoded for a gradient


class _BlockProduct(torch.autograd.Function):
    """`block_linear` where a gradient is wanted. A kernel of torch's autograd would cost every call 5 microseconds."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, blocks: torch.Tensor, format: int, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(blocks)
        ctx.format, ctx.columns, ctx.dtype = format, x.shape[-1], x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        out: torch.Tensor = torch.ops.everlong.block_linear(x, blocks, format, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, None, None, torch.Tensor | None]:
        (blocks,), grad = ctx.saved_tensors, grads[0].float()
        of_x = _times_decoded(grad, blocks, ctx.format, ctx.columns) if ctx.needs_input_grad[0] else None
        of_bias = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype) if ctx.needs_input_grad[3] else None
        return None if of_x is None else of_x.to(ctx.dtype), None, None, of_bias


def _times_decoded(y: torch.Tensor, blocks: torch.Tensor, format: int, columns: int) -> torch.Tensor:
    """Return y [..., N] float32 times a matrix [N, K] in blocks, which is decoded some rows at a time: [..., K]."""
    total = y.new_zeros([*y.shape[:-1], columns])
    for first in range(0, blocks.shape[0], _ROWS_AT_ONCE):
        ids = torch.arange(first, min(first + _ROWS_AT_ONCE, blocks.shape[0]))
        total += y[..., first : first + _ROWS_AT_ONCE] @ block_rows(blocks, ids, format, torch.float32)
    return total


def payload_bytes(tokens: int, page_tokens: int, layers: int, kv_heads: int, head_dim: int, codec: str) -> int:
    """Return the bytes of a block: codes, and what is kept for channels of pages and for tokens to decode them."""
    if codec not in _CODECS:
        raise ValueError(f'codec is "{codec}"; expected one of {CODECS}')
    of = _CODECS[codec]
    rows = tokens * ((head_dim * of.key_bits + 7) // 8 + (head_dim * of.value_bits + 7) // 8)
    if of.channel_bytes:
        pages = (tokens + page_tokens - 1) // page_tokens
        groups = 1 if of.group is None else (head_dim + of.group - 1) // of.group
        rows += pages * head_dim * of.channel_bytes + 4 * tokens * groups
    return layers * kv_heads * rows


# Shapes and types without data, for torch.compile and meta tensors. torch passes arguments in the schema's order.


def _rotated(k: torch.Tensor, v: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return k.new_empty(k.shape), v.new_empty(v.shape)


def _written_in_place(*_: object, **__: object) -> None:
    return None


def _archived(
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    first_slot: int,
    tokens: int,
    page_tokens: int,
    codec: str,
    *_: object,
) -> torch.Tensor:
    layers, kv_heads, head_dim = k.shape[0], k.shape[1], k.shape[3]
    return k.new_empty([payload_bytes(tokens, page_tokens, layers, kv_heads, head_dim, codec)], dtype=torch.uint8)


def _encoded(k: torch.Tensor, v: torch.Tensor, page_tokens: int, codec: str) -> torch.Tensor:
    layers, kv_heads, tokens, head_dim = k.shape
    return k.new_empty([payload_bytes(tokens, page_tokens, layers, kv_heads, head_dim, codec)], dtype=torch.uint8)


def _decoded(
    payload: torch.Tensor,
    layers: int,
    kv_heads: int,
    tokens: int,
    head_dim: int,
    page_tokens: int,
    codec: str,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [layers, kv_heads, tokens, head_dim]
    return payload.new_empty(shape, dtype=dtype), payload.new_empty(shape, dtype=dtype)


def _require(fits: Any, message: Callable[[], str]) -> None:
    check: Any = torch._check  # which has no types
    check(fits, message)


def _decoded_columns(op: str, blocks: torch.Tensor, format: int) -> int:
    """Return K of a matrix in blocks, uint8 [N, bytes of a row]."""
    elements, size = _core.block_shape(format) if 0 <= format < 1 << 31 else (0, 0)
    _require(size > 0, lambda: f"{op}: the format of a matrix is {format}, expected that of blocks")
    fits = blocks.dtype == torch.uint8 and blocks.dim() == 2 and blocks.shape[1] > 0 and blocks.shape[1] % size == 0
    _require(fits, lambda: f"{op}: blocks is {blocks.dtype} {list(blocks.shape)}; expected uint8 [N, bytes]")
    columns: int = blocks.shape[1] // size * elements
    return columns


def _multiplied(x: torch.Tensor, blocks: torch.Tensor, format: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    columns = _decoded_columns("block_linear", blocks, format)
    _require(
        x.dim() >= 1 and x.shape[-1] == columns,
        lambda: f"block_linear: x is {list(x.shape)}; expected [..., {columns}], as the rows of blocks",
    )
    _require(
        bias is None or tuple(bias.shape) == (blocks.shape[0],),
        lambda: f"block_linear: bias is {list(x.shape if bias is None else bias.shape)}; expected [{blocks.shape[0]}]",
    )
    return x.new_empty([*x.shape[:-1], blocks.shape[0]])


def _looked_up(blocks: torch.Tensor, ids: torch.Tensor, format: int, dtype: torch.dtype) -> torch.Tensor:
    return blocks.new_empty([*ids.shape, _decoded_columns("block_rows", blocks, format)], dtype=dtype)


register_fake("everlong::derotate_kv", _rotated)
register_fake("everlong::rerotate_kv", _rotated)
register_fake("everlong::shift_kv_", _written_in_place)
register_fake("everlong::gather_kv_", _written_in_place)
register_fake("everlong::archive_kv.out", _written_in_place)
register_fake("everlong::require_archived", _written_in_place)
register_fake("everlong::restore_kv", _written_in_place)
register_fake("everlong::archive_kv", _archived)
register_fake("everlong::encode_kv", _encoded)
register_fake("everlong::decode_kv", _decoded)
register_fake("everlong::block_linear", _multiplied)
register_fake("everlong::block_rows", _looked_up)
register_fake("everlong::decode_tokens_", _written_in_place)
