"""Print the requirements of pyproject.toml (build, run, extras but `bench`), one a line, and those given as arguments.

One list, so that one pip run resolves it: everlong itself is then installed with --no-deps --no-build-isolation.
"""

import sys
import tomllib
from pathlib import Path

settings = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
project = settings["project"]
extras = [
    requirement for name, extra in project["optional-dependencies"].items() if name != "bench" for requirement in extra
]
print(*sys.argv[1:], *settings["build-system"]["requires"], *project["dependencies"], *extras, sep="\n")
