"""`python -m everlong` is `everlong`."""

import sys

from everlong.cli import main

sys.exit(main())
