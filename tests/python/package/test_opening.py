"""There is one way to open a file of a memory or of a pack: the core's, beneath an opened folder (base/file.h)."""

import ast
import re
from pathlib import Path

import pytest

from support import REPOSITORY

CPP = REPOSITORY / "cpp"
PACKAGE = REPOSITORY / "python" / "everlong"

# Opens, makes, moves, removes or looks at what a path names.
_CALLS = (
    "open|openat|openat2|creat|fopen|freopen|opendir|mkdir|mkdirat|mkfifo|mknod|unlink|unlinkat|rmdir|rename|renameat|"
    "renameat2|link|linkat|symlink|symlinkat|readlink|stat|lstat|fstatat|statx|truncate|chmod|chown|access|mkstemp|"
    "mkdtemp|tmpfile|shm_open|memfd_create|syscall|dlopen"
)
_OF_FILE_SYSTEM = (
    r"absolute|canonical|weakly_canonical|copy\w*|create_\w+|current_path|directory_\w+|exists|equivalent|file_size|"
    r"hard_link_count|is_\w+|last_write_time|permissions|read_symlink|recursive_directory_iterator|relative|proximate|"
    r"remove\w*|rename|resize_file|space|status|symlink_status|temp_directory_path"
)
TOUCHES_THE_DISK = {
    "a call of the system": re.compile(rf"(?<![\w.>:])(?:::)?(?:{_CALLS})\s*\("),
    "a stream": re.compile(r"\bstd::(?:basic_)?(?:i|o)?(?:fstream|filebuf)\b"),
    "a file system's function": re.compile(rf"\bfilesystem::(?:{_OF_FILE_SYSTEM})\b"),
    "a mapped file": re.compile(r"\bmmap\s*\((?![^;]*MAP_ANONYMOUS)"),
    "hnswlib's own files": re.compile(r"\b(?:saveIndex|loadIndex|saveIndexNoExceptions)\b"),
    "SQLite": re.compile(r"\bsqlite3_open\w*\s*\("),
}
CPP_OPENS = {
    "base/file.cc": {"a call of the system", "a file system's function"},
    "base/file_mapping.cc": {"a mapped file"},  # of a file that base/file.cc opened
    "base/file_path.cc": {"a call of the system"},
    "base/sqlite.cc": {"SQLite"},  # through base/sqlite_vfs.cc
}


def code_of(path: Path) -> str:
    """Return a C++ source without its comments and without what stands in quotes."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', path.read_text())
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def touched(code: str) -> set[str]:
    return {what for what, pattern in TOUCHES_THE_DISK.items() if pattern.search(code)}


def test_the_core_opens_files_in_one_room() -> None:
    found = {}
    for path in sorted(CPP.rglob("*")):
        if path.suffix in (".cc", ".h", ".inc") and (touches := touched(code_of(path))):
            found[str(path.relative_to(CPP))] = touches
    assert found == CPP_OPENS


@pytest.mark.parametrize(
    "code",
    [
        *["int f = ::open(path, 0);", "std::ifstream in(path);", "std::filesystem::exists(path)", "fopen(name, mode)"],
        *["std::basic_ofstream<char> out;", "mmap(nullptr, n, PROT_READ, MAP_PRIVATE, fd, 0);", "index.saveIndex(a);"],
        *[
            "::syscall(SYS_openat2, 1)",
            "fs = std::filesystem::recursive_directory_iterator(a);",
            "sqlite3_open_v2(a, b)",
        ],
    ],
)
def test_the_rule_sees_a_file_that_is_opened(code: str) -> None:
    assert touched(code)


@pytest.mark.parametrize(
    "code",
    [
        *["file.open(a)", "Database::Open(file)", "std::remove(a, b, c)", "std::filesystem::path p;", "x->rename(a)"],
        *["mmap(nullptr, n, PROT_READ,\n MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);", "reopen(a)", "std::ranges::copy(a)"],
    ],
)
def test_the_rule_lets_values_pass(code: str) -> None:
    assert not touched(code)


# What opens files by its own means, and which: none lies in a memory's folder or in a pack.
PYTHON_OPENS = {
    "_native.py": "the record of the build beside the libraries",
    "bench/cold.py": "segments of a temporary memory, only to drop what the system holds of them",
    "bench/reading.py": "/proc",
    "cli/memory.py": "a timeline that a user names",
    "cli/plot.py": "a report that a user names",
    "cli/batch_questions.py": "questions that a user names",
    "cli/version.py": "what the build noted of itself",
    "cli/settings.py": "settings that a user names",
    "codecs/transform.py": "the cache of fitted tables, which is the user's own",
    "data/__init__.py": "data of the package",
    "files/child.py": "its standard input",
    "files/kind.py": "members of a zip in RAM",
    "files/parsing.py": "a file to read, and what a folder to read leaves out",
    "files/without_links.py": "files of a folder to read",
    "integrations/transformers.py": "a folder of a model that a user names",
    "memory/report.py": "data of the package",
    "models/conversion_cache.py": "the cache of converted models, which is the user's own",
    "models/gguf_file.py": "a model file that a user names, and what is kept of it in the cache",
    "models/gguf_reader.py": "a model file that a user names",
    "models/hub.py": "the card of a pack, on its way to the Hub",
    "models/hardware.py": "/proc",
    "models/profiles.py": "the cache of profiles, which is the user's own",
    "models/tuned_settings.py": "data of the package",
    "office/package.py": "members of a zip in RAM",
    "office/sheets.py": "members of a zip in RAM",
    "service_data/keys.py": "API keys in a file that a user names",
    "service_data/file_store.py": "the service's own folder, beside the memories",
    "service_data/stored_responses.py": "the service's own folder, beside the memories",
    "serve/logs.py": "the service's own folder, beside the memories",
    "service_data/service_folder.py": "the service's own folder, beside the memories",
    "serve/readings.py": "the service's own folder, beside the memories",
    "service_data/records.py": "the service's own folder, beside the memories",
    "serve/web_page.py": "data of the package",
}
_OWNERS_OF_ANOTHER_OPEN = {"Memory", "everlong", "webbrowser"}
_METHODS = {"read_text", "write_text", "read_bytes", "write_bytes", "touch"}
_FUNCTIONS = {
    *("os.open", "os.fdopen", "io.open", "np.load", "np.save", "np.savez", "np.savez_compressed", "np.memmap"),
    *("np.fromfile", "torch.load", "torch.save", "safetensors.safe_open", "safetensors.torch.load_file"),
    *("safetensors.torch.save_file", "shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move", "os.link"),
    *("mmap.mmap", "sqlite3.connect"),
}


def opens(source: str) -> bool:
    """Return whether a Python source opens a file by its own means."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, method = name.rpartition(".")
        if name == "open" or name in _FUNCTIONS or (owner and method in _METHODS):
            return True
        if owner and method == "open" and owner.split(".")[-1] not in _OWNERS_OF_ANOTHER_OPEN:
            return True
    return False


def test_python_opens_no_file_of_a_memory_or_a_pack() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if opens(path.read_text())}
    assert found == set(PYTHON_OPENS)


@pytest.mark.parametrize(
    "source",
    [
        *["open('a')", "pathlib.Path('a').open()", "folder.joinpath('a').read_bytes()", "np.load(file)"],
        *["safetensors.safe_open(file, 'pt')", "tarfile.open(a)", "lzma.open(a)", "os.open(a, 0)", "torch.load(a)"],
    ],
)
def test_the_rule_sees_a_python_file_that_is_opened(source: str) -> None:
    assert opens(source)


@pytest.mark.parametrize("source", ["Memory.open(a)", "everlong.Memory.open(a)", "safetensors.torch.load(data)"])
def test_the_rule_lets_the_core_open(source: str) -> None:
    assert not opens(source)
