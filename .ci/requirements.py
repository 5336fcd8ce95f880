"""Print requirements of pyproject.toml, one a line: build, run, extras but OTHER, and those given as arguments.

One list, so that one pip run resolves it: everlong itself is then installed with --no-deps --no-build-isolation. With
`--group NAME` alone those of a dependency group, with `--extra NAME` those of an extra.
"""

import sys
import tomllib
from pathlib import Path

# What takes long to build, or brings much with it: tests of these are skipped where it is not there.
OTHER = ("bench", "lm-eval")

settings = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
if sys.argv[1:2] == ["--group"]:
    print(*settings["dependency-groups"][sys.argv[2]], sep="\n")
    sys.exit()
project = settings["project"]
if sys.argv[1:2] == ["--extra"]:
    print(*project["optional-dependencies"][sys.argv[2]], sep="\n")
    sys.exit()
extras = [
    requirement
    for name, extra in project["optional-dependencies"].items()
    if name not in OTHER
    for requirement in extra
]
print(*sys.argv[1:], *settings["build-system"]["requires"], *project["dependencies"], *extras, sep="\n")
