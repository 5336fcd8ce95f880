"""A frame's checkpoint: where it stood, and what of it is in no archive. It is kept with the memory.

On disk it is the JSON text of the manifest's attribute `frame`. Keys and values are in the memory's own file
`frame.safetensors` (docs/format.md). The file counts only if the text was written with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

import everlong._core as _core
from everlong.kv_cache.anchors import AnchorMasters
from everlong.kv_cache.kept import KeptRows
from everlong.memory import frame_file
from everlong.memory.frame_file import ATTRIBUTE


@dataclasses.dataclass(frozen=True)
class AnchorZone:
    """The tokens of the stream that stand behind the sinks, oldest first (cpp/os/anchors.h, cpp/os/tombstones.h)."""

    tombstones: tuple[tuple[int, int, int], ...]  # first token, one past the last, number of tokens it stands for
    anchors: tuple[tuple[int, int], ...]  # first token, one past the last
    topics: tuple[int, ...]  # first tokens of topics whose anchors are not all in the zone yet

    @property
    def has_slots(self) -> bool:
        return len(self.tombstones) + len(self.anchors) > 0

    @classmethod
    def parse(cls, zone: object) -> AnchorZone:
        """Read what JSON or the Memory OS has for it.

        KeyError for a missing field, TypeError for one of the wrong kind.
        """
        if not isinstance(zone, dict):
            raise _unfit("anchor_zone", zone, "an object")
        return cls(
            tombstones=tuple((begin, end, tokens) for begin, end, tokens in _rows(zone, "tombstones", 3)),
            anchors=tuple((begin, end) for begin, end in _rows(zone, "anchors", 2)),
            topics=tuple(_integers(zone["topics"], "anchor_zone.topics")),
        )


@dataclasses.dataclass(frozen=True)
class KeptZone:
    """The tokens of closed blocks that are kept (cpp/os/kept_zone.h)."""

    until: int  # tokens before it stood in the zone, the others still in rolling
    blocks: tuple[tuple[int, int, int, tuple[int, ...]], ...]  # first token, one past the last, rung, best first

    @property
    def held(self) -> list[int]:
        """The tokens that stood in the zone, in order of time."""
        return sorted(token for *_, tokens in self.blocks for token in tokens if token < self.until)

    @classmethod
    def parse(cls, zone: object) -> KeptZone | None:
        """Read what JSON or the Memory OS has for it; None for an empty zone, and where there is none."""
        until, rows = (zone.get("until"), zone.get("blocks")) if isinstance(zone, dict) else (None, None)
        if not _is_int64(until) or not isinstance(rows, list):
            return None
        blocks = []
        for row in rows:
            if not isinstance(row, list | tuple) or len(row) != 4 or not isinstance(row[3], list):
                return None
            if not all(map(_is_int64, (*row[:3], *row[3]))) or not 0 <= row[2] < 2**31:
                return None
            blocks.append((row[0], row[1], row[2], tuple(row[3])))
        return cls(until, tuple(blocks)) if blocks else None


@dataclasses.dataclass(frozen=True)
class RecallCounts:
    """How far the recall policy had counted, in tokens."""

    since_recent: int
    since_periodic: int
    since_restored: int | None  # None: nothing has come back yet
    signal_waits: bool

    @classmethod
    def parse(cls, counts: object) -> RecallCounts | None:
        """Read what JSON or the Memory OS has for it; None where there is none: the policy then counts anew."""
        if not isinstance(counts, dict):
            return None
        recent, periodic = counts.get("since_recent"), counts.get("since_periodic")
        restored, waits = counts.get("since_restored"), counts.get("signal_waits")
        if not (_is_int64(recent) and _is_int64(periodic) and (restored is None or _is_int64(restored))):
            return None
        return cls(recent, periodic, restored, waits) if isinstance(waits, bool) else None


@dataclasses.dataclass(frozen=True, eq=False)
class KvState:
    """What a frame of keys and values holds that is in no archive. What was loaded is on the CPU."""

    own: Mapping[str, torch.Tensor]  # of the layers that are not archived, by the names that OwnLayers gives
    anchors: AnchorMasters | None  # of the anchor zone; None: it has no slots
    kept: KeptRows | None = None  # of the kept zone; None: there is none


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a frame stood. None: unknown, because the memory has no checkpoint or one of an earlier everlong."""

    stream_end: int | None = None
    rolling_from: int | None = None  # the first token of the rolling zone
    read_until: int | None = None
    next_position: int | None = None  # of the frame: where its next token would have stood
    anchor_zone: AnchorZone | None = None
    kept: KeptZone | None = None  # None: no tokens are kept
    recall_counts: RecallCounts | None = None
    cooldown_until: int = 0
    state: KvState | None = None  # None for a frame of text
    forgettings: int = 0  # what the memory had counted when the frame last let go of what was forgotten

    @classmethod
    def of(cls, os: _core.MemoryOs, state: KvState | None, forgettings: int) -> Checkpoint:
        """Return where a frame stands, by its Memory OS and its state."""
        return cls(
            stream_end=os.stream_end,
            rolling_from=os.rolling[0],
            read_until=os.read_until,
            next_position=os.next_position(),
            anchor_zone=AnchorZone.parse(os.anchor_zone),
            kept=KeptZone.parse(os.kept),
            recall_counts=RecallCounts.parse(os.recall_counts),
            cooldown_until=os.cooldown_until,
            state=state,
            forgettings=forgettings,
        )

    def still_true(self, stream_end: int) -> Checkpoint:
        """Return what of it holds for a stream that ends there: all, or its zones where blocks were archived since."""
        if self.stream_end == stream_end:
            return self
        state = None if self.state is None else KvState({}, self.state.anchors, self.state.kept)
        # Where the end was forgotten, what stands before it is still what was read, and what was said.
        read_until = self.read_until if self.stream_end is not None and stream_end < self.stream_end else None
        return Checkpoint(anchor_zone=self.anchor_zone, kept=self.kept, state=state, read_until=read_until)


def keep_checkpoint(core: _core.Memory, checkpoint: Checkpoint) -> None:
    """Keep it in a writable memory, in place of the last one, without what was forgotten since."""
    # The text's members are the record's fields, by name and in order, without the state and without what is empty.
    fields = dataclasses.asdict(dataclasses.replace(checkpoint, state=None))
    del fields["state"]
    if checkpoint.kept is None:
        del fields["kept"]
    if checkpoint.forgettings == 0:
        del fields["forgettings"]
    frame_file.keep(core, fields, _tensors(checkpoint.state))


def load_checkpoint(core: _core.Memory) -> Checkpoint:
    """Return the memory's last checkpoint, without keys and values that are gone, damaged, or of forgotten text.

    Counts that no frame could have had are left out. Anything else that no frame could have written is refused:
    json.JSONDecodeError, KeyError, TypeError, or what safetensors raises for a file that is not one of its own.
    """
    fields, tensors = frame_file.read(core)
    if not isinstance(fields, dict):
        raise _unfit("all of it", fields, "an object")
    checkpoint = _parsed(fields, tensors)
    if not frame_file.was_forgotten_since(core, fields):
        return checkpoint
    try:
        left, rest = frame_file.without_forgotten(core, fields, tensors or {})
    except (ValueError, KeyError, TypeError):
        return Checkpoint()  # its parts do not fit each other: nobody can say what is of forgotten text
    return _parsed(left, rest)


def _parsed(fields: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None) -> Checkpoint:
    state = None if not tensors else _state(tensors)
    zone = None if fields.get("anchor_zone") is None else AnchorZone.parse(fields["anchor_zone"])
    if zone is not None and zone.has_slots and (state is None or state.anchors is None):
        zone = None  # its keys and values are gone; no topics are still to leave
    kept = KeptZone.parse(fields.get("kept"))
    if kept is not None and len(kept.held) != (0 if state is None or state.kept is None else state.kept.k.shape[2]):
        kept = None
    stream_end, cooldown_until = fields.get("stream_end"), fields.get("cooldown_until")
    forgettings = fields.get("forgettings")
    return Checkpoint(
        stream_end=stream_end if _is_int64(stream_end) else None,
        rolling_from=_integer(fields, "rolling_from"),
        read_until=_integer(fields, "read_until"),
        next_position=_integer(fields, "next_position"),
        anchor_zone=zone,
        kept=kept,
        recall_counts=RecallCounts.parse(fields.get("recall_counts")),
        cooldown_until=cooldown_until if _is_int64(cooldown_until) else 0,
        state=state,
        forgettings=forgettings if _is_int64(forgettings) else 0,
    )


def _tensors(state: KvState | None) -> dict[str, torch.Tensor]:
    if state is None:
        return {}
    anchors = {} if state.anchors is None else state.anchors.tensors()
    return {**state.own, **anchors, **({} if state.kept is None else state.kept.tensors())}


def _state(tensors: Mapping[str, torch.Tensor]) -> KvState:
    names = {field.name for field in dataclasses.fields(AnchorMasters)}
    own = {name: tensor for name, tensor in tensors.items() if name not in names and not KeptRows.owns(name)}
    return KvState(own, AnchorMasters.from_tensors(tensors), KeptRows.from_tensors(tensors))


def _is_int64(value: object) -> TypeGuard[int]:
    return type(value) is int and -(2**63) <= value < 2**63  # JSON's true is an int to isinstance


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or _is_int64(value):
        return value
    raise _unfit(name, value, "an integer of 64 bits")


def _integers(values: object, name: str) -> list[int]:
    if not isinstance(values, list | tuple) or not all(map(_is_int64, values)):
        raise _unfit(name, values, "a list of integers of 64 bits")
    return list(values)


def _rows(zone: Mapping[str, Any], part: str, width: int) -> list[list[int]]:
    """Return one field of the zone: lists of `width` integers."""
    rows, name = zone[part], f"anchor_zone.{part}"
    if not isinstance(rows, list) or not all(isinstance(row, list | tuple) and len(row) == width for row in rows):
        raise _unfit(name, rows, f"a list of lists of {width}")
    return [_integers(row, name) for row in rows]


def _unfit(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"the memory's attribute {ATTRIBUTE!r}: {name} is {value!r}, expected {expected}")
