"""The notebooks run top to bottom over a tiny model, import only what is public, and are kept without outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support import REPOSITORY, TESTS

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
# Public is what has a page of the API reference.
PUBLIC = {
    name
    for page in (REPOSITORY / "docs" / "api").glob("*.md")
    for name in re.findall(r"^##? (everlong[\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
# What stands in the last picture of a notebook that draws by itself can be read.
READ_FIGURE = f"""import sys
sys.path.insert(0, {str(TESTS)!r})
from support.drawn_text import faults
assert faults(figure) == []"""


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def modules_of(source: str) -> set[str]:
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_NOTEBOOK_MODEL", str(saved_model))
    monkeypatch.setenv("EVERLONG_NOTEBOOK_CHARACTERS", "3000")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # memories and pictures that it leaves
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    copy = nbformat.read(notebook, as_version=4)
    if any("matplotlib" in cell.source for cell in copy.cells if cell.cell_type == "code"):
        copy.cells.append(nbformat.v4.new_code_cell(READ_FIGURE))
    client = NotebookClient(
        copy,
        timeout=None,
        startup_timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # CellExecutionError shows the cell and its traceback


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_only_what_is_public(notebook: Path) -> None:
    used = {name for cell in code_cells(notebook) for name in modules_of("".join(cell["source"]))}
    own = {name for name in used if name.partition(".")[0] == "everlong"}
    assert own
    assert own <= PUBLIC
    assert not re.search(r"\b_core\b|\._[a-z]", "".join("".join(cell["source"]) for cell in code_cells(notebook)))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(notebook: Path) -> None:
    for cell in code_cells(notebook):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


def test_the_notebooks_are_these() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == {
        "a_memory_as_a_graph",
        "evaluate_your_model",
        "memory_across_sessions",
        "quick_start",
        "re_phasing",
    }
