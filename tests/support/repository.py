"""Where things are."""

from pathlib import Path

# The folder that holds this `support` package. It belongs on the Python path of a process that a test starts.
TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
