"""Keys and values of slots, with the rotation of each: what turns, archives and restores them.

The layers that rotate their keys and those that do not have tables of their own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence

import torch

import everlong.ops as ops
from everlong.errors import NotFiniteError
from everlong.kv_cache.copy_on_write import copy_on_write
from everlong.kv_cache.kept import KeptMasters
from everlong.models.attach import AttachedModel
from everlong.models.rope import NO_ROPE, RopeTable


@dataclasses.dataclass(frozen=True)
class SlotSnapshot:
    """A copy of slots [first, first + count), to be put back."""

    first: int
    k: torch.Tensor  # [L, Hkv, count, D]
    v: torch.Tensor
    cos: torch.Tensor  # [count, rotary_dim / 2]
    sin: torch.Tensor


@dataclasses.dataclass(frozen=True)
class _LayerGroup:
    """A run of layers that share a table: views of the buffers."""

    k: torch.Tensor  # [layers, Hkv, F, D]
    v: torch.Tensor
    cos: torch.Tensor  # [F, rotary_dim / 2]
    sin: torch.Tensor
    rope: RopeTable


class Buffers:
    """k, v [L, Hkv, F, D] of F slots. They are preallocated and written in place."""

    def __init__(self, served: AttachedModel, slots: int) -> None:
        shape = (served.layers, served.kv_heads, slots, served.head_dim)
        self.k = torch.zeros(shape, dtype=served.dtype, device=served.device)  # rotated keys [L, Hkv, F, D]
        self.v = torch.zeros(shape, dtype=served.dtype, device=served.device)
        half = served.rope.rotary_dim // 2
        # The rotation of each slot's key, exactly as it was applied. Archiving undoes it.
        self.cos = torch.ones(slots, half, dtype=torch.float32, device=served.device)
        self.sin = torch.zeros(slots, half, dtype=torch.float32, device=served.device)
        self._rope = served.rope
        self._rotated = served.rotated

    def copies(self, used: slice, count: int) -> list[Buffers]:
        """Return copies of these slots, which share what none of them has written yet. The others are empty."""
        whole = {name: copy_on_write(getattr(self, name), used, count) for name in ("k", "v")}
        made = []
        for k, v in zip(whole["k"], whole["v"], strict=True):
            other = copy.copy(self)
            other.k, other.v = k, v
            other.cos, other.sin = self.cos.clone(), self.sin.clone()
            made.append(other)
        return made

    def nbytes(self) -> int:
        """Return the bytes of the buffers, constant from construction on. `frame/budget.py` counts the rest, too."""
        return sum(t.numel() * t.element_size() for t in (self.k, self.v, self.cos, self.sin))

    def not_finite(self, first: int, last: int) -> torch.Tensor | None:
        """Return which tokens of slots [first, last) have NaN or inf, bool [L, tokens]; None: none has.

        It waits for the device.
        """
        new = [x[:, :, first:last] for x in (self.k, self.v)]
        if torch.stack([x.abs().amax() for x in new]).isfinite().all():  # one wait for both
            return None
        return ~torch.stack([x.isfinite().all(dim=3).all(dim=1) for x in new]).all(dim=0)

    def empty(self, first: int, last: int) -> None:
        """Empty slots that are not in use. NaN must not stay there: some attention reads them, too."""
        for x in (self.k, self.v):
            x[:, :, first:last].zero_()

    def archive(
        self,
        first_slot: int,
        tokens: int,
        out: torch.Tensor,
        refused: torch.Tensor | None = None,
        *,
        page_tokens: int,
        codec: str,
    ) -> None:
        """Write the payload of a block to `out`, uint8 [bytes] on the cache's device.

        `refused` is for `require_archived` to read later. With it, where one table serves all layers, nothing waits for
        the device.
        """
        parts = self._parts()
        if refused is not None and len(parts) > 1:
            refused.fill_(0xFF)  # nothing: each part says itself what it refuses
        with self._refusing():
            payloads = [
                ops.archive_kv(
                    part.k,
                    part.v,
                    part.cos,
                    part.sin,
                    first_slot,
                    tokens,
                    page_tokens,
                    codec,
                    part.rope.interleaved,
                    out=out if len(parts) == 1 else None,
                    refused=refused if len(parts) == 1 else None,
                )
                for part in parts
            ]
        if len(parts) > 1:
            torch.cat(self._page_by_page(payloads, tokens, page_tokens, codec), out=out)

    def require_archived(self, refused: torch.Tensor, first_slot: int, *, page_tokens: int, codec: str) -> None:
        """Raise for what `archive` refused. `refused` is a copy on the host."""
        with self._refusing():
            ops.require_archived(refused, self.k.shape, first_slot, page_tokens, codec)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise what the operator refuses, a number that no archive holds, as NotFiniteError."""
        try:
            yield
        except RuntimeError as error:
            if "expected a finite number" not in str(error):
                raise
            raise NotFiniteError(f"{error}; the model is in {str(self.k.dtype).removeprefix('torch.')}") from None

    def shift(self, first: int, to: int, tokens: int, delta: int) -> None:
        """Move tokens to earlier slots, and turn their keys by `delta` positions."""
        for part in self._parts():
            ops.shift_kv_(
                part.k, part.v, part.cos, part.sin, first, to, tokens, delta, part.rope.inv_freq, part.rope.interleaved
            )

    def unrotated(self, first_slot: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return k, v fp32 [L, Hkv, tokens, D] of consecutive slots, without their rotation."""
        last = first_slot + tokens
        keys, values = [], []
        for part in self._parts():
            k, v = (x[:, :, first_slot:last].float() for x in (part.k, part.v))
            if part.rope.rotary_dim > 0:
                cos, sin = (_both_of_a_pair(x[first_slot:last], part.rope) for x in (part.cos, part.sin))
                k, v = ops.derotate_kv(k, v, cos, sin, part.rope.interleaved)
            keys.append(k)
            values.append(v)
        return torch.cat(keys), torch.cat(values)

    def rotated(self, k: torch.Tensor, v: torch.Tensor, positions: Sequence[int]) -> SlotSnapshot:
        """Return slots of k, v fp32 [L, Hkv, n, D], each rotated to its position as the model counts."""
        where = torch.tensor(positions, dtype=torch.int64, device="cpu")
        keys, values = [], []
        before = 0
        for part in self._parts():
            rope = part.rope
            own_k, own_v = (x[before : before + part.k.shape[0]] for x in (k, v))
            if rope.rotary_dim > 0 and len(positions) > 0:
                own_k, own_v = ops.rerotate_kv(
                    own_k, own_v, where, rope.inv_freq, rope.attention_scaling, rope.interleaved
                )
            keys.append(own_k.to(self.k.dtype))
            values.append(own_v.to(self.v.dtype))
            before += part.k.shape[0]
        angles = where.double()[:, None] * self._rope.inv_freq[None, :]
        phase = ((x * self._rope.attention_scaling).float().to(self.cos.device) for x in (angles.cos(), angles.sin()))
        return SlotSnapshot(0, torch.cat(keys), torch.cat(values), *phase)

    def take(self, masters: KeptMasters, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """Write the masters of tokens from the slots that they stand in."""
        rows = masters.rows_of(tokens)
        taken_from = torch.tensor(slots, dtype=torch.int64, device="cpu")
        for part, own in zip(self._parts(), self._parts(masters), strict=True):
            _gather(part, taken_from, own, rows, torch.zeros_like(rows), part.rope.inv_freq, 1.0, part.rope.interleaved)

    def lay(self, masters: KeptMasters, tokens: Sequence[int], first_slot: int, first_position: int) -> None:
        """Write tokens from their masters to consecutive slots and positions, as the model counts."""
        if len(tokens) == 0:
            return
        places = torch.arange(len(tokens), device="cpu")
        rows, at = masters.rows_of(tokens), places + first_position
        for part, own in zip(self._parts(), self._parts(masters), strict=True):
            rope = part.rope
            _gather(own, rows, part, places + first_slot, at, rope.inv_freq, rope.attention_scaling, rope.interleaved)

    def write_pages(
        self,
        payload: torch.Tensor,
        placements: torch.Tensor,
        *,
        page_tokens: int,
        codec: str,
        layers: range | None = None,
    ) -> None:
        """Decode and rotate pages into their slots; placements [N, 6] as `ops.restore_kv` reads them.

        The payload has all layers of each page, or `layers` alone.
        """
        layers = range(self.k.shape[0]) if layers is None else layers
        before = 0
        for part in self._parts():
            own = range(max(before, layers.start), min(before + part.k.shape[0], layers.stop))
            if len(own) > 0:
                if own.start > layers.start:  # within each page, this part begins behind the layers before it
                    placements = placements.clone()
                    for row in placements:
                        row[0] += self._bytes(int(row[1]), page_tokens, codec, own.start - layers.start)
                written = slice(own.start - before, own.stop - before)
                ops.restore_kv(
                    payload,
                    placements,
                    part.k[written],
                    part.v[written],
                    part.cos,
                    part.sin,
                    page_tokens,
                    codec,
                    part.rope.inv_freq,
                    part.rope.attention_scaling,
                    part.rope.interleaved,
                )
            before += part.k.shape[0]

    def cool(self, first_slot: int, tokens: int, temperature: float, layers: range | None = None) -> None:
        """Divide the keys of consecutive recalled slots by an attention temperature. These are never archived again."""
        if temperature != 1:
            of = slice(None) if layers is None else slice(layers.start, layers.stop)
            self.k[of, :, first_slot : first_slot + tokens] /= temperature

    def _parts(self, of: Buffers | KeptMasters | None = None) -> list[_LayerGroup]:
        """Return the layers that rotate their keys and those that do not, where there are any."""
        x, split = self if of is None else of, self._rotated
        no_phase = x.cos[:, :0].contiguous()
        parts = (
            _LayerGroup(x.k[:split], x.v[:split], x.cos, x.sin, self._rope),
            _LayerGroup(x.k[split:], x.v[split:], no_phase, no_phase, NO_ROPE),
        )
        return [part for part in parts if part.k.shape[0] > 0]

    def _page_by_page(
        self, payloads: list[torch.Tensor], tokens: int, page_tokens: int, codec: str
    ) -> list[torch.Tensor]:
        """Put a block's payload together from its parts': a page holds all layers. Return the pieces in order."""
        lengths = [min(page_tokens, tokens - first) for first in range(0, tokens, page_tokens)]
        pages = []
        for part, payload in zip(self._parts(), payloads, strict=True):
            layers = part.k.shape[0]
            pages.append(torch.split(payload, [self._bytes(length, page_tokens, codec, layers) for length in lengths]))
        return [piece for page in zip(*pages, strict=True) for piece in page]

    def _bytes(self, tokens: int, page_tokens: int, codec: str, layers: int) -> int:
        """Return the bytes of `layers` layers of one page."""
        _, kv_heads, _, head_dim = self.k.shape
        return ops.payload_bytes(tokens, page_tokens, layers, kv_heads, head_dim, codec)

    def snapshot(self, first: int, count: int) -> SlotSnapshot:
        last = first + count
        return SlotSnapshot(
            first,
            self.k[:, :, first:last].clone(),
            self.v[:, :, first:last].clone(),
            self.cos[first:last].clone(),
            self.sin[first:last].clone(),
        )

    def restore(self, saved: SlotSnapshot) -> None:
        last = saved.first + saved.cos.shape[0]
        self.k[:, :, saved.first : last] = saved.k
        self.v[:, :, saved.first : last] = saved.v
        self.cos[saved.first : last] = saved.cos
        self.sin[saved.first : last] = saved.sin


def _gather(
    source: _LayerGroup,
    slots: torch.Tensor,
    target: _LayerGroup,
    to: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    scaling: float,
    interleaved: bool,
) -> None:
    phased = (source.k, source.v, source.cos, source.sin, slots, target.k, target.v, target.cos, target.sin, to)
    ops.gather_kv_(*phased, positions, inv_freq, scaling, interleaved)


def _both_of_a_pair(half: torch.Tensor, rope: RopeTable) -> torch.Tensor:
    """Return cos or sin [tokens, rotary_dim] as a model has it, from one number a pair."""
    return half.repeat_interleave(2, dim=-1) if rope.interleaved else torch.cat([half, half], dim=-1)
