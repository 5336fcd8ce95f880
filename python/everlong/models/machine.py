"""The machine that a figure is of."""

from __future__ import annotations

import os
import pathlib
import platform

CPUINFO = pathlib.Path("/proc/cpuinfo")
# Of what a processor says that it can do: all that decides which kernels run, everlong's and torch's in bf16.
DECISIVE = ("avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16")


def processor(cpuinfo: pathlib.Path = CPUINFO) -> str:
    """The processor as the system names it, and which of `DECISIVE` it can do: "AMD EPYC (avx2 f16c)"."""
    cpu = _first_core(cpuinfo)
    name = cpu.get("model name") or platform.processor() or platform.machine()
    present = set(cpu.get("flags", "").split())
    flags = " ".join(flag for flag in DECISIVE if flag in present)
    return f"{name} ({flags})" if flags else name


def is_busy() -> bool:
    """Whether more is at work than half of the processors, by the load of the last minute; False where none is told."""
    try:
        return os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    except (AttributeError, OSError):  # no such figure on this system
        return False


def _first_core(cpuinfo: pathlib.Path) -> dict[str, str]:
    """What Linux says of it; empty elsewhere."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return {}
    first = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in first}
