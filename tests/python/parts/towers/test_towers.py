"""Towers of late interaction: their arithmetic against numpy in fp64, their pack, their training, their states."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch

from everlong.errors import ModelMismatchError
from everlong.memory.fingerprint import Fingerprint
from everlong.models import pack as packs
from everlong.models.early_exit import early_exit_states
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack, PackError, PackPart, load_pack, open_pack, pack_folder_of, pack_of
from everlong.parts.late_interaction import quantize_int8
from everlong.parts.towers.model import LateTowers, means
from support import tiny_model
from support.parts.drawn_towers import WIDTH, drawn_towers


@pytest.mark.parametrize("tokens", [1, 3, 4, 64, 65, 130])
def test_means_cross_no_page(tokens: int) -> None:
    states = torch.randn(tokens, WIDTH, dtype=torch.float64)
    expected = [
        states[first : min(first + 4, page + 64, tokens)].mean(0)
        for page in range(0, tokens, 64)
        for first in range(page, min(page + 64, tokens), 4)
    ]
    torch.testing.assert_close(means(states, 64, 4).double(), torch.stack(expected), atol=1e-5, rtol=0)


def test_int8_keeps_the_direction() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(200, 128), dim=-1) * torch.rand(200, 1)
    kept = torch.nn.functional.cosine_similarity(quantize_int8(vectors).float(), vectors)
    assert kept.min() > 0.9995
    assert (quantize_int8(torch.zeros(1, 8)) == 0).all()


def test_shallow_states_are_those_of_output_hidden_states() -> None:
    model = tiny_model()
    ids = torch.randint(0, 200, (30,))
    with torch.no_grad():
        whole = model(ids[None], output_hidden_states=True).hidden_states
    hooks = [len(module._forward_hooks) for module in model.modules()]
    depth = model.config.num_hidden_layers
    layers = (*range(-depth, 0), *range(1, depth + 1))
    found = early_exit_states(model, ids, layers)
    assert set(found) == set(layers)
    for layer, states in found.items():
        torch.testing.assert_close(states, whole[layer][0], atol=1e-5, rtol=1e-5)
    for wrong in ((), (0,), (depth + 1,), (-depth - 1,)):
        with pytest.raises(ValueError, match="layers"):
            early_exit_states(model, ids, wrong)
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def test_a_pack_comes_back_as_it_was_and_no_damaged_one(tmp_path: pathlib.Path) -> None:
    model = tiny_model()
    towers = drawn_towers()
    pack = pack_of(model, {"towers": towers.part({"data": {"own": 3}, "seed": 0})})
    pack.save(tmp_path)
    loaded = load_pack(tmp_path)
    assert loaded.model == weights_fingerprint(model)
    part = loaded.parts["towers"]
    assert part.id == pack.parts["towers"].id
    assert part.made == {"data": {"own": 3}, "seed": 0}
    states = torch.randn(7, WIDTH)
    rounded = LateTowers.of_part(pack.parts["towers"])
    torch.testing.assert_close(
        LateTowers.of_part(part).query_vectors(states), rounded.query_vectors(states), atol=0, rtol=0
    )
    torch.testing.assert_close(rounded.written(states), towers.written(states), atol=0.05, rtol=0)

    file = tmp_path / "towers.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 0x40
    file.write_bytes(bytes(damaged))
    with pytest.raises(PackError, match="towers"):
        load_pack(tmp_path)
    file.unlink()
    with pytest.raises(PackError, match="no pack"):
        load_pack(tmp_path)
    listing = json.loads((tmp_path / "pack.json").read_text())
    (tmp_path / "pack.json").write_text(json.dumps({**listing, "format": 2}))
    with pytest.raises(PackError, match="format 2"):
        load_pack(tmp_path)


def test_a_pack_of_another_model_is_refused_and_not_found(tmp_path: pathlib.Path) -> None:
    model = tiny_model()
    pack = pack_of(model, {"towers": drawn_towers().part({})})
    pack.save(tmp_path)
    own = Fingerprint(weights_fingerprint(model), "rope", "tokenizer")
    other = Fingerprint("another", "rope", "tokenizer")
    assert open_pack(tmp_path, own) is not None
    with pytest.raises(ModelMismatchError, match="trained for"):
        open_pack(tmp_path, other)
    assert open_pack(None, own) is None
    assert open_pack("auto", own) is None
    pack.save(pack_folder_of(pack.model))
    assert open_pack("auto", own) is not None
    assert open_pack("auto", other) is None
    with pytest.raises(ModelMismatchError, match="pack of"):
        Pack("another", "", pack.parts).save(tmp_path)


def test_what_a_user_trained_stands_beside_what_is_shipped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_fingerprint(tiny_model())
    shipped = {name: PackPart({"w": torch.zeros(1)}, {}, {"from": "shipped"}) for name in ("towers", "trimmer")}
    Pack(weights, "tiny", shipped).save(tmp_path / "tiny")
    Pack("another", "other", shipped).save(tmp_path / "zz other")
    monkeypatch.setattr(packs, "_shipped_folders", lambda: (tmp_path / "tiny", tmp_path / "zz other"))
    own = PackPart({"w": torch.ones(1)}, {}, {"from": "own"})
    Pack(weights, "tiny", {"trimmer": own, "trigger": own}).save(pack_folder_of(weights))
    found = packs.find_pack(Fingerprint(weights, "rope", "tokenizer"))
    assert found is not None
    origins = {name: part.made["from"] for name, part in found.parts.items()}
    assert origins == {"towers": "shipped", "trimmer": "own", "trigger": "own"}
