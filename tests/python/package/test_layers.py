"""Dependencies point down only: reads the #include lines of the C++ sources and the imports of the Python package."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support import REPOSITORY, TESTS

PACKAGE = REPOSITORY / "python" / "everlong"

CPP = REPOSITORY / "cpp"


def _link_rules() -> dict[str, set[str]]:
    """Of each room of the core, the rooms whose headers it may include: what it links, and what those link."""
    lines = re.findall(r"^everlong_room\((\w+) ([^)]*)\)", (CPP / "CMakeLists.txt").read_text(), re.MULTILINE)
    below: dict[str, set[str]] = {}
    for room, linked in lines:  # bottom up
        named = set(re.findall(r"\beverlong_(\w+)", linked)) & set(below)
        below[room] = named.union(*(below[other] for other in named))
    return below


CPP_BELOW = _link_rules()
# Beside the standard library, POSIX and the compiler's intrinsics, which everyone may use.
CPP_LIBRARIES = {
    "base": {"malloc.h", "sqlite3.h"},
    "kv": set(),
    "weights": set(),
    "store": {"nlohmann"},
    "index": {"hnswlib"},
    "graph": set(),
    "os": set(),
}
# The bindings, by the prefix of a source's name: the op library knows no Python, the module `_core` no torch.
BINDINGS_BELOW = {"ops": {"base", "kv", "weights"}, "core": set(CPP_BELOW)}
BINDINGS_LIBRARIES = {"ops": {"torch"}, "core": {"pybind11"}}
GPU_BINDINGS = ("ops_gpu_", "core_gpu_")  # they alone know the kernels
# The kernels share the arithmetic of one element and the layout of what is kept with the core, and nothing that
# allocates, locks or fails.
HIP_BELOW = {
    "everlong/base/dtype.h",
    "everlong/base/element.h",
    "everlong/index/heads_job.h",
    "everlong/index/key_layout.h",
    "everlong/index/meaning_job.h",
    "everlong/index/meaning_layout.h",
    "everlong/kv/codec.h",
    "everlong/kv/frame_kv.h",
    "everlong/kv/position_phase.h",
    "everlong/kv/refused.h",
}

STANDARD_HEADER = re.compile(r"[a-z_0-9]+")
POSIX_HEADER = re.compile(r"((sys|linux)/[a-z_0-9]+|dirent|dlfcn|fcntl|poll|pthread|sched|signal|unistd)\.h")
INTRINSICS_HEADER = re.compile(r"(cpuid|[a-z]+intrin)\.h")

# What the modules beside the rooms import of the package; a room's own list is MAY_IMPORT in its `__init__.py`.
MODULES_MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "paths": (),
    "_core": (),
    "_native": (),
    "ops": ("_core", "_native"),
    "plugins": (),
    "part_list": ("plugins",),
    "doctor": ("config", "data", "frame", "generation", "memory", "models", "ops", "text"),
    "__init__": ("_native", "config", "errors", "frame", "generation", "memory", "models", "ops", "retrieval", "text"),
    "__main__": ("cli",),
}


def cpp_files(*folders: str) -> list[Path]:
    suffixes = {".h", ".cc", ".hip", ".cu"}
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes)


def public(header: str) -> Path:
    """The file of a public header of the core, "everlong/<room>/<name>.h"."""
    return CPP / header.split("/")[1] / "include" / header


def includes(path: Path) -> list[tuple[str, str]]:
    """(bracket, header) of every #include of a file."""
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def forbidden_includes(
    path: Path, layers: set[str], libraries: set[str], folders: frozenset[Path] = frozenset()
) -> Iterator[str]:
    """What a file includes that it may not; private headers stand beside it or in `folders`."""
    for bracket, header in includes(path):
        first = header.split("/")[0]
        if bracket == '"' and first == "everlong":
            room = header.split("/")[1]
            allowed = room in layers and public(header).is_file()
        elif bracket == '"':
            target = (path.parent / header).resolve()
            allowed = target.is_file() and target.parent in {path.parent, *folders}
        else:
            kinds = (STANDARD_HEADER, POSIX_HEADER, INTRINSICS_HEADER)
            allowed = first in libraries or any(kind.fullmatch(header) for kind in kinds)
        if not allowed:
            yield f"{path.relative_to(REPOSITORY)}: {header}"


@pytest.mark.parametrize("layer", CPP_BELOW)
def test_core_layer_includes_only_what_is_below(layer: str) -> None:
    files = cpp_files(f"cpp/{layer}")
    assert {".h", ".cc"} <= {path.suffix for path in files}
    allowed = CPP_BELOW[layer] | {layer}
    for path in files:
        assert not list(forbidden_includes(path, allowed, CPP_LIBRARIES[layer]))


def test_one_file_includes_hnswlib() -> None:
    """Its headers define what is not inline: two files that include them do not link."""
    users = [path.name for path in cpp_files("cpp") if any("hnswlib" in header for _, header in includes(path))]
    assert users == ["hnsw_index.cc"]


@pytest.mark.parametrize("layer", CPP_BELOW)
def test_tests_of_a_layer_include_only_it_and_what_is_below(layer: str) -> None:
    sources = [path for path in cpp_files("tests/cpp") if path.name.startswith(f"{layer}_")]
    assert sources
    # What a thread of a kernel does is compiled for the host too, and compared with kv and index.
    folders = {CPP / layer} | ({REPOSITORY / "hip"} if layer in ("kv", "index") else set())
    for path in sources:
        layers = CPP_BELOW[layer] | {layer}
        libraries = {"gtest", "gmock"}.union(*(CPP_LIBRARIES[included] for included in layers))
        assert not list(forbidden_includes(path, layers, libraries, frozenset(folders)))


@pytest.mark.parametrize("module", BINDINGS_BELOW)
def test_bindings_know_either_torch_or_python(module: str) -> None:
    sources = [path for path in cpp_files("cpp/bindings") if path.name.startswith(f"{module}_")]
    assert sources
    for path in sources:
        folders = frozenset({REPOSITORY / "hip"} if path.name.startswith(GPU_BINDINGS) else ())
        assert not list(forbidden_includes(path, BINDINGS_BELOW[module], BINDINGS_LIBRARIES[module], folders))


def test_every_cpp_file_belongs_to_a_layer() -> None:
    for path in cpp_files("cpp"):
        room, *rest = path.relative_to(CPP).parts
        assert room in {*CPP_BELOW, "bindings"}, path
        assert len(rest) == 1 or (rest[:3] == ["include", "everlong", room] and len(rest) == 4), path
    for path in cpp_files("tests/cpp"):
        assert path.name.split("_")[0] in CPP_BELOW, path
    for path in cpp_files("cpp/bindings"):
        assert path.name.split("_")[0] in BINDINGS_BELOW, path


def test_kernels_share_only_the_element_arithmetic() -> None:
    files = cpp_files("hip")
    assert files
    for path in files:
        for bracket, header in includes(path):
            if bracket == '"':
                assert header in HIP_BELOW or (path.parent / header).is_file(), f"{path}: {header}"
            else:
                assert not header.startswith(("torch", "ATen", "c10", "pybind11", "Python.h")), f"{path}: {header}"
    for header in HIP_BELOW:
        for _, included in includes(public(header)):
            assert not included.startswith("everlong/") or included in HIP_BELOW, f"{header}: {included}"


def test_state_machine_reaches_no_tensor() -> None:
    """The Memory OS sees ids and counts: nothing that its headers include comes from kv, store or index."""
    os_headers = (
        *("event.h", "kept_config.h", "memory_os.h", "offer.h", "recall_policy.h", "residency.h", "segmenter.h"),
        *("zone.h", "zones.h"),
    )
    reached = {f"everlong/os/{header}" for header in os_headers}
    todo = sorted(reached)
    while todo:
        path = public(todo.pop())
        new = {header for bracket, header in includes(path) if bracket == '"'} - reached
        reached |= new
        todo += sorted(new)
    assert reached >= {"everlong/base/page_ref.h", "everlong/base/token_span.h"}
    above = {header for header in reached if not header.startswith("everlong/base/")}
    assert above == {f"everlong/os/{header}" for header in os_headers}


def rooms() -> list[str]:
    """The packages of the package: folders that hold Python."""
    return sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")})


def module_text(room: str) -> str:
    """What says what a room is; of a module, its own text."""
    files = (PACKAGE / room / "__init__.py", PACKAGE / f"{room}.py", PACKAGE / f"{room}.pyi")
    return next(file for file in files if file.is_file()).read_text()


def may_import_of(room: str) -> tuple[str, ...]:
    """The MAY_IMPORT of a room's `__init__.py`: one typed constant, a tuple of names."""
    found = [
        node
        for node in ast.parse(module_text(room)).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "MAY_IMPORT"
    ]
    assert len(found) == 1, (
        f"everlong.{room} says not, or more than once, what it may import: MAY_IMPORT: Final = (...)"
    )
    (node,) = found
    assert ast.unparse(node.annotation) == "Final"
    assert node.value is not None
    names = ast.literal_eval(node.value)
    assert isinstance(names, tuple)
    assert all(isinstance(name, str) for name in names)
    assert list(names) == sorted(set(names)), f"MAY_IMPORT of everlong.{room} is not in order, or says something twice"
    return names


def may_import() -> dict[str, tuple[str, ...]]:
    return {room: may_import_of(room) for room in rooms()} | MODULES_MAY_IMPORT


def room_of_module(name: str) -> str:
    """`ops` for `everlong.ops`."""
    return (name.split(".")[1:] or ["__init__"])[0]


def room_of(path: Path) -> str:
    return room_of_module(".".join(("everlong", *path.relative_to(PACKAGE).with_suffix("").parts)))


def imported_rooms(path: Path) -> Iterator[str]:
    """What a file imports of the package, at any depth, for type checking too: `ops` for `everlong.ops`.

    A name that the package's face gives stands for itself, and is no room: nothing below the face imports it.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "everlong":
                    yield room_of_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "everlong":
                yield from (alias.name for alias in node.names)
            elif node.module is not None and node.module.startswith("everlong."):
                yield room_of_module(node.module)


PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_file_imports_only_what_its_room_may(path: Path) -> None:
    own = room_of(path)
    for imported in imported_rooms(path):
        assert imported == own or imported in may_import()[own], f"everlong.{own} imports everlong.{imported}"


def test_every_python_module_is_in_a_room_or_has_its_row() -> None:
    beside = {path.stem for pattern in ("*.py", "*.pyi") for path in PACKAGE.glob(pattern)}
    assert beside == set(MODULES_MAY_IMPORT)
    assert not beside & set(rooms())
    assert len(rooms()) <= 20


@pytest.mark.parametrize("room", rooms())
def test_a_room_has_at_most_5000_lines(room: str) -> None:
    assert sum(len(path.read_text().splitlines()) for path in (PACKAGE / room).rglob("*.py")) <= 5_000


def test_rooms_stand_on_each_other_without_a_circle() -> None:
    """An import upward would make one."""
    lists = may_import()
    for room, names in lists.items():
        assert set(names) <= set(lists), f"everlong.{room} may import what is not there"
    TopologicalSorter(lists).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", may_import())
def test_no_room_may_import_what_it_does_not(room: str) -> None:
    imported = {name for path in PYTHON_FILES if room_of(path) == room for name in imported_rooms(path)}
    assert set(may_import()[room]) == imported - {room}


def test_the_table_of_rooms_says_what_the_tree_says() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    table = text.split("| room | what lives there | imports |\n|---|---|---|\n")[1].split("\n\n")[0]
    listed: dict[str, tuple[str, ...]] = {}
    for row in table.splitlines():
        name, what, imports = (cell.strip() for cell in row.strip("|").split("|"))
        room = name.strip("`").removesuffix("/")
        listed[room] = tuple(re.findall(r"`(\w+)`", imports))
        assert set(listed[room]) < set(listed), f"{room} stands below what it imports"
        if room in rooms():
            assert name == f"`{room}/`"
            says = ast.get_docstring(ast.parse(module_text(room)))
            assert says is not None
            assert what == says.splitlines()[0].removesuffix(".")
    assert listed == may_import()


TEST_FILES = sorted((TESTS / "python").rglob("*.py"))


def test_no_test_file_imports_another() -> None:
    """What tests share is in `support`, which imports no test either. Text of scripts that tests start counts too."""
    files = {path.stem for path in TEST_FILES}
    assert len(files) == len(TEST_FILES), "pytest imports test files by their names, so two may not have the same"
    shared = sorted((TESTS / "support").rglob("*.py"))
    assert shared
    for path in (*TEST_FILES, *shared):
        named = re.findall(r"^\s*(?:from|import)\s+(\w+)", path.read_text(), re.MULTILINE)
        assert not files & set(named), f"{path.relative_to(TESTS)} imports {files & set(named)}"


def test_tests_are_in_folders_of_rooms() -> None:
    beside = {"core", "docs", "gpu", "ops", "package"}
    folders = {path.relative_to(TESTS / "python").parts[0] for path in TEST_FILES}
    assert folders == {"conftest.py"} | beside | set(rooms())
    parts = {
        path.relative_to(TESTS / "python" / "parts").parts[0] for path in (TESTS / "python" / "parts").rglob("*.py")
    }
    assert {name for name in parts if not name.endswith(".py")} == {
        path.parent.name for path in (PACKAGE / "parts").glob("*/__init__.py")
    }
