"""Settings of every test: no network, hypothesis without deadlines (time is not asserted) and reproducible in CI."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from hypothesis import settings

settings.register_profile("everlong", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everlong")

# Tiny models gain nothing from a second thread and lose much where cores are shared.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def profiles_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither read the profiles that the user's models left, nor leave any."""
    os.environ["EVERLONG_CACHE"] = str(tmp_path_factory.mktemp("cache"))
