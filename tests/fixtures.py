"""What holds for every test: no network, one thread, a cache of its own, examples by profile, and what is slow.

A test is slow if it takes more than a second of a quiet core. Then it, or its file, has the mark `slow`. Tests
for the architectures of SLOW_KINDS are slow too, because there are so many. `make test-quick` leaves slow tests
out. `make test` runs everything, and lists the tests that take longest.
"""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
# Tiny models gain nothing from a second thread and lose much where cores are shared. This must stand before torch is
# imported, and in the environment of the processes that tests start: sums in another order are other numbers.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

# No profile has a deadline, because no test asserts seconds. In CI the examples are the same in every run.
# `--hypothesis-profile` chooses another one. A test that wants a number of its own says `support.examples.examples`.
settings.register_profile("everlong", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("ci" if os.environ.get("CI") else "everlong")

torch.set_num_threads(1)

# Tests over all architectures are slow for these. That leaves llama and gemma3, and by text alone gpt2 and mamba.
SLOW_KINDS = {
    *("cohere", "cohere2", "gemma4", "glm", "gpt_oss", "mistral", "phi3", "qwen3", "qwen3_5", "qwen3_next", "smollm3"),
    *("bloom", "deepseek_v3", "gpt_neox", "rwkv"),
}

# A shell starts its background jobs with Ctrl-C ignored. Tests send Ctrl-C to themselves and to their processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def profiles_of_no_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what fixtures of a wider scope calibrate out of the user's cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EVERLONG_CACHE", str(_cache(tmp_path_factory.mktemp("cache"), tmp_path_factory)))
        yield


@pytest.fixture(autouse=True)
def profiles_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a cache of its own: it reads no profile of the user or of other tests, and leaves none."""
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex
    monkeypatch.setenv("EVERLONG_CACHE", str(_cache(folder, tmp_path_factory)))
    yield
    shutil.rmtree(folder, ignore_errors=True)  # a process that a test left may still write into it


def _cache(folder: Path, factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a cache that is empty, but for converted models: converting them takes long."""
    shared = factory.getbasetemp() / "models"
    shared.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(shared)
    return folder


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny model and its tokenizer, as transformers saves them. Tests only read it."""
    from support import byte_tokenizer, tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def torch_defaults() -> Iterator[None]:
    """Put torch's default dtype and device back after the test."""
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark here, because gpu/check runs tests without pyproject.toml."""
    config.addinivalue_line(
        "markers", "slow: takes more than a second of a quiet core; `make test-quick` leaves it out"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, so that no process ends up alone with one. Mark the other architectures slow."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            kind = item.callspec.params.get("kind")
            if isinstance(kind, str) and kind in SLOW_KINDS:
                item.add_marker("slow")
