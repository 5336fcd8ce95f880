"""What a device did while some work ran, from torch's profiler: kernels and copies by stream, and calls by name."""

from __future__ import annotations

import collections
import dataclasses
import json
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import everlong

# Calls for which the host waits for the device, by the names of both runtimes.
WAITS = tuple(f"{runtime}{what}Synchronize" for runtime in ("cuda", "hip") for what in ("Stream", "Device", "Event"))
READS_A_NUMBER = "aten::_local_scalar_dense"  # of a tensor, as item() and int() do
_PACKAGE = Path(everlong.__file__).parent
_NO_PLACES = (__file__, warnings.__file__)


@dataclasses.dataclass(frozen=True)
class Activity:
    """A kernel or a copy, in microseconds."""

    name: str
    stream: int
    begin: float
    end: float
    bytes: int = 0  # of a copy

    @property
    def pinned(self) -> bool:
        return "Pinned" in self.name


@dataclasses.dataclass(frozen=True)
class Timeline:
    kernels: tuple[Activity, ...]
    copies: tuple[Activity, ...]
    calls: collections.Counter[str]  # of the runtime and of torch's operators, by name

    def copies_of(self, direction: str, least_bytes: int) -> list[Activity]:
        """Return the copies of a direction, "HtoD" or "DtoH", of at least `least_bytes`."""
        return [copy for copy in self.copies if direction in copy.name and copy.bytes >= least_bytes]

    @property
    def pageable(self) -> int:
        """Copies from or to host memory that is not pinned; the host waits for each."""
        return sum("Pageable" in copy.name for copy in self.copies)

    @property
    def compute_stream(self) -> int:
        """The stream on which kernels ran longest."""
        seconds: collections.Counter[int] = collections.Counter()
        for kernel in self.kernels:
            seconds[kernel.stream] += round(kernel.end - kernel.begin) + 1
        return seconds.most_common(1)[0][0]

    def share_hidden(self, copies: Iterable[Activity]) -> float:
        """Return the share of the copies' time in which a kernel ran on another stream."""
        taken = hidden = 0.0
        for copy in copies:
            taken += copy.end - copy.begin
            ran = [
                (max(kernel.begin, copy.begin), min(kernel.end, copy.end))
                for kernel in self.kernels
                if kernel.stream != copy.stream and kernel.begin < copy.end and kernel.end > copy.begin
            ]
            at = copy.begin
            for begin, end in sorted(ran):
                hidden += max(0.0, end - max(begin, at))
                at = max(at, end)
        return hidden / taken if taken > 0 else 0.0


def watched(work: Callable[[], object], device: torch.device) -> Timeline:
    """Return what happens while `work` runs, up to the end of all that it started."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    with profile(activities=activities) as profiled:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return _timeline(event for event in events if event.get("ph") == "X")


def _timeline(events: Iterable[dict[str, Any]]) -> Timeline:
    kernels: list[Activity] = []
    copies: list[Activity] = []
    calls: collections.Counter[str] = collections.Counter()
    for event in events:
        kind, given = event.get("cat"), event.get("args", {})
        if kind in ("cuda_runtime", "cuda_driver", "cpu_op"):
            calls[event["name"]] += 1
        elif kind in ("kernel", "gpu_memcpy"):
            begin, length = float(event["ts"]), float(event["dur"])
            stream, size = int(given.get("stream", -1)), int(given.get("bytes", 0))
            activity = Activity(event["name"], stream, begin, begin + length, size)
            (kernels if kind == "kernel" else copies).append(activity)
    return Timeline(tuple(kernels), tuple(copies), calls)


def places_that_wait(work: Callable[[], object]) -> dict[str, int]:
    """Return the lines of Python in which torch itself makes the host wait for a GPU while `work` runs, with their
    counts.

    What other operators wait for is not among them.
    """
    places: collections.Counter[str] = collections.Counter()

    def heard(message: Warning | str, *_: object, **__: object) -> None:
        if "synchronizing" not in str(message):
            return
        stack = [frame for frame in traceback.extract_stack() if frame.filename not in _NO_PLACES]
        place = next((frame for frame in reversed(stack) if _PACKAGE in Path(frame.filename).parents), stack[-1])
        places[f"{'/'.join(Path(place.filename).parts[-3:])}:{place.lineno} {place.line}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = heard
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return dict(places.most_common())
