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
# As many at a time as there are processors, the slow ones first.
for source in hip/archive_kernels.hip hip/restore_kernels.hip $(ls hip/*.hip | grep -vE 'archive|restore'); do
  name=$(basename "$source" .hip)
  for architecture in "${cuda_architectures[@]}"; do
    echo cuda "$architecture" "$source" "$out/$name.$architecture.o" --compress-mode=none
  done
  echo hip gfx908 "$source" "$out/$name.gfx908.o"
done | xargs -P "$(nproc)" -L 1 hip/compile_kernel.sh
for source in hip/*.hip; do
  name=$(basename "$source" .hip)
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

# The PTX lies in the objects as it is (--compress-mode): no second compilation is needed to look at it.
instructions() { grep -a -c "$3" "$out/$1.$2.o" || true; }  # KERNELS ARCHITECTURE PATTERN

# FP8 by the hardware, in archives and in searches: from sm_89 on, an RTX 4090 among them, and nowhere else.
for name in archive_kernels heads_kernels; do
  [[ $(instructions $name sm_89 'cvt.*e4m3x2') -gt 0 ]] || fail "$name converts no FP8 by the hardware of sm_89"
  [[ $(instructions $name sm_86 'cvt.*e4m3x2') -eq 0 ]] || fail "$name uses FP8 instructions that sm_86 has not"
done
echo "FP8 is converted by the hardware on sm_89"

# Dot products of four bytes in one instruction, everywhere.
for architecture in "${cuda_architectures[@]}"; do
  [[ $(instructions meaning_kernels "$architecture" dp4a) -gt 0 ]] || fail "meaning_kernels has no dot products of bytes on $architecture"
done
hip/compile_kernel.sh hip gfx908 hip/meaning_kernels.hip "$out/meaning_kernels.gfx908.s" --offload-device-only -S 2>/dev/null
grep -q v_dot4 "$out/meaning_kernels.gfx908.s" || fail "meaning_kernels has no dot products of bytes on gfx908"
echo "Bytes are multiplied four at a time"
