#!/usr/bin/env bash
# Compile one kernel source: compile_kernel.sh hip|cuda ARCHITECTURES SOURCE OBJECT [OPTION...]. Architectures with commas
# between: gfx908,gfx90a for hip; sm_80,sm_90 or one of nvcc's words (all-major, native) for cuda. CMake, hip/compile.sh and
# hip/report.py call it; options are further ones of the compiler.
set -euo pipefail
vendor=$1 architectures=$2 source=$3 object=$4
shift 4

root=$(cd "$(dirname "$0")/.." && pwd)
flags=("-DEVERLONG_BUILT_FOR=\"$architectures\"" -std=c++20 -O3 -c "$source" -o "$object" "$@")
for room in base kv index; do flags+=("-I$root/cpp/$room/include"); done
# No contraction: a*b+c must round as on the host (base/element.h).
targets=()
if [[ $vendor == hip ]]; then
  for architecture in ${architectures//,/ }; do targets+=("--offload-arch=$architecture"); done
  export HIP_PLATFORM=amd
  exec hipcc -x hip "${targets[@]}" -fPIC -Wall -Wextra -ffp-contract=off "${flags[@]}"
fi
for architecture in ${architectures//,/ }; do
  if [[ $architecture == sm_* ]]; then
    targets+=("-gencode=arch=compute_${architecture#sm_},code=[$architecture,compute_${architecture#sm_}]")
  else
    targets+=("-arch=$architecture")
  fi
done
exec nvcc -x cu "${targets[@]}" -Xcompiler -fPIC,-Wall,-Wextra --fmad=false "${flags[@]}"
