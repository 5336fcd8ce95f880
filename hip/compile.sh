#!/usr/bin/env bash
# Compile every kernel from its one source for AMD gfx908 (hipcc) and NVIDIA sm_86, sm_89 and sm_90 (nvcc), and check that
# the device code is in the objects, converts FP8 and multiplies bytes by the hardware where there is such. Needs both compilers and no GPU. Objects: build/kernels, or the folder given as argument.
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

cuda_architectures=(sm_86 sm_89 sm_90)
for source in hip/*.hip; do
  name=$(basename "$source" .hip)
  hip/compile_kernel.sh hip gfx908 "$source" "$out/$name.gfx908.o"
  for architecture in "${cuda_architectures[@]}"; do
    hip/compile_kernel.sh cuda "$architecture" "$source" "$out/$name.$architecture.o"
  done
  # Sources of copies and streams alone hold no device code.
  if grep -q __global__ "$source"; then
    # The offload bundle lists its code objects by triple and architecture.
    grep -q -a 'amdgcn-amd-amdhsa--gfx908' "$out/$name.gfx908.o" || fail "$name.gfx908.o holds no gfx908 code object"
    for architecture in "${cuda_architectures[@]}"; do
      readelf -SW "$out/$name.$architecture.o" | grep nv_fatbin >/dev/null || fail "$name.$architecture.o holds no CUDA code"
    done
  fi
  echo "$source: gfx908, ${cuda_architectures[*]} compiled"
done

# FP8 by the hardware, in archives and in searches: from sm_89 on, an RTX 4090 among them, and nowhere else.
fp8_instructions() {
  hip/compile_kernel.sh cuda "$1" "hip/$2.hip" "$out/$2.$1.ptx" -ptx
  grep -c 'cvt.*e4m3x2' "$out/$2.$1.ptx" || true
}
for name in archive_kernels heads_kernels; do
  [[ $(fp8_instructions sm_89 $name) -gt 0 ]] || fail "$name converts no FP8 by the hardware of sm_89"
  [[ $(fp8_instructions sm_86 $name) -eq 0 ]] || fail "$name uses FP8 instructions that sm_86 has not"
done
echo "FP8 is converted by the hardware on sm_89"

# Dot products of four bytes in one instruction, everywhere.
for architecture in "${cuda_architectures[@]}"; do
  hip/compile_kernel.sh cuda "$architecture" hip/meaning_kernels.hip "$out/meaning_kernels.$architecture.ptx" -ptx
  grep -q dp4a "$out/meaning_kernels.$architecture.ptx" || fail "meaning_kernels has no dot products of bytes on $architecture"
done
hip/compile_kernel.sh hip gfx908 hip/meaning_kernels.hip "$out/meaning_kernels.gfx908.s" --offload-device-only -S 2>/dev/null
grep -q v_dot4 "$out/meaning_kernels.gfx908.s" || fail "meaning_kernels has no dot products of bytes on gfx908"
echo "Bytes are multiplied four at a time"
