#!/usr/bin/env bash
# Compile every kernel from its one source for AMD gfx908 (hipcc) and NVIDIA sm_90 (nvcc), and check that the device code
# is in the objects. Needs both compilers and no GPU. Objects: build/kernels, or the folder given as argument.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-build/kernels}
missing=()
command -v hipcc >/dev/null || missing+=("hipcc (Debian: apt-get install hipcc libamdhip64-dev)")
command -v nvcc >/dev/null || missing+=("nvcc (CUDA 12.8 or later; pip install nvidia-cuda-nvcc)")
command -v readelf >/dev/null || missing+=("readelf (Debian: apt-get install binutils)")
if [[ ${#missing[@]} -gt 0 ]]; then
  printf 'hip/compile.sh: the kernels are not compiled, a compiler is missing: %s\n' "${missing[@]}" >&2
  exit 1
fi
mkdir -p "$out"

fail() {
  echo "hip/compile.sh: $1" >&2
  exit 1
}

for source in hip/*.hip; do
  name=$(basename "$source" .hip)
  hip/compile_kernel.sh hip gfx908 "$source" "$out/$name.gfx908.o"
  hip/compile_kernel.sh cuda sm_90 "$source" "$out/$name.sm_90.o"
  # Sources of copies and streams alone hold no device code.
  if grep -q __global__ "$source"; then
    # The offload bundle lists its code objects by triple and architecture.
    grep -q -a 'amdgcn-amd-amdhsa--gfx908' "$out/$name.gfx908.o" || fail "$name.gfx908.o holds no gfx908 code object"
    readelf -SW "$out/$name.sm_90.o" | grep nv_fatbin >/dev/null || fail "$name.sm_90.o holds no CUDA code"
  fi
  echo "$source: gfx908 and sm_90 compiled"
done
