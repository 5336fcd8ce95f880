"""The command line: `everlong read | ask | chat | inspect | doctor | bench | demo | eval SUITE | plot`.

Exit code 0; 1 with one line that says why; 2 where the command itself is wrong; 130 after Ctrl-C.
"""

from everlong.cli import cost, evidence, health, memory
from everlong.cli.app import main

__all__ = ["cost", "evidence", "health", "main", "memory"]
