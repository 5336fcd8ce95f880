"""The heat map: a PNG of a sensible size, drawn from JSON alone, with blank cells where nothing was asked."""

import json
import pathlib
import struct

import numpy as np
import pytest
from matplotlib import image

from everlong_lab.pictures.heatmap import draw_heat_map


def report(lengths: int, depths: int = 10, right: bool = True) -> dict[str, object]:
    questions = [
        {"length": 32_000 * 2**column, "depth_bin": row, "right": right}
        for column in range(lengths)
        for row in range(depths)
        if (row, column) != (0, 0)
    ]
    return {"model": "smollm2", "config": {"depths": depths}, "questions": questions}


def size(path: pathlib.Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    return width, height


@pytest.mark.parametrize("lengths", [1, 3, 6])
def test_png_of_a_sensible_size(tmp_path: pathlib.Path, lengths: int) -> None:
    read_back = json.loads(json.dumps(report(lengths)))
    path = draw_heat_map(read_back, tmp_path / "new" / "map.png")
    width, height = size(path)
    assert 500 <= width <= 2_500
    assert 500 <= height <= 2_000


def test_more_lengths_make_it_wider(tmp_path: pathlib.Path) -> None:
    widths = [size(draw_heat_map(report(n), tmp_path / f"{n}.png"))[0] for n in (1, 3, 6)]
    assert widths == sorted(set(widths))


def test_right_and_wrong_look_different(tmp_path: pathlib.Path) -> None:
    good, bad = (
        image.imread(draw_heat_map(report(3, right=right), tmp_path / f"{right}.png"))[..., :3]
        for right in (True, False)
    )
    green = np.array([0x1B, 0x78, 0x37]) / 255
    red = np.array([0xB2, 0x18, 0x2B]) / 255

    def share(picture: np.ndarray, colour: np.ndarray) -> float:
        return float((np.abs(picture - colour).max(axis=-1) < 0.02).mean())

    assert share(good, green) > 0.2 > 0.05 > share(good, red)
    assert share(bad, red) > 0.2 > 0.05 > share(bad, green)
