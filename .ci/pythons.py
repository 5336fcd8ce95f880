"""The Pythons of this machine, by version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

THIS = "{}.{}".format(*sys.version_info)


def python_of(version: str) -> str | None:
    """The Python of that version, such as "3.12"; None where there is none."""
    if version == THIS:
        return sys.executable
    # Where pyenv gives the commands, it asks which release is meant.
    asked = {**os.environ, "PYENV_VERSION": version}
    answer = "import sys; print(sys.executable)"
    command = shutil.which(f"python{version}") or "false"
    found = subprocess.run([command, "-c", answer], check=False, env=asked, capture_output=True, text=True)
    return found.stdout.strip() or None
