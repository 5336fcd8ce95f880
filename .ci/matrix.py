"""The core of the suite against the lowest and the newest torch and transformers that pyproject.toml allows.

Each pair gets an environment and a build of its own under build/matrix, made anew; `matrix.py lowest` runs one alone.
Exits non-zero when a pair failed. Where pip's usual index has torch for GPUs only, PIP_FIND_LINKS names another.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "matrix"
VARIED = ("torch", "transformers")
# Everything that touches what the two change between releases: caches, attention, rotations, loading, operators.
SUITE = (
    "attach",
    "core",
    "eval_models",
    "exactness",
    "fingerprint",
    "forward",
    "import",
    "kv_ops",
    "memory_model",
    "packing",
    "placement",
    "reading",
    "rope",
    "splice",
    "text_alone",
    "weights",
)
TOOLS = ("pytest", "pytest-xdist", "hypothesis")


def name_of(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].strip()


def lowest(requirement: str) -> str:
    """torch>=2.13,<2.14 as torch==2.13.0."""
    name, _, bound = requirement.partition(",")[0].partition(">=")
    return f"{name}=={bound}" + ".0" * (2 - bound.count("."))


def run(name: str, pins: list[str], needed: list[str]) -> bool:
    environment = FOLDER / name
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *pins, *needed], check=True)
    build = f"-Cbuild-dir={environment / 'build'}"
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path}
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", build, str(ROOT)], check=True, env=settings)
    found = "import torch, transformers; print(f'torch {torch.__version__}, transformers {transformers.__version__}')"
    releases = subprocess.run([python, "-c", found], check=True, capture_output=True, text=True).stdout.strip()
    print(f"==== {name}: {releases}", flush=True)
    files = [f"tests/python/test_{part}.py" for part in SUITE]
    jobs = ["-n", os.environ.get("JOBS", str(os.cpu_count())), "--dist", "loadfile"]
    done = subprocess.run([python, "-m", "pytest", *jobs, *files], cwd=ROOT, env={**settings, "CI": "1"}, check=False)
    print(f"==== {name}: {'passed' if done.returncode == 0 else 'FAILED'}, {releases}", flush=True)
    return done.returncode == 0


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    varied = [requirement for requirement in project["dependencies"] if name_of(requirement) in VARIED]
    fixed = [requirement for requirement in project["dependencies"] if name_of(requirement) not in VARIED]
    extras = project["optional-dependencies"]
    tools = [requirement for requirement in extras["dev"] if name_of(requirement) in TOOLS]
    needed = [*settings["build-system"]["requires"], *fixed, *extras["smollm2"], *tools]
    pairs = {"lowest": [lowest(requirement) for requirement in varied], "newest": varied}
    passed = [run(name, pins, needed) for name, pins in pairs.items() if name in (sys.argv[1:] or pairs)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
