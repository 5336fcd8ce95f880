"""Exit with 0 where the lab's tests are to run: the lab changed, or something that it imports, at any depth.

lab_changed.py [BASE]     compared with the commit BASE; by default with what origin/main has in common, or with HEAD~1
"""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"everlong": ROOT / "python", "everlong_lab": ROOT / "lab"}
# Beside what is imported: what is compiled, what is installed, what tests share, and benchmarks, which the lab tests.
ALWAYS = (
    *("lab/", "benchmarks/", "cpp/", "hip/", "cmake/", "CMakeLists.txt", "pyproject.toml"),
    *("tests/support/", "tests/fixtures.py"),
    *("python/everlong/parts/", "python/everlong/cli/"),  # loaded by name
)


def file_of(module: str) -> Path | None:
    root = PACKAGES.get(module.partition(".")[0])
    if root is None:
        return None
    place = root / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def imported(file: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        # Importing a module imports its packages.
        every = {part for name in names for part in itertools.accumulate(name.split("."), "{}.{}".format)}
        yield from (found for name in sorted(every) if (found := file_of(name)) is not None)


def reached() -> set[Path]:
    """Every file of everlong that the lab imports, and what those import."""
    todo = sorted((ROOT / "lab").rglob("*.py"))
    found = set(todo)
    while todo:
        for file in imported(todo.pop()):
            if file not in found:
                found.add(file)
                todo.append(file)
    return found


def git(*given: str) -> str:
    return subprocess.run(["git", *given], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    try:
        try:
            base = sys.argv[1] if sys.argv[1:] else git("merge-base", "origin/main", "HEAD")
            if not sys.argv[1:] and base == git("rev-parse", "HEAD"):
                base = "HEAD~1"
        except subprocess.CalledProcessError:
            base = "HEAD~1"
        changed = git("diff", "--name-only", base).splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the lab's tests run: what changed is not known ({error})")
        return 0
    ours = {str(file.relative_to(ROOT)) for file in reached()}
    why = [name for name in changed if name in ours or name.startswith(ALWAYS)]
    print(f"the lab's tests run: {why[0]} and {len(why) - 1} more changed" if why else "the lab's tests need not run")
    return 0 if why else 1


if __name__ == "__main__":
    sys.exit(main())
