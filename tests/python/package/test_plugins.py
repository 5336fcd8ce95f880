"""What other packages add by entry points, and what becomes of one that is broken."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from everlong import part_list, plugins
from everlong.memory.fingerprint import Fingerprint
from everlong.models import pack as packs
from everlong.models.pack import Pack, PackError, PackPart
from everlong.pictures import draw_report


def install(site: Path, group: str, value: str, module: str) -> None:
    """Lay a package into `site`, with one entry point."""
    site.mkdir(exist_ok=True)
    (site / "another.py").write_text(module)
    folder = site / "another-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\nanother = {value}\n")


@pytest.mark.parametrize(
    ("value", "module"),
    [
        ("another", "raise RuntimeError('broken')"),
        ("another", "import what_is_not_installed"),
        ("another:nothing", ""),
        ("no_such_package", ""),
        ("another", "this is no Python"),
    ],
)
def test_a_broken_package_is_left_out_with_a_warning(value: str, module: str, site: Path) -> None:
    install(site, "everlong.tested", value, module)
    with pytest.warns(UserWarning, match=rf"{value}, an entry point of everlong\.tested, is left out: "):
        assert list(plugins.load("everlong.tested")) == []


@pytest.mark.slow
def test_the_command_line_works_beside_a_broken_package(tmp_path: Path) -> None:
    install(tmp_path / "site", "everlong.commands", "another", "raise RuntimeError('broken')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from everlong.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert "compact" in done.stdout
    assert "another, an entry point of everlong.commands, is left out: broken" in done.stderr


def test_what_another_package_draws_is_drawn(site: Path, tmp_path: Path) -> None:
    drawing = """
def draw(report, folder):
    if "mine" not in report:
        return None
    file = folder / "mine.svg"
    file.write_text("<svg/>")
    return [file]
"""
    install(site, "everlong.pictures", "another:draw", drawing)
    assert draw_report({"mine": 1}, tmp_path) == [tmp_path / "mine.svg"]
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_report({"yours": 1}, tmp_path)


@pytest.fixture(name="site")
def a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for another package, which is unknown before and afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    _forget_it()
    yield tmp_path / "site"
    _forget_it()


def _forget_it() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "another"]:
        sys.modules.pop(name)
    packs._others_folders.cache_clear()
    packs._packs_in.cache_clear()


def pack_of(weights: str) -> Pack:
    return Pack(weights, "tiny", {"towers": PackPart({"w": torch.zeros(1)}, {}, {})})


def others_packs(site: Path) -> Path:
    """Have a package with packs; return its folder."""
    install(site, "everlong.packs", "another.packs", "")
    (site / "another.py").unlink()
    folder = site / "another" / "packs"
    folder.mkdir(parents=True)
    importlib.invalidate_caches()
    packs._others_folders.cache_clear()
    return folder


def test_packs_of_another_package_are_found(site: Path) -> None:
    pack_of("of this model").save(others_packs(site) / "tiny")
    found = packs.find_pack(Fingerprint("of this model", "", ""))
    assert found is not None
    assert list(found.parts) == ["towers"]


@pytest.mark.parametrize("harm", ["half a list", "a link", "half its tensors"])
def test_a_damaged_pack_of_another_package_is_left_out(site: Path, harm: str) -> None:
    folder = others_packs(site)
    pack_of("of this model").save(folder / "tiny")
    spoiled = folder / "tiny" / ("towers.safetensors" if harm == "half its tensors" else "pack.json")
    whole = spoiled.read_bytes()
    spoiled.unlink()
    spoiled.symlink_to("/etc/passwd") if harm == "a link" else spoiled.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="a pack of another package is left out"):
        assert packs.find_pack(Fingerprint("of this model", "", "")) is None
    with pytest.warns(UserWarning, match="a pack of another package is left out"):
        assert folder / "tiny" not in [Path(one.model_name) for one in packs.shipped_packs()]


def test_a_damaged_pack_of_the_user_is_said(site: Path) -> None:
    folder = packs.pack_folder_of("of this model")
    pack_of("of this model").save(folder)
    (folder / "pack.json").write_text("{")
    with pytest.raises(PackError, match="is no pack"):
        packs.find_pack(Fingerprint("of this model", "", ""))


def test_a_package_of_packs_whose_parent_is_broken_is_left_out(site: Path) -> None:
    others_packs(site)
    (site / "another" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert packs.find_pack(Fingerprint("of no model", "", "")) is None


@pytest.mark.parametrize(
    ("value", "module"),
    [
        ("another:Mine", "raise RuntimeError('broken')"),
        ("another.deeper:Mine", "raise RuntimeError('broken')"),
        ("another:Mine", ""),
    ],
)
@pytest.mark.filterwarnings("ignore:another.* is left out")
def test_a_broken_part_is_no_part_and_the_others_are_there(site: Path, value: str, module: str) -> None:
    install(site, "everlong.parts", value, module)
    assert "towers" in part_list.names()
    with pytest.raises(ValueError, match="there is no part 'another'"):
        part_list.part("another")
    with pytest.raises(ValueError, match="there is no part 'tovers'"):
        part_list.part("tovers")


def test_a_part_may_be_one_module(site: Path) -> None:
    install(site, "everlong.parts", "another:Mine", "class Mine:\n    name = 'another'\n")
    assert part_list.names()[-1] == "another"
    assert part_list.part("another").name == "another"
