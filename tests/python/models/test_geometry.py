"""The shape of an archive from a config alone, against that of the model with its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong.errors import UnsupportedModelError
from everlong.models.attach import attach
from everlong.models.geometry import geometry_of
from support import ARCHITECTURES, WINDOW, tiny_model


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_a_config_alone_gives_the_shape_of_the_archive(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    model.config.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    served, found = attach(model, WINDOW), geometry_of(str(tmp_path), WINDOW)
    assert (found.layers, found.kv_heads, found.head_dim) == (served.layers, served.kv_heads, served.head_dim)
    assert geometry_of(str(tmp_path / "config.json"), WINDOW) == found


def test_layers_that_nothing_recalled_would_reach_are_refused(tmp_path: Path) -> None:
    tiny_model("mistral", sliding_window=64).config.save_pretrained(tmp_path)
    assert geometry_of(str(tmp_path), 64).layers == 3
    with pytest.raises(UnsupportedModelError, match="every layer sees only the newest 64 tokens"):
        geometry_of(str(tmp_path), 65)
