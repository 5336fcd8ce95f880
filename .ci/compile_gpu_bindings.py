"""Compile the GPU half of the bindings into a folder, against the headers of this Python's torch whatever that was
built for: compile_gpu_bindings.py FOLDER. They need a GPU toolkit and a torch with a GPU only when they are linked.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
import torch

root = Path(__file__).parent.parent
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
flags = [
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wno-sign-conversion",
    "-Werror",
]
own = [f"-I{root / 'cpp' / 'include'}"]
for_torch = ["-isystem", f"{Path(torch.__file__).parent / 'include'}"]
for_torch += ["-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000"]  # as cpp/bindings/CMakeLists.txt has it
for_python = ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include"), "-DEVERLONG_GPU"]

bindings = root / "cpp" / "bindings"
sources = {path: for_torch for path in bindings.glob("ops_gpu_*.cc")}
users = [path for path in bindings.glob("core_*.cc") if "EVERLONG_GPU" in path.read_text()]
sources |= {path: for_python for path in (*bindings.glob("core_gpu_*.cc"), *users)}
assert len(set(map(str, sources.values()))) == 2, "bindings of both kinds"
for source, needs in sorted(sources.items()):
    subprocess.run(["g++", *flags, *own, *needs, "-c", source, "-o", folder / f"{source.stem}.o"], check=True)
    print(f"{source.relative_to(root)}: compiled")
