"""Finding what to recall: the parts of the index, their calibration, the search over all of them."""

from typing import Final

MAY_IMPORT: Final = ("_core", "config", "errors", "frame", "kv_cache", "memory", "models", "paths", "text")
