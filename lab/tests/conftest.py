"""What holds for every test of everlong-lab."""

from fixtures import *  # noqa: F403  # fixtures and hooks are found by name
