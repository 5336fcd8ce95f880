"""`python -m everlong` is `everlong`."""

from everlong.cli import main

main()
