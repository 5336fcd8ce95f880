"""Settings of every test: no network, hypothesis without deadlines (time is not asserted) and reproducible in CI."""

import os
import signal
import uuid
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
# Tiny models gain nothing from a second thread and lose much where cores are shared. Before torch is imported, and for
# the processes that tests start: sums in another order would be other numbers.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

settings.register_profile("everlong", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everlong")

torch.set_num_threads(1)

# A shell starts what runs in its background with Ctrl-C ignored; tests and the processes that they start are sent it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def profiles_of_no_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a module's fixtures calibrate stays among the tests, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EVERLONG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def profiles_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test neither reads the profiles that the user's models or other tests left, nor leaves any."""
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex))
