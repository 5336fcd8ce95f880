"""Print requirements of everlong and of everlong-lab, one a line: build, run, extras but OTHER, and those given as
arguments.

One list, so that one pip run resolves it: both are then installed with --no-deps --no-build-isolation. With
`--group NAME` alone those of a dependency group, with `--extra NAME` those of an extra.
"""

import sys
import tomllib
from pathlib import Path

# What takes long to build, or brings much with it: tests of these are skipped where it is not there.
OTHER = ("bench", "lm-eval")
ROOT = Path(__file__).parent.parent

settings, lab = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "lab"))
if sys.argv[1:2] == ["--group"]:
    print(*settings["dependency-groups"][sys.argv[2]], sep="\n")
    sys.exit()
if sys.argv[1:2] == ["--extra"]:
    print(*settings["project"]["optional-dependencies"][sys.argv[2]], sep="\n")
    sys.exit()
listed = list(sys.argv[1:])
for one in (settings, lab):
    project = one["project"]
    extras = [extra for name, extra in project["optional-dependencies"].items() if name not in OTHER]
    listed += [
        *one["build-system"]["requires"],
        *project["dependencies"],
        *(line for extra in extras for line in extra),
    ]
print(*(line for line in listed if not line.startswith("everlong")), sep="\n")
