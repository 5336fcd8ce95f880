"""docs/architecture.md is a map of this tree: what it names is there, and its picture is drawn from it."""

import importlib.util
import re
from types import ModuleType

import pytest
import torch

import everlong
from support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
FOLDERS = (
    REPOSITORY,
    REPOSITORY / "python" / "everlong",
    *(room / "include" / "everlong" for room in sorted((REPOSITORY / "cpp").iterdir())),
)
NAMES = re.findall(r"`([^`]+)`", PAGE)


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms_picture", REPOSITORY / "docs" / "hooks" / "rooms_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted({name for name in NAMES if "/" in name and " " not in name}))
def test_every_path_is_there(path: str) -> None:
    assert any((folder / path).exists() for folder in FOLDERS)


def test_every_step_names_a_file() -> None:
    for section in ("## From `read` to the disk", "## From a question to its answer"):
        rows = [row for row in PAGE.split(section)[1].split("\n\n")[1].splitlines() if row.startswith("| ")]
        steps = rows[1:]
        assert len(steps) >= 9
        for row in steps:
            assert re.search(r"`[\w/]+\.\w+`", row.split("|")[2]), row


def test_every_operator_is_there() -> None:
    operators = re.findall(r"`torch\.ops\.everlong\.(\w+)`", PAGE)
    assert len(operators) >= 3
    assert everlong.ops is not None
    for name in operators:
        assert hasattr(torch.ops.everlong, name)


def test_the_picture_is_of_this_tree() -> None:
    rooms = drawing()
    assert rooms.PICTURE.read_text() == rooms.picture(), "python docs/hooks/rooms_picture.py draws it anew"


def test_no_arrow_of_the_picture_points_up() -> None:
    rooms = drawing()
    arrows = rooms.arrows()
    floors = rooms.floors(arrows)
    assert {"frame", "retrieval", "cpp/os", "cpp/store", "hip"} <= set(arrows)
    assert all(floors[below] < floors[name] for name, names in arrows.items() for below in names)
