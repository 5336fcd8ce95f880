"""A frame's checkpoint: what was kept is what is loaded, in the bytes of docs/format.md; what is broken is told."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import everlong
import everlong._core as _core
from everlong.frame.checkpoint import (
    AnchorZone,
    Checkpoint,
    KeptZone,
    KvState,
    RecallCounts,
    keep_checkpoint,
    load_checkpoint,
)
from everlong.kv_cache.anchors import AnchorMasters
from everlong.kv_cache.kept import KeptRows
from support import byte_tokenizer, tiny_model

# As everlong wrote it before this record of it had a room of its own.
TEXT = (
    '{"stream_end": 900, "rolling_from": 600, "read_until": 890, "next_position": 981, "anchor_zone": {"tombstones": '
    '[[8, 300, 292], [300, 556, 256]], "anchors": [[300, 306]], "topics": [600, 900]}, "recall_counts": '
    '{"since_recent": 12, "since_periodic": 13, "since_restored": null, "signal_waits": false}, "cooldown_until": 400'
)


def masters(tombstones: int, anchors: int) -> AnchorMasters:
    """Every number another, k and v of 3 layers, 2 heads and 4 channels."""
    sizes = (tombstones, tombstones, anchors, anchors)
    return AnchorMasters(*(torch.arange(24.0 * n).reshape(3, 2, n, 4) + at for at, n in enumerate(sizes)))


def known() -> Checkpoint:
    """What TEXT says, and keys for its zone."""
    return Checkpoint(
        stream_end=900,
        rolling_from=600,
        read_until=890,
        next_position=981,
        anchor_zone=AnchorZone(((8, 300, 292), (300, 556, 256)), ((300, 306),), (600, 900)),
        recall_counts=RecallCounts(12, 13, None, False),
        cooldown_until=400,
        state=KvState({"1.keys": torch.ones(1, 2, 5, 4, dtype=torch.bfloat16)}, masters(2, 6)),
    )


def known_but(fields: dict[str, Any]) -> Checkpoint:
    return dataclasses.replace(known(), **fields)


def in_ram() -> _core.Memory:
    manifest = _core.Manifest(
        weights="w", rope="r", tokenizer="t", layers=3, kv_heads=2, head_dim=4, page_tokens=4, codec="fp32"
    )
    return _core.Memory.create(None, manifest, None)


def with_fields(**fields: object) -> _core.Memory:
    """A memory that keeps `known()`, but for these members of its text."""
    core = in_ram()
    keep_checkpoint(core, known())
    kept = json.loads(core.manifest().attributes["frame"])
    core.set_attribute("frame", json.dumps(kept | fields))
    return core


def without(name: str) -> _core.Memory:
    core = with_fields()
    kept = json.loads(core.manifest().attributes["frame"])
    del kept[name]
    core.set_attribute("frame", json.dumps(kept))
    return core


def require_same(loaded: Checkpoint, kept: Checkpoint) -> None:
    assert dataclasses.replace(loaded, state=None) == dataclasses.replace(kept, state=None)
    assert (loaded.state is None) == (kept.state is None)
    if loaded.state is None or kept.state is None:
        return
    require_equal(loaded.state.own, kept.state.own)
    assert (loaded.state.anchors is None) == (kept.state.anchors is None)
    require_equal(vars(loaded.state.anchors or _NONE), vars(kept.state.anchors or _NONE))
    assert (loaded.state.kept is None) == (kept.state.kept is None)
    if loaded.state.kept is not None and kept.state.kept is not None:
        require_equal(loaded.state.kept.tensors(), kept.state.kept.tensors())


def require_equal(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)


_NONE = masters(0, 0)


INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.builds(RecallCounts, INT64, INT64, st.none() | INT64, st.booleans())


@st.composite
def checkpoints(draw: Callable[..., Any]) -> Checkpoint:
    zone = AnchorZone(
        tuple(draw(st.lists(st.tuples(INT64, INT64, INT64), max_size=3))),
        tuple(draw(st.lists(st.tuples(INT64, INT64), max_size=3))),
        tuple(draw(st.lists(INT64, max_size=3))),
    )
    own = {f"{layer}.keys": torch.full((1, 2, 3, 4), float(layer)) for layer in draw(st.sets(st.integers(0, 5)))}
    anchors = masters(len(zone.tombstones), len(zone.anchors)) if zone.has_slots else None
    chosen = st.lists(INT64, min_size=1, max_size=4).map(tuple)
    blocks = draw(st.lists(st.tuples(INT64, INT64, st.integers(0, 15), chosen), max_size=3))
    chosen_zone = KeptZone(draw(INT64), tuple(blocks)) if blocks else None
    held = 0 if chosen_zone is None else len(chosen_zone.held)
    kept = KeptRows(torch.rand(3, 2, held, 4).bfloat16(), torch.rand(3, 2, held, 4).bfloat16()) if held else None
    return Checkpoint(
        stream_end=draw(st.none() | INT64),
        rolling_from=draw(st.none() | INT64),
        read_until=draw(st.none() | INT64),
        next_position=draw(st.none() | INT64),
        anchor_zone=draw(st.sampled_from([zone, None])),
        recall_counts=draw(st.none() | COUNTS),
        cooldown_until=draw(INT64),
        kept=chosen_zone,
        state=KvState(own, anchors, kept) if own or anchors or kept else None,
    )


@given(checkpoints())
def test_what_was_kept_is_loaded(kept: Checkpoint) -> None:
    core = in_ram()
    keep_checkpoint(core, kept)
    require_same(load_checkpoint(core), kept)
    keep_checkpoint(core, known())
    require_same(load_checkpoint(core), known())


def test_the_text_and_the_file_are_what_they_were() -> None:
    core = in_ram()
    keep_checkpoint(core, dataclasses.replace(known(), state=None))
    assert core.manifest().attributes["frame"] == TEXT + "}"
    assert core.file("frame.safetensors") is None
    keep_checkpoint(core, known())
    file = core.file("frame.safetensors")
    assert file is not None
    assert core.manifest().attributes["frame"] == f'{TEXT}, "state_crc32": {zlib.crc32(file)}}}'
    tensors = safetensors.torch.load(file)
    assert tensors.keys() == {"1.keys", "tombstone_k", "tombstone_v", "anchor_k", "anchor_v"}
    assert torch.equal(tensors["anchor_v"], masters(2, 6).anchor_v)


def test_what_no_frame_has_kept_is_an_empty_zone() -> None:
    zone = {"until": 900, "blocks": [[0, 128, 1, [5, 100]]]}
    for wrong in (
        [],
        {"until": 900},
        {"until": "x", "blocks": zone["blocks"]},
        {"until": 900, "blocks": [[0, 128, 1]]},
        {"until": 900, "blocks": [[0, 128, -1, [5]]]},
        {"until": 900, "blocks": [[0, 128, 2**31, [5]]]},
        {"until": 900, "blocks": [[0, 128, 1, [2**63]]]},
        {"until": 900, "blocks": [[0, 128, 1, 5]]},
        zone,  # whose keys and values are not there
    ):
        assert load_checkpoint(with_fields(kept=wrong)).kept is None
    still_rolling = {"until": 0, "blocks": [[0, 128, 1, [5, 100]]]}
    assert load_checkpoint(with_fields(kept=still_rolling)).kept == KeptZone(0, ((0, 128, 1, (5, 100)),))


def test_a_memory_without_a_checkpoint_knows_nothing() -> None:
    core = in_ram()
    assert load_checkpoint(core) == Checkpoint()
    core.set_attribute("frame", '{"further": 1}')
    assert load_checkpoint(core) == Checkpoint()


@pytest.mark.parametrize("how", ["damaged", "of another checkpoint", "no checksum", "checksum of no kind"])
def test_keys_that_are_not_there_or_not_whole_are_left_out_with_their_zone(how: str) -> None:
    core = with_fields(**{"checksum of no kind": {"state_crc32": "x"}}.get(how, {}))
    if how == "damaged":
        file = core.file("frame.safetensors")
        assert file is not None
        core.put_file("frame.safetensors", file[:-1] + bytes([file[-1] ^ 1]))
    elif how == "of another checkpoint":
        core.put_file("frame.safetensors", safetensors.torch.save(masters(1, 6).tensors()))
    elif how == "no checksum":
        core = without("state_crc32")
    require_same(load_checkpoint(core), dataclasses.replace(known(), state=None, anchor_zone=None))


def test_topics_that_are_still_to_leave_need_no_keys() -> None:
    topics = AnchorZone((), (), (600, 900))
    core = with_fields(anchor_zone=dataclasses.asdict(topics), state_crc32=0)
    assert load_checkpoint(core).anchor_zone == topics


@pytest.mark.parametrize("name", ["stream_end", "rolling_from", "read_until", "next_position", "recall_counts"])
def test_what_an_earlier_everlong_did_not_keep_is_not_known(name: str) -> None:
    expected = known_but({name: None})
    require_same(load_checkpoint(without(name)), expected)
    require_same(load_checkpoint(with_fields(**{name: None})), expected)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("stream_end", "900", None),
        ("stream_end", 2**63, None),
        ("recall_counts", [], None),
        ("recall_counts", {"since_recent": 1, "since_periodic": 2, "since_restored": 3}, None),
        ("recall_counts", {"since_recent": 1.5, "since_periodic": 2, "since_restored": 3, "signal_waits": True}, None),
        (
            "recall_counts",
            {"since_recent": 1, "since_periodic": 2**63, "since_restored": 3, "signal_waits": True},
            None,
        ),
        ("recall_counts", {"since_recent": 1, "since_periodic": 2, "since_restored": "3", "signal_waits": True}, None),
        ("cooldown_until", None, 0),
        ("cooldown_until", "soon", 0),
        ("cooldown_until", -(2**63) - 1, 0),
    ],
)
def test_counts_that_are_none_are_left_out(name: str, value: object, instead: object) -> None:
    require_same(load_checkpoint(with_fields(**{name: value})), known_but({name: instead}))


EMPTY: dict[str, object] = {"tombstones": [], "anchors": [], "topics": []}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rolling_from": "600"}, "rolling_from is '600', expected an integer"),
        ({"rolling_from": True}, "rolling_from is True"),
        ({"rolling_from": 2**63}, "rolling_from is 9223372036854775808"),
        ({"read_until": 1.5}, "read_until is 1.5"),
        ({"next_position": []}, r"next_position is \[\]"),
        ({"anchor_zone": []}, r"anchor_zone is \[\], expected an object"),
        ({"anchor_zone": EMPTY | {"tombstones": None}}, "anchor_zone.tombstones is None"),
        (
            {"anchor_zone": EMPTY | {"tombstones": [[1, 2]]}},
            r"tombstones is \[\[1, 2\]\], expected a list of lists of 3",
        ),
        ({"anchor_zone": EMPTY | {"tombstones": [["a", 2, 3]]}}, r"tombstones is \['a', 2, 3\]"),
        ({"anchor_zone": EMPTY | {"anchors": [3]}}, r"anchors is \[3\], expected a list of lists of 2"),
        ({"anchor_zone": EMPTY | {"anchors": [[1, 2**63]]}}, "anchors is .*, expected a list of integers"),
        ({"anchor_zone": EMPTY | {"topics": [0.5]}}, r"topics is \[0.5\]"),
        ({"anchor_zone": EMPTY | {"topics": "all"}}, "topics is 'all'"),
    ],
)
def test_what_no_frame_can_have_written_is_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=f"attribute 'frame': .*{told}"):
        load_checkpoint(with_fields(**fields))


@pytest.mark.parametrize("part", EMPTY)
def test_a_zone_without_one_of_its_parts_is_refused(part: str) -> None:
    with pytest.raises(KeyError, match=part):
        load_checkpoint(with_fields(anchor_zone={name: value for name, value in EMPTY.items() if name != part}))


def test_a_text_or_a_file_that_is_none_is_refused() -> None:
    core = with_fields()
    core.set_attribute("frame", "no JSON")
    with pytest.raises(json.JSONDecodeError):
        load_checkpoint(core)
    core.set_attribute("frame", "[]")
    with pytest.raises(TypeError, match=r"is \[\], expected an object"):
        load_checkpoint(core)
    core.put_file("frame.safetensors", b"no tensors")
    core.set_attribute("frame", json.dumps({"state_crc32": zlib.crc32(b"no tensors")}))
    with pytest.raises(safetensors.SafetensorError):
        load_checkpoint(core)


def test_of_an_earlier_end_of_the_stream_the_anchor_zone_still_holds() -> None:
    checkpoint = known()
    assert checkpoint.state is not None
    assert checkpoint.still_true(900) is checkpoint
    later = Checkpoint(anchor_zone=checkpoint.anchor_zone, state=KvState({}, checkpoint.state.anchors))
    require_same(checkpoint.still_true(901), later)


def test_a_damaged_manifest_and_another_model_are_told_before_any_checkpoint(tmp_path: Path) -> None:
    config = everlong.MemoryConfig(
        frame=everlong.FrameConfig(tokens=512, recalled_tokens=128, rolling_tokens=64, evict_tokens=32),
        archive=everlong.ArchiveConfig(block_tokens=64, codec="fp32"),
    )
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read("It rained all day. " * 30)
    with pytest.raises(everlong.ModelMismatchError):
        everlong.MemoryModel(tiny_model("qwen3", "yarn"), byte_tokenizer(), tmp_path / "m", config=config)
    manifest = tmp_path / "m" / "manifest.json"
    text = manifest.read_text()
    assert text.count("rolling_from") == 1
    manifest.write_text(text.replace("rolling_from", "rolling_form"))
    with pytest.raises(everlong.CorruptMemoryError, match="manifest"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config)
