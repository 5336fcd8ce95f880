"""What dependencies tell their developers does not reach who calls a command; what goes wrong does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

NOISE = """
    import warnings
    from everlong import cli
    from everlong.cli.app import app

    @app.command()
    def noisy() -> None:
        import torch, transformers
        for name, text in (("torch.a", "old ways"), ("everlong.b", "our news")):
            warnings.warn_explicit(text, UserWarning, name + ".py", 1, module=name)
        for category in (FutureWarning, DeprecationWarning):
            warnings.warn("old ways", category)
        transformers.utils.logging.get_logger("transformers.models").warning("old ways")
        transformers.utils.logging.get_logger("transformers.models").error("lost weights")
        raise ValueError("what went wrong")

    cli.main()
"""


def told(*options: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(NOISE), "noisy"],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, **settings},
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.slow
def test_noise_of_dependencies_is_not_told_and_errors_are() -> None:
    error = told()
    assert "old ways" not in error
    assert "our news" in error
    assert "lost weights" in error
    assert error.endswith("everlong: what went wrong\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "settings"),
    [(("-W", "default"), {}), ((), {"PYTHONWARNINGS": "default"}), ((), {"TRANSFORMERS_VERBOSITY": "warning"})],
)
def test_it_is_told_where_that_is_asked_for(options: tuple[str, ...], settings: dict[str, str]) -> None:
    assert "old ways" in told(*options, **settings)
