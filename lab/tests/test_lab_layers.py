"""The laboratory stands above everlong: its rooms import downward, and everlong imports nothing of it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import everlong
import everlong_lab

LAB = Path(everlong_lab.__file__).parent
FILES = sorted(LAB.rglob("*.py"))
# What the modules beside the rooms import of the lab; a room's own list is MAY_IMPORT in its `__init__.py`.
MODULES: dict[str, tuple[str, ...]] = {"__init__": (), "part_list": (), "packs": ()}


def imported(path: Path, package: str) -> set[str]:
    """The rooms of a package that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            same = node.module == package
            named = [f"{package}.{alias.name}" for alias in node.names] if same else [str(node.module)]
        found |= {name.split(".")[1] for name in named if name.startswith(f"{package}.")}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(LAB).with_suffix("").parts[0]


def may_import() -> dict[str, tuple[str, ...]]:
    rooms = sorted({path.relative_to(LAB).parts[0] for path in LAB.glob("*/**/*.py")} - set(MODULES))
    lists = dict(MODULES)
    for room in rooms:
        tree = ast.parse((LAB / room / "__init__.py").read_text())
        (node,) = (n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "MAY_IMPORT")
        assert node.value is not None
        lists[room] = ast.literal_eval(node.value)
    return lists


@pytest.mark.parametrize("room", may_import())
def test_a_room_imports_what_it_says(room: str) -> None:
    rooms = set().union(*(imported(path, "everlong_lab") for path in FILES if room_of(path) == room)) - {room}
    assert rooms == set(may_import()[room])


def test_rooms_stand_on_each_other_without_a_circle() -> None:
    TopologicalSorter(may_import()).prepare()  # raises CycleError, which names the circle


def test_everlong_imports_nothing_of_the_lab() -> None:
    """Entry points alone lead to it."""
    package = Path(everlong.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert len(files) > 300
    for path in files:
        modules = [
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        ]
        assert not [name for name in modules if name.split(".")[0] == "everlong_lab"], path
