#!/usr/bin/env bash
# The operators' boundary tests against libraries built with AddressSanitizer and UBSan, in a folder of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/asan-python
cmake -S . -B "$build" -G Ninja --log-level=WARNING -DEVERLONG_PYTHON=ON -DEVERLONG_TESTS=OFF \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1" -DEVERLONG_SANITIZE=address,undefined \
  -DPython_EXECUTABLE="$(command -v python)"
cmake --build "$build"
cmake --install "$build" --prefix "$build/package" >/dev/null
cp -r python/everlong "$build/package/"

export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" python - "$build/package" <<'EOF'
import sys

# An editable install finds `everlong` before any path does.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "_editable_skbc_everlong"]
sys.path.insert(0, sys.argv[1])
import everlong  # noqa: E402
import pytest  # noqa: E402

assert everlong.__file__.startswith(__import__("os").path.abspath(sys.argv[1])), everlong.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/python/ops/test_kv_boundary.py"]))
EOF
