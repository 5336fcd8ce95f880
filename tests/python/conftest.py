"""Settings of every test: no network, hypothesis without deadlines (time is not asserted) and reproducible in CI."""

import os
import signal
import uuid

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from hypothesis import settings

settings.register_profile("everlong", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everlong")

# Tiny models gain nothing from a second thread and lose much where cores are shared.
torch.set_num_threads(1)

# A shell starts what runs in its background with Ctrl-C ignored; tests and the processes that they start are sent it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def profiles_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test neither reads the profiles that the user's models or other tests left, nor leaves any."""
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path_factory.getbasetemp() / "cache" / uuid.uuid4().hex))
