"""What the compilers say of the kernels, as the tables of docs/lab/measured/gpu-kernels.md: `make kernel-report`.

Registers, spills, static shared memory and occupancy come from nvcc's `-Xptxas -v` and hipcc's
`-Rpass-analysis=kernel-resource-usage`; instructions are counted in hipcc's assembly for gfx908. Of the variants of a
kernel (types, vector widths, pairings) the largest figure stands. Needs both compilers and no GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK_THREADS = 256  # hip/grid.h
WARP = 32


@dataclass(frozen=True)
class Multiprocessor:
    """What blocks of threads share, by NVIDIA's tables of compute capabilities."""

    warps: int
    shared_bytes: int
    registers: int = 65536

    def occupancy(self, registers: int, shared_bytes: int) -> float:
        """Warps of BLOCK_THREADS' blocks that it holds, of those that it could."""
        warps = BLOCK_THREADS // WARP
        of_warp = -(-registers * WARP // 256) * 256  # they are given out by 256
        blocks = min(
            self.registers // (of_warp * warps), self.shared_bytes // (shared_bytes + 1024), self.warps // warps
        )
        return blocks * warps / self.warps


NVIDIA = {
    "sm_86": Multiprocessor(48, 100 << 10),
    "sm_89": Multiprocessor(48, 100 << 10),
    "sm_90": Multiprocessor(64, 228 << 10),
}
AMD = "gfx908"
AMD_WAVES = 10  # a SIMD's most


@dataclass
class Usage:
    """The largest figures of a kernel's variants on one architecture."""

    registers: int = 0
    spilled: int = 0  # bytes, or registers on AMD
    shared: int = 0
    occupancy: float = 1.0

    def add(self, registers: int, spilled: int, shared: int, occupancy: float) -> None:
        self.registers = max(self.registers, registers)
        self.spilled = max(self.spilled, spilled)
        self.shared = max(self.shared, shared)
        self.occupancy = min(self.occupancy, occupancy)


@dataclass
class Kernel:
    variants: int = 0
    usage: dict[str, Usage] = field(default_factory=lambda: defaultdict(Usage))
    instructions: Counter[str] = field(default_factory=Counter)  # of the longest variant


def compiled(vendor: str, architecture: str, source: Path, out: Path, *options: str) -> str:
    """What the compiler says."""
    command = [str(ROOT / "hip" / "compile_kernel.sh"), vendor, architecture, str(source), str(out), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout + done.stderr


def kernel_name(mangled: str) -> str:
    """`RotateUnits` of the mangled name of one of its variants."""
    name = subprocess.run(["c++filt", mangled], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\(anonymous namespace\)::(\w+)", name)
    assert found is not None, name
    return found[1]


def number(pattern: str, text: str) -> int:
    return sum(int(found) for found in re.findall(pattern, text))


def nvidia_entries(source: Path, architecture: str, out: Path) -> Iterator[tuple[str, str]]:
    """(mangled name, what is said of it) of every kernel."""
    text = compiled("cuda", architecture, source, out, "-Xptxas", "-v")
    for entry in re.split(r"Compiling entry function '", text)[1:]:
        yield entry.split("'")[0], entry


def read_source(source: Path, kernels: dict[str, Kernel], folder: Path) -> None:
    for architecture, processor in NVIDIA.items():
        for mangled, entry in nvidia_entries(source, architecture, folder / "object"):
            registers, shared = number(r"Used (\d+) registers", entry), number(r"(\d+) bytes smem", entry)
            spilled = number(r"(\d+) bytes spill stores", entry)
            usage = kernels[kernel_name(mangled)].usage[architecture]
            usage.add(registers, spilled, shared, processor.occupancy(registers, shared))

    assembly = folder / "assembly.s"
    report = ("--offload-device-only", "-S", "-Rpass-analysis=kernel-resource-usage")
    text = compiled("hip", AMD, source, assembly, *report)
    for entry in text.split("Function Name: ")[1:]:
        kernel = kernels[kernel_name(entry.split()[0])]
        kernel.variants += 1
        spilled = number(r"VGPRs Spill: (\d+)", entry) + number(r"ScratchSize \[bytes/lane\]: (\d+)", entry)
        shared = number(r"LDS Size \[bytes/block\]: (\d+)", entry)
        waves = number(r"Occupancy \[waves/SIMD\]: (\d+)", entry)
        kernel.usage[AMD].add(number(r" VGPRs: (\d+)", entry), spilled, shared, waves / AMD_WAVES)
    for function in re.finditer(r"^(_Z\w+):.*?^\.Lfunc_end", assembly.read_text(), re.MULTILINE | re.DOTALL):
        kernel = kernels[kernel_name(function[1])]
        operations = re.findall(r"^\t([a-z]\w+)", function[0], re.MULTILINE)
        if len(operations) > kernel.instructions.total():
            kernel.instructions = Counter(operations)


def counted(instructions: Counter[str], pattern: str) -> int:
    return sum(count for name, count in instructions.items() if re.match(pattern, name))


def rows(kernels: dict[str, Kernel]) -> Iterator[str]:
    names = [*NVIDIA, AMD]
    yield "| kernel | variants | static shared | " + " | ".join(names) + " |"
    yield "|---|---|---|" + "---|" * len(names)
    for name, kernel in sorted(kernels.items()):
        shared = max(usage.shared for usage in kernel.usage.values())
        cells = [f"`{name}`", str(kernel.variants), f"{shared} B"]
        for architecture in names:
            usage = kernel.usage[architecture]
            cells.append(f"{usage.registers} / {usage.spilled} / {usage.occupancy:.0%}")
        yield "| " + " | ".join(cells) + " |"
    yield ""
    columns = {
        "all": "",
        "vector": "v_",
        "fused multiply-add": "v_(fma|fmac|mac|mad_f)",
        "reciprocal": "v_rcp",
        "global load": "(global|flat|buffer)_load",
        "global store": "(global|flat|buffer)_store",
        "LDS read": "ds_read",
        "LDS write": "ds_write",
        "lane exchange": "ds_bpermute",
        "atomic": r"(\w+_atomic|ds_(max|min))",
    }
    yield "| kernel | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for name, kernel in sorted(kernels.items()):
        counts = [str(counted(kernel.instructions, pattern)) for pattern in columns.values()]
        yield f"| `{name}` | " + " | ".join(counts) + " |"


def main() -> None:
    kernels: dict[str, Kernel] = defaultdict(Kernel)
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((ROOT / "hip").glob("*.hip")):
            if "__global__" in source.read_text():
                read_source(source, kernels, Path(folder))
    print("\n".join(rows(kernels)))


if __name__ == "__main__":
    main()
