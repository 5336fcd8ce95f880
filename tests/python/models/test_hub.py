"""Packs on the Hub: pushed with a card of their figures, taken from its cache offline, and refused for other models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

import everlong
from everlong.models.hub import from_hub, push_pack
from everlong.models.pack import Pack, PackError, PackPart, load_pack, pack_of
from support import SMALL, byte_tokenizer, tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def made_pack(folder: Path, weights: str = "w" * 64) -> Pack:
    figures = {"held out": {"first": 0.25, "among four": 0.5}}
    part = PackPart({"a": torch.ones(2)}, {"size": 2}, {"data": "books", "minutes": 3.5, "figures": figures})
    pack = Pack(weights, "some/model", {"towers": part})
    pack.save(folder)
    return pack


class FakeHub:
    """What the Hub would get."""

    pushed: Path
    told: dict[str, Any]

    def __init__(self, token: str | None = None) -> None:
        FakeHub.told = {"token": token}

    def create_repo(self, repository: str, **given: Any) -> None:
        FakeHub.told |= {"repository": repository, **given}

    def upload_folder(self, *, folder_path: str, **given: Any) -> str:
        FakeHub.told |= given
        shutil.copytree(folder_path, FakeHub.pushed)
        return "https://hub/commit"


def in_cache(pushed: Path, cache: Path) -> None:
    """Put a pushed folder where huggingface_hub keeps what it downloaded: as links to blobs."""
    of = cache / "models--ann--pack"
    (of / "refs").mkdir(parents=True)
    (of / "refs" / "main").write_text(COMMIT)
    (of / "snapshots" / COMMIT).mkdir(parents=True)
    (of / "blobs").mkdir()
    for number, file in enumerate(sorted(pushed.iterdir())):
        shutil.copy(file, of / "blobs" / f"b{number}")
        (of / "snapshots" / COMMIT / file.name).symlink_to(of / "blobs" / f"b{number}")


def test_a_pack_goes_to_the_hub_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = made_pack(tmp_path / "pack")
    (tmp_path / "pack" / "private.txt").write_text("stays at home")
    FakeHub.pushed = tmp_path / "pushed"
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHub)
    assert push_pack(tmp_path / "pack", "ann/pack", token="t", license="mit") == "https://hub/commit"
    assert (FakeHub.told["repository"], FakeHub.told["private"], FakeHub.told["token"]) == ("ann/pack", True, "t")
    assert {file.name for file in FakeHub.pushed.iterdir()} == {"README.md", "pack.json", "towers.safetensors"}
    card = (FakeHub.pushed / "README.md").read_text()
    assert "| held out | among four | 0.5 |" in card
    assert 'base_model: "some/model"' in card
    assert 'license: "mit"' in card
    assert pack.model in card
    assert 'from_hub("ann/pack")' in card
    in_cache(FakeHub.pushed, tmp_path / "cache")
    folder = from_hub("ann/pack", cache=tmp_path / "cache", offline=True)
    assert load_pack(folder).parts["towers"].id == pack.parts["towers"].id
    assert not any(file.is_symlink() for file in folder.iterdir())
    shutil.rmtree(folder)
    assert from_hub("ann/pack", cache=tmp_path / "cache", offline=True) == folder


@pytest.mark.parametrize("name", ["org/tuned", "{there}/tuned"])
def test_a_pack_keeps_no_path_of_this_machine(name: str, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    model = tiny_model()
    model.name_or_path = name.format(there=tmp_path)
    assert pack_of(model, {}).model_name == ("tuned" if "there" in name else name)


def test_a_pack_of_another_model_is_refused(tmp_path: Path) -> None:
    made_pack(tmp_path / "pack")
    in_cache(tmp_path / "pack", tmp_path / "cache")
    folder = from_hub("ann/pack", cache=tmp_path / "cache", offline=True)
    with pytest.raises(everlong.ModelMismatchError, match="some/model"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=folder)


def test_what_is_no_pack_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("no pack")
    in_cache(tmp_path / "other", tmp_path / "cache")
    with pytest.raises(PackError, match=r"has no pack\.json"):
        from_hub("ann/pack", cache=tmp_path / "cache", offline=True)
    with pytest.raises(FileNotFoundError):
        from_hub("ann/none", cache=tmp_path / "cache", offline=True)
    with pytest.raises(PackError):
        push_pack(tmp_path / "other", "ann/pack")


def test_a_damaged_download_is_refused(tmp_path: Path) -> None:
    made_pack(tmp_path / "pack")
    file = tmp_path / "pack" / "towers.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    in_cache(tmp_path / "pack", tmp_path / "cache")
    with pytest.raises(PackError):
        from_hub("ann/pack", cache=tmp_path / "cache", offline=True)
