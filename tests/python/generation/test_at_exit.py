"""What is open when a process ends: it ends cleanly, and the memory is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everlong
from support import TESTS, open_model, random_text

TEXT = random_text(600)
QUESTION = "What did the keeper see?"

# Every script begins with this, and ends while an answer is under way.
_BEGIN = f"""
import gc, os, shutil, sys, threading
sys.path.insert(0, {str(TESTS)!r})
from support import SMALL, byte_tokenizer, open_model, random_text, tiny_model
folder = sys.argv[1]
TEXT, QUESTION = {TEXT!r}, {QUESTION!r}
def read(config=SMALL):
    mm = open_model(folder, config)
    mm.read(TEXT, source="book")
    return mm
def begun(mm, **said):
    pieces = mm.stream(QUESTION, 20, **said)
    next(pieces)
    return pieces
"""
_THREAD = """
mm, begun_there = read(), threading.Event()
def go():
    {work}
threading.Thread(target=go, daemon={daemon}).start()
begun_there.wait()
"""
# A script, its exit code, and whether the question is in the memory afterwards.
ENDS: dict[str, tuple[str, int, bool]] = {
    "held": ("mm = read(); pieces = begun(mm)", 0, True),
    "not begun": ("mm = read(); pieces = mm.stream(QUESTION)", 0, False),
    "quoted, and read again": ("mm = read(SMALL.changed(answer={'quotes': 2})); pieces = begun(mm)", 0, True),
    "not remembered": ("mm = read(); pieces = begun(mm, remember=False)", 0, False),
    "in a cycle": (
        "class Own: pass\nown = Own(); own.me, own.mm = own, read(); own.pieces = begun(own.mm); del own",
        0,
        True,
    ),
    "in a frame that an exception keeps": (
        "def f():\n  pieces = begun(read())\n  raise ValueError\ntry: f()\nexcept ValueError as error: kept = error",
        0,
        True,
    ),
    "sys.exit within": ("for piece in read().stream(QUESTION, 20): sys.exit(7)", 7, True),
    "by a thread that ended": (
        _THREAD.format(work="global held; held = begun(mm); begun_there.set()", daemon=False),
        0,
        True,
    ),
    "by a thread that waits": (
        _THREAD.format(work="held = begun(mm); begun_there.set(); threading.Event().wait()", daemon=True),
        0,
        True,
    ),
    "a thread answers on and on": (
        _THREAD.format(
            work="\n    ".join(["while True:", "  for piece in mm.stream(QUESTION, 20): begun_there.set()"]),
            daemon=True,
        ),
        0,
        True,
    ),
    "with an observer in the background": (
        "mm = read(); mm.frame.observe(lambda *block: None, background=True); pieces = begun(mm)",
        0,
        True,
    ),
    "os._exit": ("mm = read(); pieces = begun(mm); os._exit(3)", 3, False),
}
# A fork of the process leaves what the process has, in each of these ways; then the process goes on.
FORKS = {
    "sys.exit": "sys.exit(0)",
    "closed": "pieces.close(); mm.close(); os._exit(0)",
    "collected": "del pieces, mm; gc.collect(); os._exit(0)",
}


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _BEGIN + script, str(folder)], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_cleanly_with_an_answer_under_way(end: str, tmp_path: Path) -> None:
    script, code, asked = ENDS[end]
    ended = run(script, tmp_path / "m")
    assert (ended.returncode, ended.stderr) == (code, "")
    with open_model(tmp_path / "m") as mm:
        assert "".join(mm.text(block.id) for block in mm.memory.blocks("book")) == TEXT
        roles = {block.role for block in mm.memory.blocks()}
        assert ("asked" in roles) == asked
        assert mm.memory.verify().damage == ()
        assert mm.generate(QUESTION, 3).tokens == 3


@pytest.mark.slow
@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_ends_cleanly_and_takes_nothing(fork: str, tmp_path: Path) -> None:
    left = f"""
mm = read(SMALL.changed(answer={{'quotes': 2}}))
pieces = begun(mm)
child = os.fork()
if child == 0:
    {FORKS[fork]}
assert os.waitpid(child, 0)[1] == 0
assert len(list(pieces)) > 0
mm.close()
"""
    ended = run(left, tmp_path / "m")
    assert (ended.returncode, ended.stderr) == (0, "")
    with everlong.Memory.open(tmp_path / "m") as memory:
        said = sum(block.span[1] - block.span[0] for block in memory.blocks() if block.role == "said")
        assert said == 20
        assert memory.verify().damage == ()


@pytest.mark.slow
def test_an_uncaught_exception_is_all_that_is_printed(tmp_path: Path) -> None:
    ended = run("mm = read(); pieces = begun(mm); raise RuntimeError('mine')", tmp_path / "m")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "RuntimeError: mine"
    assert ended.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_folder_that_is_gone_by_then_is_told_once(tmp_path: Path) -> None:
    ended = run("mm = read(); pieces = begun(mm); shutil.rmtree(folder)", tmp_path / "m")
    assert ended.returncode == 0
    assert ended.stderr.count("was removed or replaced") == 1
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_a_reading_in_a_daemon_thread_stops_between_two_steps(tmp_path: Path) -> None:
    """What was read by then is in the memory, and the reading goes on from there."""
    long = _THREAD.format(
        work="mm.read(random_text(100_000, seed=5), source='long', progress=lambda *told: begun_there.set())",
        daemon=True,
    )
    ended = run(long, tmp_path / "m")
    assert (ended.returncode, ended.stderr) == (0, "")
    with open_model(tmp_path / "m") as mm:
        kept = sum(block.span[1] - block.span[0] for block in mm.memory.blocks("long"))
        assert 0 < kept < 100_000
        assert mm.memory.verify().damage == ()
