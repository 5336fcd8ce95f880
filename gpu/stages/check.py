"""The result of a stage, case by case, in a file that is complete after each case."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_BOUNDS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that must hold; `error` is the traceback where it does not."""

    name: str
    seconds: float
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """Something that was measured; `wanted` is a bound such as ">= 0.85", and `met` whether it holds."""

    name: str
    value: float
    unit: str = ""
    wanted: str | None = None
    met: bool | None = None
    note: str = ""


class Check:
    """The cases and figures of one stage on one device. Not thread-safe.

    A case that fails does not end the stage. `small` asks for sizes that two CPU cores do in some seconds.
    """

    def __init__(self, stage: str, file: Path, device: torch.device, *, small: bool, seconds: float) -> None:
        self.device = device
        self.small = small
        self._stage = stage
        self._file = file
        self._began = time.perf_counter()
        self._seconds = seconds
        self._cases: list[Case] = []
        self._figures: list[Figure] = []
        self._told: dict[str, Any] = {}
        self._finished = False
        self._write()

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds until the stage is cut."""
        return self._seconds - (time.perf_counter() - self._began)

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run something that must hold: what is raised inside is written down, and goes no further."""
        started = time.perf_counter()
        error = None
        try:
            yield
        except Exception:
            error = traceback.format_exc()
            print(f"-- {name}\n{error}", flush=True)
        self._cases.append(Case(name, round(time.perf_counter() - started, 3), error))
        self._write()

    def figure(self, name: str, value: float, unit: str = "", *, wanted: str | None = None, note: str = "") -> None:
        """Note a figure. `wanted` is a bound: ">= 0.85", "<= 24", "== 0". A missed bound is reported, and fails
        nothing.
        """
        met = None
        if wanted is not None:
            sign, _, bound = wanted.partition(" ")
            met = bool(_BOUNDS[sign](value, float(bound)))
        self._figures.append(Figure(name, round(float(value), 6), unit, wanted, met, note))
        print(f"-- {self._figures[-1]}", flush=True)
        self._write()

    def tell(self, name: str, value: Any) -> None:
        """Note plain values beside cases and figures: a table, or a size that was cut for lack of time."""
        self._told[name] = value
        self._write()

    def finish(self) -> bool:
        """Finish the file; return whether every case held."""
        self._finished = True
        self._write()
        return all(case.error is None for case in self._cases)

    def _write(self) -> None:
        result = {
            "stage": self._stage,
            "size": "small" if self.small else "full",
            "machine": _machine(self.device),
            "seconds": round(time.perf_counter() - self._began, 1),
            "finished": self._finished,
            "cases": [dataclasses.asdict(case) for case in self._cases],
            "figures": [dataclasses.asdict(figure) for figure in self._figures],
            "told": self._told,
        }
        written = self._file.with_suffix(".part")
        written.write_text(json.dumps(result, indent=1) + "\n")
        os.replace(written, self._file)


def _machine(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "device": gpu.name if gpu else "CPU",
        "device_bytes": gpu.total_memory if gpu else 0,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
