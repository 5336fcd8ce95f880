"""Files of many kinds, as text with the places to cite: each is parsed in a child process, within limits.

A file is hostile until it was read. A child process gets its bytes and nothing else. It opens no other file, reaches no
network, and has its time and RAM. `parsing.py` starts it, `start.py` is what it runs first, `child.py` is what it does,
and `records.py` is how it tells what it found. `kind.py` says which reader is asked. A reader is one file: it makes
documents of bytes, by a library of the extra `files` or by Python's own.
"""

from __future__ import annotations

from typing import Final

MAY_IMPORT: Final = ("paths",)
