"""What a frame left in its memory: which tokens its zones stood for, and their keys and values (docs/format.md).

`frame/checkpoint.py` says what all of it means. Here it only loses what was forgotten: keys and values of the first
layer tell which words they are of. So whoever writes it, and whoever forgets, drops what no block has any more.
"""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import safetensors.torch
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError

ATTRIBUTE = "frame"
_FILE = "frame.safetensors"
_CRC = "state_crc32"  # in the text: zlib's CRC-32 of the file
_FORGETTINGS = "forgettings"  # in the text: how many the memory had counted when the frame last let go of anything
_STREAM = 0  # the one that frames read
_ANCHORS, _STONES, _KEPT = ("anchor_k", "anchor_v"), ("tombstone_k", "tombstone_v"), ("kept_k", "kept_v")

Fields = dict[str, Any]
Tensors = dict[str, torch.Tensor]

# Of this process: a forgetting in one thread must not come between the two writes of a frame in another.
_writing = threading.RLock()


def read(core: _core.Memory) -> tuple[Any, Tensors | None]:
    """Return its text, parsed, and its tensors; None where the file is not the one that the text was written with.

    json.JSONDecodeError, or what safetensors raises, for what no frame wrote.
    """
    fields = json.loads(core.manifest().attributes.get(ATTRIBUTE, "{}"))
    named = isinstance(fields, dict) and _CRC in fields
    file = core.file(_FILE) if named else None
    return fields, safetensors.torch.load(file) if file is not None and zlib.crc32(file) == fields[_CRC] else None


def keep(core: _core.Memory, fields: Fields, tensors: Tensors) -> None:
    """Write it in place of the last one, without what was forgotten since the frame looked.

    `fields` say in "forgettings" how many the memory had counted then.
    """
    with _writing:
        if fields.get(_FORGETTINGS, 0) != core.forgettings():
            fields, tensors = without_forgotten(core, fields, tensors)
        _write(core, fields, tensors)
        if fields.get(_FORGETTINGS, 0) != core.forgettings():  # it came in between, and looked at what was there
            drop_forgotten(core)


def drop_forgotten(core: _core.Memory) -> None:
    """Write it anew without what was forgotten, where it has any of that. What cannot be read goes as a whole."""
    with _writing:
        try:
            fields, tensors = read(core)
            left, rest = without_forgotten(core, fields, tensors or {})
            imported = fields.get(_FORGETTINGS, 0) > core.forgettings()  # counted where it came from
        except Exception:  # whatever is wrong with what somebody else wrote
            fields, tensors, left, rest, imported = {}, None, {}, {}, True
        same = rest.keys() == (tensors or {}).keys() and all(map(torch.equal, rest.values(), (tensors or {}).values()))
        stale = tensors is None and bool(core.file(_FILE))
        if not same or stale or imported or {**left, _CRC: 0, _FORGETTINGS: 0} != {**fields, _CRC: 0, _FORGETTINGS: 0}:
            _write(core, left, rest)


def was_forgotten_since(core: _core.Memory, fields: Fields) -> bool:
    """Return whether anything was forgotten since it was written."""
    return bool(fields.get(_FORGETTINGS, 0) != core.forgettings())


def without_forgotten(core: _core.Memory, fields: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """Return it without tokens that no block has: anchors, tombstones that stand for any of them, kept tokens.

    State of layers that are not archived goes as a whole where it has seen any of them. KeyError, TypeError or
    ValueError for what no frame wrote.
    """
    now = core.forgettings()
    own_is_old = fields.get(_FORGETTINGS, 0) != now or now == 0
    fields, tensors = dict(fields), dict(tensors)
    if fields.get("anchor_zone"):
        zone = dict(fields["anchor_zone"])
        stones = [is_there(core, begin, end) for begin, end, _ in zone["tombstones"]]
        anchors = [is_there(core, begin, end) for begin, end in zone["anchors"]]
        slots = [(there, end - begin) for there, (begin, end) in zip(anchors, zone["anchors"], strict=True)]
        zone["tombstones"] = list(itertools.compress(zone["tombstones"], stones))
        zone["anchors"] = list(itertools.compress(zone["anchors"], anchors))
        fields["anchor_zone"] = zone
        _choose(tensors, _STONES, [(there, 1) for there in stones])
        _choose(tensors, _ANCHORS, slots)
    if fields.get("kept"):
        rows, until = fields["kept"]["blocks"], fields["kept"]["until"]
        there = [is_there(core, begin, end) for begin, end, *_ in rows]
        held = sorted((token, stays) for (*_, of), stays in zip(rows, there, strict=True) for token in of)
        _choose(tensors, _KEPT, [(stays, 1) for token, stays in held if token < until])
        fields["kept"] = {**fields["kept"], "blocks": list(itertools.compress(rows, there))}
        if not any(there):
            del fields["kept"]
    own = [name for name in tensors if name not in (*_ANCHORS, *_STONES, *_KEPT)]
    if own and own_is_old and not is_there(core, _seen_from(fields, tensors, own), int(fields.get("stream_end") or 0)):
        for name in own:
            del tensors[name]
    fields[_FORGETTINGS] = now
    if now == 0:
        del fields[_FORGETTINGS]
    return fields, tensors


def _write(core: _core.Memory, fields: Fields, tensors: Tensors) -> None:
    fields = {name: value for name, value in fields.items() if name != _CRC}
    if tensors:
        file = safetensors.torch.save(tensors)
        core.put_file(_FILE, file)
        fields[_CRC] = zlib.crc32(file)
    elif core.file(_FILE):
        core.put_file(_FILE, b"")  # what it had belongs to nothing any more
    core.set_attribute(ATTRIBUTE, json.dumps(fields))


def is_there(core: _core.Memory, begin: int, end: int, newest: int | None = None) -> bool:
    """Return whether blocks of the memory have all of these tokens: none that came after block `newest`."""
    try:
        blocks = {page.block for page in core.blocks.pages_of(_STREAM, begin, end)}
        for block in blocks if core.read_only else ():
            core.blocks.info(block)  # another process may have forgotten it since
    except (MemoryNotFoundError, ValueError):
        return False
    return newest is None or max(blocks, default=-1) <= newest


def _choose(tensors: Tensors, names: Sequence[str], runs: Sequence[tuple[bool, int]]) -> None:
    """Leave of tensors [L, Hkv, slots, D] the runs of slots that stay. `runs`: whether it stays, and its slots."""
    for name in names:
        if name not in tensors:
            continue
        if tensors[name].ndim != 4 or tensors[name].shape[2] != sum(slots for _, slots in runs):
            raise ValueError(
                f"{name} has {list(tensors[name].shape)}, expected {sum(slots for _, slots in runs)} slots"
            )
        stays = torch.tensor([stays for stays, slots in runs for _ in range(slots)], dtype=torch.bool, device="cpu")
        if not stays.all():
            tensors[name] = tensors[name][:, :, stays].contiguous()
        if tensors[name].shape[2] == 0:
            del tensors[name]


def _seen_from(fields: Fields, tensors: Tensors, own: Sequence[str]) -> int:
    """Return the first token that layers' own state still has anything of: windows drop what is older than they are."""
    windows = [name for name in own if name.endswith((".keys", ".values"))]
    if {name.partition(".")[0] for name in windows} != {name.partition(".")[0] for name in own}:
        return 0  # a recurrent state has something of all
    return max(0, int(fields.get("stream_end") or 0) - max(tensors[name].shape[-2] for name in windows))
