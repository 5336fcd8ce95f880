"""How a memory is kept and used: one file a group of settings, and the config that holds them together."""

from typing import Final

from everlong.config.answer import AnswerConfig
from everlong.config.archive import ArchiveConfig
from everlong.config.frame import FrameConfig
from everlong.config.memory import LEAST_WINDOW, MemoryConfig, name_of
from everlong.config.search import SearchConfig
from everlong.config.settings import Settings

MAY_IMPORT: Final = ("_core", "errors", "part_list", "text")

__all__ = [
    "LEAST_WINDOW",
    "AnswerConfig",
    "ArchiveConfig",
    "FrameConfig",
    "MemoryConfig",
    "SearchConfig",
    "Settings",
    "name_of",
]
