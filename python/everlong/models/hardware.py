"""The machine that a model computes on."""

from __future__ import annotations

import os
import pathlib
import platform
import sys

CPUINFO = pathlib.Path("/proc/cpuinfo")
# Features of a processor that decide which kernels run, everlong's and torch's in bf16.
DECISIVE = ("avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16")


def processor(cpuinfo: pathlib.Path = CPUINFO) -> str:
    """Return the processor as the system names it, and its features among `DECISIVE`: "AMD EPYC (avx2 f16c)"."""
    cpu = _first_core(cpuinfo)
    name = cpu.get("model name") or platform.processor() or platform.machine()
    present = set(cpu.get("flags", "").split())
    flags = " ".join(flag for flag in DECISIVE if flag in present)
    return f"{name} ({flags})" if flags else name


def has_bf16_instructions(cpuinfo: pathlib.Path = CPUINFO) -> bool:
    """Return whether the processor has instructions for products of bf16: then these are about twice as fast."""
    return any(feature in processor(cpuinfo) for feature in ("avx512_bf16", "amx_bf16"))


def use_allowed_cpus() -> None:
    """Let torch have no more threads than this process may use CPUs at once, unless OMP_NUM_THREADS says how many.

    A container may have the time of two CPUs on a machine of many. Threads beyond these wait for each other.
    """
    import torch  # `everlong --version` names the processor, and waits for no import of torch

    import everlong._core as _core

    cpus = min(len(os.sched_getaffinity(0)), _core.group_cpus() or sys.maxsize)
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not (named.isdecimal() and int(named) > 0) and torch.get_num_threads() > cpus:
        torch.set_num_threads(cpus)


def _first_core(cpuinfo: pathlib.Path) -> dict[str, str]:
    """Return what Linux says of it; empty elsewhere."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return {}
    first = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in first}
