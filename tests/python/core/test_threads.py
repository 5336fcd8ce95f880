"""Every object of the core is used by eight threads at once, across forks of the process, and as the process ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import everlong._core as _core
from support.every_call import CALLS
from support.every_object import CLASSES, OS, ZONES, Objects

THREADS = 8
TESTS = Path(__file__).parents[2]


def use_at_once(objects: Objects, rounds: int) -> None:
    """Let every thread make every call so many times, in an order of its own."""
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        rng = np.random.default_rng(thread)
        calls = list(CALLS.values())
        try:
            start.wait()
            for _ in range(rounds):
                rng.shuffle(calls)
                for call in calls:
                    objects.look(call(objects, rng, thread))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("rounds", [pytest.param(3), pytest.param(40, marks=pytest.mark.slow)])
def test_every_object_takes_eight_threads_at_once(rounds: int, tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        use_at_once(objects, rounds)
    finally:
        sys.setswitchinterval(interval)
    objects.check(THREADS * rounds)
    assert set(CLASSES) - {found.__name__ for found in objects.seen} == set()


def ran(script: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# Threads that use every object, in processes of their own: what is wrong there would end the process of the tests.
_USED = """
import contextlib, os, sys, threading, time
from pathlib import Path
import numpy as np
from everlong.errors import ClosedError
from support.every_call import CALLS, OF_A_PROCESS
from support.every_object import Objects

objects = Objects(Path(sys.argv[1]))
begun = threading.Barrier(9)

def work(thread, objects):
    rng = np.random.default_rng(thread)
    calls = list(CALLS.values())
    begun.wait()
    with contextlib.suppress(ClosedError):  # once the memory is closed
        while True:
            rng.shuffle(calls)
            for call in calls:
                objects.look(call(objects, rng, thread))

for thread in range(8):
    threading.Thread(target=work, args=(thread, objects), daemon=True).start()
begun.wait()
time.sleep(0.2)
"""

_FORKS = (
    _USED
    + """
for number in range(int(sys.argv[2])):
    time.sleep(0.01 * number)
    child = os.fork()
    if child == 0:
        import faulthandler
        faulthandler.dump_traceback_later(60, exit=True)
        for name, call in CALLS.items():
            try:
                call(objects, np.random.default_rng(9), 9)
            except ClosedError as error:
                assert "fork" in str(error)
                assert name in OF_A_PROCESS, name
            else:
                assert name not in OF_A_PROCESS, name
        objects.memory.close()
        if number % 2:
            sys.exit()  # as any script ends
        vars(objects).clear()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, (number, status)
os._exit(0)
"""
)


@pytest.mark.parametrize("forks", [pytest.param(2), pytest.param(20, marks=pytest.mark.slow)])
def test_a_fork_beside_threads_gets_a_typed_error(forks: int, tmp_path: Path) -> None:
    ran(_FORKS, tmp_path, forks)


ENDS = ["sys.exit()", "del objects", "objects.memory.close()"]


@pytest.mark.parametrize("how", ["", *(pytest.param(how, marks=pytest.mark.slow) for how in ENDS)])
def test_a_process_ends_while_threads_use_its_objects(how: str, tmp_path: Path) -> None:
    ran(_USED + how, tmp_path)


def decided(tokens: int = 400) -> _core.MemoryOs:
    """Return a Memory OS that has decided much, and waits for no answer."""
    made = _core.MemoryOs(_core.MemoryOsConfig(**OS, **ZONES, block_tokens=24, least_tokens=8, topic_threshold=0.75))
    while made.stream_end < tokens:
        observe(made)
    return made


def observe(of: _core.MemoryOs) -> None:
    for action in of.observe(min(8, of.room()), "read", [(4, "sentence")]):
        if isinstance(action, _core.Trim):
            of.choose([])


def test_a_trace_is_of_one_moment() -> None:
    """The collector may run, and with it other threads, whenever a dict is made for the answer."""
    of = decided()
    moments = [of.trace()]

    def other_thread(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            observe(of)
            moments.append(of.trace())

    threshold = gc.get_threshold()
    gc.callbacks.append(other_thread)
    gc.set_threshold(1)
    try:
        told = of.trace()
    finally:
        gc.callbacks.remove(other_thread)
        gc.set_threshold(*threshold)
    assert len(moments) > 1
    assert told in moments


def test_a_memory_os_is_asked_once_its_arguments_are_read() -> None:
    """Reading an argument may run other threads. The one here leaves a Trim open, and then nothing may be decided."""
    of = decided()

    class Number:
        def __index__(self) -> int:
            while not any(isinstance(action, _core.Trim) for action in of.observe(min(8, of.room()), "read")):
                pass
            return 0

    with pytest.raises(ValueError, match="choose"):
        of.resume(0, [], cooldown_until=Number())
