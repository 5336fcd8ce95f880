"""`import everlong` either works, or says what is wrong and what to do about it."""

import importlib.metadata
import pickle
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch

import everlong
from everlong import _native
from support import REPOSITORY


def import_error(preparation: str) -> str:
    """The message of the ImportError that `import everlong` raises in a fresh interpreter after `preparation`."""
    program = textwrap.dedent(preparation) + textwrap.dedent("""
        try:
            import everlong
        except ImportError as error:
            print(error)
        else:
            raise SystemExit("the import went through")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version_is_the_distributions() -> None:
    assert everlong.__version__ == importlib.metadata.version("everlong")


def test_missing_torch() -> None:
    message = import_error("""
        import sys
        sys.modules["torch"] = None
    """)
    assert "needs PyTorch >= 2.11" in message
    assert "has none" in message
    assert "pip install 'torch>=2.11'" in message


@pytest.mark.parametrize("found", ["2.10.1+cu126", "1.13.0", "nightly"])
def test_torch_too_old(found: str) -> None:
    message = import_error(f"""
        import sys, types
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].__version__ = "{found}"
    """)
    assert f"has {found}" in message
    assert "needs PyTorch >= 2.11" in message


@pytest.mark.parametrize("found", ["2.11.0", "2.11.0+cpu", "2.13.0", "3.0.0"])
def test_torch_new_enough(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", found)
    _native.check_torch()


@pytest.mark.slow
def test_missing_transformers() -> None:
    message = import_error("""
        import sys
        sys.modules["transformers"] = None
    """)
    assert "needs transformers >= 5.17" in message
    assert "has none: `pip install 'transformers>=5.17'`" in message


@pytest.mark.slow
@pytest.mark.parametrize("found", ["5.16.0", "4.57.1"])
def test_transformers_too_old(found: str) -> None:
    message = import_error(f"""
        import sys, types
        sys.modules["transformers"] = types.ModuleType("transformers")
        sys.modules["transformers"].__version__ = "{found}"
    """)
    assert f"has {found}: `pip install -U 'transformers>=5.17'`." in message


def test_transformers_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "5.17.0.dev0")
    _native.check_transformers()


@pytest.mark.parametrize(("package", "oldest"), [("torch", "MINIMUM_TORCH"), ("transformers", "MINIMUM_TRANSFORMERS")])
def test_the_distribution_asks_for_what_is_checked(package: str, oldest: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    minimum = ".".join(map(str, getattr(_native, oldest)))
    (asked,) = (line for line in project["dependencies"] if line.startswith(f"{package}>="))
    assert asked.split(",")[0] == f"{package}>={minimum}"
    assert asked.split(",")[1].startswith("<"), "no release that was not run"


@pytest.mark.slow
def test_core_not_there() -> None:
    message = import_error("""
        import sys
        sys.modules["everlong._core"] = None
    """)
    assert "native module cannot be used" in message
    assert "--no-build-isolation" in message


def test_core_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "native_build.json").write_text('{"python": "3.99.1", "torch": "2.99.0"}')
    monkeypatch.setitem(sys.modules, "everlong._core", None)
    with pytest.raises(ImportError, match=r"built for Python 3\.99\.1 and torch 2\.99\.0; this is Python 3\."):
        _native.check_core([str(tmp_path)])


def test_ops_that_do_not_load(tmp_path: Path) -> None:
    (tmp_path / "native_build.json").write_text('{"python": "3.99.1", "torch": "2.99.0"}')
    (tmp_path / "libeverlong_ops.so").write_bytes(b"no library")
    with pytest.raises(ImportError, match=r"torch operators cannot be loaded: .*built for .* torch 2\.99\.0"):
        _native.load_ops(tmp_path)


def test_gpu_ops_are_loaded_where_torch_has_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _native.check_core(_native.PACKAGE)
    (tmp_path / "libeverlong_ops.so").symlink_to(folder / "libeverlong_ops.so")
    (tmp_path / "libeverlong_gpu_ops.so").write_bytes(b"no library")
    monkeypatch.setattr(torch.version, "cuda", None)
    _native.load_ops(tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ImportError, match=r"torch operators cannot be loaded: .*libeverlong_gpu_ops"):
        _native.load_ops(tmp_path)


def test_native_files_stand_side_by_side() -> None:
    folder = _native.check_core(list(everlong.__path__))
    assert (folder / "libeverlong.so").is_file()
    assert (folder / "libeverlong_ops.so").is_file()
    assert (folder / "native_build.json").is_file()


@pytest.mark.slow
def test_transformers_is_imported_when_a_name_needs_it() -> None:
    program = """
        import sys
        import everlong
        assert set(everlong.__all__) <= set(dir(everlong))
        assert not hasattr(everlong, "MemoryModell")
        assert "transformers" not in sys.modules
        from everlong import *
        assert "transformers" in sys.modules
        assert MemoryModel is everlong.MemoryModel is everlong.generation.memory_model.MemoryModel
        print(*sorted(name for name in everlong.__all__ if globals()[name] is getattr(everlong, name)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(everlong.__all__)


@pytest.mark.slow
def test_every_documented_module_is_there_by_import_everlong_alone() -> None:
    """The pages of everlong-lab are in docs/lab/api."""
    pages = {page.stem for page in REPOSITORY.joinpath("docs", "api").glob("*.md")} - {"everlong"}
    program = f"import everlong; [getattr(everlong, name).__name__ for name in {sorted(pages)}]"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_typed() -> None:
    folder = Path(str(everlong.__file__)).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "_core.pyi").is_file()


def told_by(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_the_import_loads_nothing_heavy() -> None:
    program = """
        import sys
        import everlong
        print(*sorted({"torch", "transformers", "numpy", "everlong._core"} & sys.modules.keys()), "|")
        everlong.Memory, everlong.Where, everlong.MemoryConfig, everlong.MemoryBusyError
        print(*sorted({"torch", "transformers", "everlong._core"} & sys.modules.keys()))
    """
    assert told_by(program) == ["|", "everlong._core"]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import torch, everlong", "import everlong; everlong.ops; import torch"])
def test_torch_knows_the_operators(first: str) -> None:
    assert told_by(f"{first}; print(torch.ops.everlong.shift_kv_)") == ["everlong.shift_kv_"]


@pytest.mark.slow
def test_what_a_command_says_where_the_core_cannot_be_loaded(tmp_path: Path) -> None:
    program = f"""
        import sys
        import everlong.cli
        sys.modules["everlong._core"] = None
        sys.argv = ["everlong", "inspect", {str(tmp_path)!r}]
        everlong.cli.main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("everlong: everlong's native module cannot be used: ")
    assert "--no-build-isolation" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_error_that_is_torchs_too_is_made_once() -> None:
    error = everlong.errors.DeviceMemoryError("no room")
    assert type(error) is everlong.DeviceMemoryError
    assert isinstance(error, torch.OutOfMemoryError)
    assert isinstance(error, everlong.CapacityError)
    assert type(pickle.loads(pickle.dumps(error))) is everlong.DeviceMemoryError
    with pytest.raises(AttributeError, match="has no attribute 'DeviceMemoryErrors'"):
        _ = everlong.errors.DeviceMemoryErrors
