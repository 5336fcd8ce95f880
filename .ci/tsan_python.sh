#!/usr/bin/env bash
# The native core as Python drives it from several threads, built with ThreadSanitizer in a folder of its own.
# Only the extension is loaded, without torch: `tests/support/core_stress.py` uses it. THREADS and ROUNDS say how much.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/tsan-python
cmake -S . -B "$build" -G Ninja --log-level=WARNING -DEVERLONG_PYTHON=ON -DEVERLONG_TESTS=OFF \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1" -DEVERLONG_SANITIZE=thread \
  -DPython_EXECUTABLE="$(command -v python)"
cmake --build "$build" --target _core

# OpenBLAS would start threads of its own, whose work nobody needs here.
export OPENBLAS_NUM_THREADS=1
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 history_size=7 suppressions=$PWD/.ci/tsan_python.supp"
# The interpreter's memory must lie where ThreadSanitizer expects it.
LD_LIBRARY_PATH="$PWD/$build/cpp" LD_PRELOAD="$(g++ -print-file-name=libtsan.so)" setarch --addr-no-randomize python - \
  "$build" "${THREADS:-6}" "${ROUNDS:-12}" <<'PYTHON'
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

build, threads, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])


def without_its_init(name: str, folder: str) -> None:
    """Make a package of a folder, so that importing a module of it does not import torch."""
    package = types.ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package


# An editable install finds `everlong` before any path does.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "_editable_skbc_everlong"]
without_its_init("everlong", "python/everlong")
without_its_init("support", "tests/support")
(file,) = build.rglob("_core*.so")
loader = importlib.machinery.ExtensionFileLoader("everlong._core", str(file))
core = importlib.util.module_from_spec(importlib.util.spec_from_loader("everlong._core", loader, origin=str(file)))
sys.modules["everlong._core"] = sys.modules["everlong"]._core = core
loader.exec_module(core)

from support.core_stress import main  # noqa: E402

main(threads, rounds)
assert "torch" not in sys.modules
print(f"no data race: {threads} threads, {rounds} rounds")
PYTHON
