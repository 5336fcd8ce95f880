"""The child that parses runs Python's code, everlong's, and that of installed packages: none of a folder to read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everlong.files import parsing, start
from everlong.files.document import UnreadableFileError
from everlong.files.parsing import Limits, parse

# What the child imports, or what a Python asks for when it starts.
MODULES = (
    *("resource", "signal", "types", "mimetypes", "json", "math", "dataclasses", "zipfile", "email", "codecs", "csv"),
    *("selectolax", "lxml", "pypdf", "everlong", "sitecustomize", "usercustomize", "encodings", "site"),
)


def lure(folder: Path) -> Path:
    """Fill a folder with modules that leave a proof of having run, in each process that is not this one."""
    proof = folder.parent / "proof"
    code = f"import os\nif os.getpid() != {os.getpid()}: open({os.fspath(proof)!r}, 'a').write(__name__ + chr(10))\n"
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
        (packages / f"{name}.py").write_text(code)
    for where in (folder, packages):
        (where / "lure.pth").write_text(f"import os; open({os.fspath(proof)!r}, 'a').write('pth')\n")
    return proof


@pytest.mark.parametrize("entry", ["", ".", "folder"])
def test_no_module_of_the_folder_or_the_environment_runs(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "downloads"
    proof = lure(folder)
    (folder / "report.html").write_text("<title>Report</title><h1>Rivers</h1><p>the words")
    told = os.fspath(folder) if entry == "folder" else entry
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [told, *sys.path])
    for name in ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONHOME", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, told or ".")
    monkeypatch.setenv("PYTHONSTARTUP", os.fspath(folder / "site.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    monkeypatch.setattr("site.USER_SITE", None)
    monkeypatch.setattr("site.USER_BASE", None)
    (document,) = parse("report.html").documents
    assert [section.place for section in document.sections] == ["", "Rivers"]
    assert not proof.exists(), proof.read_text()


def test_shared_libraries_come_from_no_relative_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty entry is the working folder, too."""
    monkeypatch.setenv("LD_LIBRARY_PATH", ":.:/opt/python/lib:lib:")
    monkeypatch.setenv("LD_PRELOAD", "/no such library")
    monkeypatch.setenv("TZ", "UTC")
    assert parsing._environment() == {"LD_LIBRARY_PATH": "/opt/python/lib", "TZ": "UTC"}


def test_limits_stand_before_anything_is_imported(tmp_path: Path) -> None:
    """Each import behind them is looked at."""
    script = (
        "import resource, sys\n"
        "class Looking:\n"
        "    def find_spec(self, name, *more):\n"
        "        limits = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)\n"
        "        print(name, *(resource.getrlimit(one)[0] for one in limits), file=sys.stderr)\n"
        "sys.meta_path.insert(0, Looking())\n"
        f"code = compile(open({start.__file__!r}).read(), 'start.py', 'exec')\n"
        "sys.argv[1:] = sys.argv[2:]\n"
        "exec(code, {'__name__': '__main__'})\n"
    )
    words = ["-", "7", str(1 << 29), "1000000", "html", os.fspath(parsing._PACKAGE), *parsing._libraries()]
    command = [sys.executable, "-I", "-S", "-c", script, *words]
    (tmp_path / "page").write_text("<h1>Rivers</h1>")
    with (tmp_path / "page").open() as page:
        done = subprocess.run(command, stdin=page, capture_output=True, check=True, cwd=tmp_path)
    looked = [line.split() for line in done.stderr.decode().splitlines()]
    assert b"Rivers" in done.stdout
    assert {name for name, *_ in looked} > {"everlong.files.child", "json", "selectolax.lexbor"}
    assert [name for name, *limits in looked if limits != [str(1 << 29), "7", "0"]] == []  # `resource` was first


def test_a_limit_that_is_lower_already_stays() -> None:
    """And one that no one may raise does not end the child."""
    script = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from everlong.files.start import limited\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (50, 50))\n"
        "limited(100, 1 << 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU)[1], resource.getrlimit(resource.RLIMIT_AS)[1])\n"
    )
    command = [sys.executable, "-c", script, os.fspath(parsing._PACKAGE.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["50", str(1 << 40)]


def test_nothing_is_left_open_and_no_child_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the child is killed, tells nonsense or cannot be started."""
    page = tmp_path / "page.html"
    page.write_text("<p>words")

    def held() -> tuple[int, str]:
        children = "".join(sorted(one.read_text() for one in Path("/proc/self/task").glob("*/children")))
        return len(os.listdir("/proc/self/fd")), children

    before = held()
    parse(page)
    for limits in (Limits(seconds=0.001), Limits(ram=1 << 20), Limits(text_bytes=1), Limits(file_bytes=1)):
        with pytest.raises(UnreadableFileError):
            parse(page, limits)
    monkeypatch.setattr(sys, "executable", "/no such program")
    with pytest.raises(FileNotFoundError):
        parse(page)
    assert held() == before
