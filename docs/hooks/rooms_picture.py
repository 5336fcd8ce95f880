"""Draws docs/pictures/rooms.svg from the tree: who imports, links or includes whom, floor above floor.

The arrows of the core are the link rules of cpp/CMakeLists.txt, which the compiler holds.

`python docs/hooks/rooms_picture.py` writes it anew. An arrow that follows from two others is left out.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
PACKAGE = ROOT / "python" / "everlong"
CMAKE = ROOT / "cpp" / "CMakeLists.txt"
CORE = "cpp/"  # what the name of a layer of the core begins with
_WIDTH, _BOX, _GAP, _FLOOR = 1000, 112, 20, 76
_ALSO = {"_core": ("cpp/bindings",), "_native": ("cpp/bindings",)}  # by loading a library, which no line imports

Arrows = Mapping[str, frozenset[str]]


def arrows() -> dict[str, frozenset[str]]:
    """Of each room of the package and each layer of the core: what it imports or includes."""
    found = {name: frozenset(_imports(name)) for name in _python_names()}
    found |= {name: found[name] | frozenset(below) for name, below in _ALSO.items()}
    return found | _core_arrows()


def _python_names() -> list[str]:
    folders = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")}
    files = {path.stem for pattern in ("*.py", "*.pyi") for path in PACKAGE.glob(pattern)}
    return sorted(folders | (files - {"__init__", "__main__"}))


def _imports(room: str) -> Iterator[str]:
    files = [(path, path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.rglob("*.py")]
    for path in (path for path, place in files if _room(".".join(("everlong", *place.parts))) == room):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "everlong":
                names = [f"everlong.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [node.module]
            rooms = (_room(name) for name in names if name.startswith("everlong."))
            yield from (other for other in rooms if other != room)


def _room(module: str) -> str:
    return module.split(".")[1]


def links() -> dict[str, set[str]]:
    """Of each room of the core, the rooms that it links: the lines `everlong_room` of its CMakeLists.txt."""
    rules = re.findall(r"^everlong_room\((\w+) ([^)]*)\)", CMAKE.read_text(), re.MULTILINE)
    return {
        room: frozenset(re.findall(r"\beverlong_(\w+)", linked)) & {name for name, _ in rules} for room, linked in rules
    }


def _core_arrows() -> dict[str, frozenset[str]]:
    found = {f"{CORE}{room}": frozenset(f"{CORE}{other}" for other in below) for room, below in links().items()}
    return found | {name: frozenset(_includes(name)) for name in (f"{CORE}bindings", "hip")}


def _includes(name: str) -> Iterator[str]:
    for path in (ROOT / {"hip": "hip"}.get(name, "cpp/bindings")).rglob("*.*"):
        if path.suffix in (".h", ".cc", ".hip", ".inc"):
            for header in re.findall(r'#\s*include\s*"([^"]+)"', path.read_text()):
                part = re.match(r"everlong/(\w+)/", header)
                if part is not None:
                    yield f"{CORE}{part[1]}"
                elif header.startswith("../../hip/"):
                    yield "hip"


def floors(of: Arrows) -> dict[str, int]:
    """How far above the ground each stands: one above the highest that it stands on. RecursionError for a circle.

    What stands on nothing is put right below the lowest that stands on it.
    """
    known: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((floor(below) for below in of[name]), default=-1)
        return known[name]

    found = {name: floor(name) for name in of}
    users = {name: [found[other] for other in of if name in of[other]] for name in of if not of[name]}
    return found | {name: min(above, default=1) - 1 for name, above in users.items()}


def without_detours(of: Arrows) -> dict[str, frozenset[str]]:
    """The arrows that do not follow from others."""

    def reach(name: str) -> frozenset[str]:
        return of[name].union(*(reach(below) for below in of[name]))

    return {name: below - frozenset().union(*(reach(other) for other in below)) for name, below in of.items()}


def picture() -> str:
    of = arrows()
    floor_of = floors(of)
    by_floor: dict[int, list[str]] = {}
    for name, floor in sorted(floor_of.items(), key=lambda item: (item[1], item[0].startswith(CORE), item[0])):
        by_floor.setdefault(floor, []).append(name)
    height = _FLOOR * len(by_floor) + 30
    place: dict[str, tuple[float, float]] = {}  # middle of the box's top
    for floor, names in by_floor.items():
        step = _BOX + _GAP
        first = (_WIDTH - step * (len(names) - 1)) / 2 + (23 if floor % 2 else -23)
        for column, name in enumerate(names):
            place[name] = (first + column * step, height - 50 - _FLOOR * floor)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="15">',
        "  <!-- drawn by docs/hooks/rooms_picture.py -->",
        "  <defs>",
        '    <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">',
        '      <path d="M0 0 L10 5 L0 10 z" fill="#607d8b"/>',
        "    </marker>",
        "  </defs>",
        f'  <rect width="{_WIDTH}" height="{height}" rx="12" fill="#fafafa"/>',
        '  <g fill="none" stroke="#90a4ae" stroke-width="1.4">',
    ]
    for name, below in sorted(without_detours(of).items()):
        x, y = place[name]
        for other in sorted(below):
            to_x, to_y = place[other]
            lines.append(f'    <path d="M{x:.0f} {y + 34:.0f} L{to_x:.0f} {to_y:.0f}" marker-end="url(#tip)"/>')
    lines.append("  </g>")
    for name, (x, y) in sorted(place.items()):
        native = name.startswith(CORE) or name == "hip"
        fill, edge = ("#e3f2fd", "#1565c0") if native else ("#e8f5e9", "#2e7d32")
        box = f'x="{x - _BOX / 2:.0f}" y="{y:.0f}" width="{_BOX}" height="34"'
        lines.append(f'  <rect {box} rx="6" fill="{fill}" stroke="{edge}"/>')
        lines.append(f'  <text x="{x:.0f}" y="{y + 22:.0f}" text-anchor="middle">{html.escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
