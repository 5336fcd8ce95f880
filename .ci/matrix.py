"""The core of the suite on one wheel, against the releases of torch and transformers that pyproject.toml allows.

The wheel is built once, against the lowest torch; then it runs with the lowest of both, with what lies between, and
with the newest of both: the operators stand on torch's stable ABI. `matrix.py lowest` runs one alone.

Everything is under build/matrix, some 5 GB each where pip has torch for GPUs only; PIP_FIND_LINKS may name an index of
others. Environments are used again, brought up to date; FRESH=1 makes them anew. MATRIX_PYTHON names the Python's
version, 3.12 by default, and WHEEL a wheel to run instead of building one. Exits non-zero when something failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from pythons import THIS, python_of

ROOT = Path(__file__).parent.parent
VARIED = ("torch", "transformers")
BETWEEN = ["torch==2.13.*", "transformers==5.24.*"]
# Everything that touches what the two change between releases: caches, attention, rotations, loading, operators.
SUITE = (
    "core/test_core.py",
    "frame/test_exactness.py",
    "frame/test_forward.py",
    "frame/test_splice.py",
    "frame/test_text_alone.py",
    "generation/test_custom_generate.py",
    "generation/test_memory_model.py",
    "generation/test_reading.py",
    "generation/test_shared_model.py",
    "models/test_attach.py",
    "models/test_fingerprint.py",
    "models/test_loading.py",
    "models/test_packing.py",
    "models/test_placement.py",
    "models/test_rope.py",
    "models/test_weights.py",
    "ops/test_kv_ops.py",
    "package/test_import.py",
)
TOOLS = ("pytest", "pytest-xdist", "hypothesis")
NAMES = ("lowest", "middle", "newest")


def name_of(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].strip()


def lowest(requirement: str) -> str:
    """torch>=2.11,<2.16 as torch==2.11.0."""
    name, _, bound = requirement.partition(",")[0].partition(">=")
    return f"{name}=={bound}" + ".0" * (2 - bound.count("."))


def newest(requirement: str) -> str:
    """torch>=2.11,<2.16 as torch==2.15.*: what is allowed has run."""
    name, (major, minor) = name_of(requirement), requirement.rpartition("<")[2].split(".")
    return f"{name}=={major}.{int(minor) - 1}.*"


def python_and_version() -> tuple[str, str]:
    """The Python that everything runs with, and its version, "3.12"."""
    version = os.environ.get("MATRIX_PYTHON", "3.12")
    if (python := python_of(version)) is not None:
        return python, version
    print(f"==== there is no Python {version}, which MATRIX_PYTHON names: it is {sys.executable}", flush=True)
    return sys.executable, THIS


class Environment:
    """One pair of releases; made, or brought up to date."""

    def __init__(self, python: str, folder: Path, packages: list[str]) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.settings = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        if os.environ.get("FRESH"):
            shutil.rmtree(folder, ignore_errors=True)
        if not Path(self.python).exists():
            subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        self.install("-U", *packages)

    def pip(self, *arguments: str) -> None:
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, env=self.settings)

    def install(self, *arguments: str) -> None:
        self.pip("install", "-q", *arguments)

    def wheel(self, folder: Path) -> Path:
        """Built against the torch that is here, for the CPU."""
        made = folder / "wheel"
        shutil.rmtree(made, ignore_errors=True)
        how = [
            "--no-deps",
            "--no-build-isolation",
            f"-Cbuild-dir={folder / 'native'}",
            "-Ccmake.define.EVERLONG_CUDA=OFF",
        ]
        self.pip("wheel", "-q", *how, "-w", str(made), str(ROOT))
        (wheel,) = made.glob("*.whl")
        return wheel

    def releases(self) -> str:
        modules = "import platform, torch, transformers"
        found = f"{modules}; print(platform.python_version(), torch.__version__, transformers.__version__)"
        answer = subprocess.run([self.python, "-c", found], check=True, capture_output=True, text=True)
        return "Python {}, torch {}, transformers {}".format(*answer.stdout.split())

    def passes(self, wheel: Path) -> bool:
        self.install("--no-deps", "--force-reinstall", str(wheel))
        files = [f"tests/python/{file}" for file in SUITE]
        jobs = ["-n", os.environ.get("JOBS", str(os.cpu_count())), "--dist", "loadfile"]
        command = [self.python, "-m", "pytest", *jobs, *files]
        return subprocess.run(command, cwd=ROOT, env={**self.settings, "CI": "1"}, check=False).returncode == 0


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    varied = [requirement for requirement in project["dependencies"] if name_of(requirement) in VARIED]
    fixed = [requirement for requirement in project["dependencies"] if name_of(requirement) not in VARIED]
    extras = project["optional-dependencies"]
    tools = [requirement for requirement in extras["dev"] if name_of(requirement) in TOOLS]
    needed = [*fixed, *extras["smollm2"], *tools]
    builds = settings["build-system"]["requires"]
    packages = {
        "lowest": [*map(lowest, varied), *needed, *builds],
        "middle": [*BETWEEN, *needed],
        "newest": [*map(newest, varied), *needed],
    }
    asked = sys.argv[1:] or list(NAMES)
    if unknown := set(asked) - set(NAMES):
        raise SystemExit(f"no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")

    python, version = python_and_version()
    folder = ROOT / "build" / "matrix" / version
    wheel = Path(os.environ["WHEEL"]) if "WHEEL" in os.environ else None
    lowest_one = None
    if wheel is None:
        lowest_one = Environment(python, folder / "lowest", packages["lowest"])
        wheel = lowest_one.wheel(folder)
        print(f"==== {wheel.name}, built with {lowest_one.releases()}", flush=True)
    outcome = []
    for name in asked:
        here = lowest_one if name == "lowest" and lowest_one else Environment(python, folder / name, packages[name])
        releases = here.releases()
        print(f"==== {name}: {releases}", flush=True)
        outcome.append((here.passes(wheel), f"{name}: {releases}"))
    for passed, what in outcome:
        print(f"==== {'passed' if passed else 'FAILED'}, {what}", flush=True)
    return 0 if all(passed for passed, _ in outcome) else 1


if __name__ == "__main__":
    sys.exit(main())
