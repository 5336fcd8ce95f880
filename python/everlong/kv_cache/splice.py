"""The doctor's short form, at attach: can a model go on over keys and values that were archived and moved?

`attach` has measured how keys turn. Here a few tokens go through a frame, into the archive and back to other positions.
Then the model's logits for the tokens behind them are compared with a plain forward's.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

import everlong.ops as ops
from everlong.errors import UnsupportedModelError
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.phase import PhaseTap
from everlong.models.attach import AttachedModel
from everlong.models.block_layers import dtype_of_rounding
from everlong.models.releases import cache_argument
from everlong.models.rotations import own_rotations
from everlong.models.trial import spread, trial_ids

_ARCHIVED_TOKENS, _TAIL_TOKENS = 24, 8
_MOVED = 37  # positions
# Of logits: how much of their spread rounding may take; and how far they may be off, as a share of what the text before
# them changes. Keys in the wrong place, or of another text, change as much as the text itself.
_ROUNDING, _TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}, 0.5
_ROUNDING_16_BIT = 0.05

_Way = tuple[str, torch.dtype, str, int]  # how it computes: attention, number format, device, first position
_passed: weakref.WeakKeyDictionary[Any, set[_Way]] = weakref.WeakKeyDictionary()


def require_splice(served: AttachedModel) -> None:
    """Raise UnsupportedModelError where logits over archived, restored and moved keys differ from a plain forward's.

    A model is asked once for each way that it computes. Its weights and hooks are left as they were.
    """
    attention = str(getattr(served.model.config, "_attn_implementation", ""))
    way = (attention, served.dtype, str(served.device), served.first_position)
    passed = _passed.setdefault(served.model, set())
    if way in passed:
        return
    error = splice_error(served)
    if not error <= _TOLERANCE:  # NaN is not
        raise UnsupportedModelError(
            f"{served.model.config.model_type}: read over keys and values that were archived and moved by {_MOVED} "
            f"positions, its logits are off by {error:.1e} from a plain forward's; a model whose attention depends on "
            "its cache and position_ids alone works"
        )
    passed.add(way)


@torch.no_grad()
@own_rotations()
def splice_error(served: AttachedModel) -> float:
    """Return how far the logits are off: 0 not at all, about 1 as far as without any text before them.

    It is the norm of the difference, divided by the norm of what the text does to them plus what rounding may do.
    """
    ids = trial_ids(served.model, _ARCHIVED_TOKENS + _TAIL_TOKENS)
    plain = _plain(served, ids, 0)
    alone = _plain(served, ids[_ARCHIVED_TOKENS:], _ARCHIVED_TOKENS)
    spliced = _behind_what_was_archived(served, ids)
    dtype = dtype_of_rounding(served.model, served.dtype)
    rounding = _ROUNDING.get(dtype, _ROUNDING_16_BIT) * spread(plain)
    return float((spliced - plain).norm() / ((alone - plain).norm() + rounding))


def _plain(served: AttachedModel, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Return logits [tail, V] of the last tokens, without a cache."""
    out = served.model(
        input_ids=ids[None],
        position_ids=_positions(served, first, len(ids)),
        use_cache=False,
        logits_to_keep=_TAIL_TOKENS,
    )
    logits: torch.Tensor = out.logits[0, -_TAIL_TOKENS:]
    return logits.double()


def _behind_what_was_archived(served: AttachedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return logits [tail, V] of the tail, over earlier tokens that come out of the archive and stand further on."""
    text, tail = ids[:_ARCHIVED_TOKENS], ids[_ARCHIVED_TOKENS:]
    writer = ResidentCache(served, frame_tokens=len(text), sink_tokens=0, front_tokens=0)
    with PhaseTap(served) as phase:
        _forward(served, writer, text, 0)
        writer.commit(*phase.newest)
    size = ops.payload_bytes(len(text), len(text), served.layers, served.kv_heads, served.head_dim, "fp32")
    payload = torch.zeros(size, dtype=torch.uint8, device=served.device)
    writer.buffers.archive(0, len(text), payload, page_tokens=len(text), codec="fp32")

    reader = ResidentCache(served, frame_tokens=len(ids), sink_tokens=0, front_tokens=len(text))
    slot = reader.open_recalled(len(text))
    row = [0, len(text), 0, len(text), slot, _MOVED + served.first_position]
    table = torch.tensor([row], dtype=torch.int64, device="cpu")
    reader.buffers.write_pages(payload, table, page_tokens=len(text), codec="fp32")
    reader.own.restore(writer.own.snapshot())
    reader.own.turn(_MOVED)
    return _forward(served, reader, tail, _MOVED + len(text)).double()


def _forward(served: AttachedModel, cache: ResidentCache, ids: torch.Tensor, first: int) -> torch.Tensor:
    with cache.forward():
        out = served.model(
            input_ids=ids[None],
            position_ids=_positions(served, first, len(ids)),
            **{cache_argument(served.model): cache},
            use_cache=True,
            logits_to_keep=len(ids),
        )
    logits: torch.Tensor = out.logits[0]
    return logits


def _positions(served: AttachedModel, first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, device=served.device)[None] + served.first_position
