"""A pack may come from anybody. What is no pack is refused with a type of everlong's; nothing outside is touched."""

import contextlib
import dataclasses
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.errors import EverlongError
from everlong.models.low_rank import LowRankMaps
from everlong.models.pack import Pack, PackedModule, PackError, PackPart, load_pack

SECRET = b"-----BEGIN PRIVATE KEY-----" * 20


@dataclasses.dataclass(frozen=True)
class Sizes:
    width: int = 3
    depth: int = 1


class Small(PackedModule):
    def __init__(self, settings: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.maps = torch.nn.ModuleList(torch.nn.Linear(settings.width, 2) for _ in range(settings.depth))


def saved(folder: Path) -> Path:
    Pack("model", "name", {"small": Small(Sizes()).part({"seed": 1})}).save(folder)
    return folder


def outside(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    return victim


def linked(file: Path, victim: Path) -> None:
    file.symlink_to(victim)


def hard_linked(file: Path, victim: Path) -> None:
    os.link(victim, file)


def piped(file: Path, _victim: Path) -> None:
    os.mkfifo(file)


def filled(file: Path, _victim: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize("name", ["small.safetensors", "pack.json"])
@pytest.mark.parametrize("replaced", [linked, hard_linked, piped, filled])
def test_what_is_no_file_of_the_pack_alone_is_refused(
    tmp_path: Path, name: str, replaced: Callable[[Path, Path], None]
) -> None:
    folder, victim = saved(tmp_path / "pack"), outside(tmp_path)
    (folder / name).rename(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    if replaced in (linked, hard_linked):
        victim.write_bytes(whole)  # what lies behind it would do
    replaced(folder / name, victim)
    before = victim.read_bytes()
    refused: list[str] = []

    def ask() -> None:
        with pytest.raises(PackError) as error:
            load_pack(folder)
        refused.append(str(error.value))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(30)
    assert refused
    assert "PRIVATE KEY" not in refused[0]
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", ["small.safetensors", "small.safetensors.new", "pack.json.new"])
@pytest.mark.parametrize("replaced", [linked, hard_linked])
def test_what_is_written_stays_in_the_pack(tmp_path: Path, name: str, replaced: Callable[[Path, Path], None]) -> None:
    folder, victim = saved(tmp_path / "pack"), outside(tmp_path)
    (folder / name).unlink(missing_ok=True)
    replaced(folder / name, victim)
    part = Small(Sizes()).part({"seed": 2})
    (folder / "pack.json").unlink()
    Pack("model", "name", {"small": part}).save(folder)
    assert victim.read_bytes() == SECRET
    assert load_pack(folder).parts["small"].id == part.id


def test_a_link_to_the_folder_is_the_users_own(tmp_path: Path) -> None:
    saved(tmp_path / "pack")
    (tmp_path / "link").symlink_to(tmp_path / "pack")
    assert load_pack(tmp_path / "link").parts.keys() == {"small"}


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "a/../../victim", "a\0b", "x" * 5000])
def test_a_part_has_no_place_outside(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "pack")
    (folder / "small.safetensors").rename(tmp_path / "victim.safetensors")
    change(folder, lambda listing: {**listing, "parts": {name: listing["parts"]["small"]}})
    with pytest.raises(PackError):
        load_pack(folder)
    with pytest.raises((EverlongError, ValueError)):
        Pack("model", "name", {name: Small(Sizes()).part({})}).save(tmp_path / "other")


@pytest.mark.parametrize("length", [0, 9, 1 << 20, 100_000_001, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_header_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    folder = saved(tmp_path / "pack")
    file = folder / "small.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    with pytest.raises(PackError):
        load_pack(folder)


def test_a_file_of_holes_takes_no_memory(tmp_path: Path) -> None:
    folder = saved(tmp_path / "pack")
    os.truncate(folder / "small.safetensors", 1 << 40)
    with pytest.raises(PackError, match="too large"):
        load_pack(folder)
    folder = saved(tmp_path / "other")
    os.truncate(folder / "pack.json", 1 << 40)
    with pytest.raises(PackError, match="too large"):
        load_pack(folder)


def change(folder: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "pack.json"
    said = how(json.loads(file.read_text()))
    file.write_text(said if isinstance(said, str) else json.dumps(said))


def within(listing: dict[str, Any], where: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(where) == 1:
        return {**listing, where[0]: value}
    return {**listing, where[0]: within(listing[where[0]], where[1:], value)}


PLACES = [
    *[("format",), ("model",), ("model_name",), ("parts",), ("parts", "small"), ("parts", "small", "id")],
    *[("parts", "small", "settings"), ("parts", "small", "made")],
]


@pytest.mark.parametrize("where", PLACES, ids=".".join)
@pytest.mark.parametrize("value", [None, 7, "text", [], {"small": 1}, [[]], 1e308, False])
def test_another_type_is_refused(tmp_path: Path, where: tuple[str, ...], value: object) -> None:
    folder = saved(tmp_path / "pack")
    right = {"model": str, "model_name": str, "made": dict}.get(where[-1])
    change(folder, lambda listing: within(listing, where, value))
    if right is not None and isinstance(value, right):
        load_pack(folder)
        return
    with pytest.raises(PackError):
        load_pack(folder)


@pytest.mark.parametrize(
    "text",
    [
        *["[" * 100_000, '{"a":' * 100_000, "[]", "null", "", "\0", "\ufeff{}", "7"],
        *['{"format": 1, "parts": {}, "model": NaN, "model_name": ""}', '{"format": ' + "9" * 5000 + "}"],
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, text: str) -> None:
    folder = saved(tmp_path / "pack")
    (folder / "pack.json").write_text(text)
    with pytest.raises(PackError):
        load_pack(folder)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_a_number_without_end_is_refused(tmp_path: Path, number: str) -> None:
    folder = saved(tmp_path / "pack")
    change(folder, lambda listing: json.dumps(listing).replace('"width": 3', f'"width": {number}'))
    with pytest.raises(PackError):
        load_pack(folder)


@pytest.mark.parametrize(
    "settings",
    [{"width": 10**9}, {"width": 10**18}, {"width": -1}, {"width": "3"}, {"width": [3]}, {"more": 1}, {"depth": 2}],
)
def test_settings_that_do_not_fit_the_tensors_make_nothing(settings: dict[str, Any]) -> None:
    part = Small(Sizes()).part({})
    with pytest.raises(PackError):
        Small.of_part(PackPart(part.tensors, {**part.settings, **settings}, {}))


@pytest.mark.parametrize("settings", [{"rank": 10**9}, {"rank": 10**15}, {"rank": "8"}, {"rank": None}, {"more": 1}])
def test_maps_that_do_not_fit_their_tensors_make_nothing(settings: dict[str, Any]) -> None:
    tensors = {"a.down": torch.zeros(8, 4), "a.up": torch.zeros(3, 8)}
    assert LowRankMaps.of_part(PackPart(tensors, {"rank": 8}, {})).names == ("a",)
    with pytest.raises(PackError):
        LowRankMaps.of_part(PackPart(tensors, {"rank": 8, **settings}, {}))


@given(data=st.data())
def test_a_changed_byte_gives_a_pack_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = saved(tmp_path_factory.mktemp("pack"))
    file = folder / data.draw(st.sampled_from(["pack.json", "small.safetensors"]))
    held = bytearray(file.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=4)):
        held[at] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(held[: data.draw(st.integers(0, len(held)))]))
    with contextlib.suppress(PackError):
        for part in load_pack(folder).parts.values():
            Small.of_part(part)
