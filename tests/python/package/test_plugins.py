"""What other packages add by entry points, and what becomes of one that is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from everlong import plugins
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
def test_a_broken_package_is_left_out_with_a_warning(
    value: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "everlong.tested", value, module)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "another", raising=False)
    with pytest.warns(UserWarning, match=rf"{value}, an entry point of everlong\.tested, is left out: "):
        assert list(plugins.load("everlong.tested")) == []


@pytest.mark.slow
def test_the_command_line_works_beside_a_broken_package(tmp_path: Path) -> None:
    install(tmp_path / "site", "everlong.commands", "another", "raise RuntimeError('broken')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from everlong.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert "compact" in done.stdout
    assert "another, an entry point of everlong.commands, is left out: broken" in done.stderr


def test_what_another_package_draws_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = """
def draw(report, folder):
    if "mine" not in report:
        return None
    file = folder / "mine.svg"
    file.write_text("<svg/>")
    return [file]
"""
    install(tmp_path / "site", "everlong.pictures", "another:draw", drawing)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "another", raising=False)
    assert draw_report({"mine": 1}, tmp_path) == [tmp_path / "mine.svg"]
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_report({"yours": 1}, tmp_path)
