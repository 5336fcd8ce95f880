"""What a service keeps on disk: its folder, keys, memories by name, accepted uploads, answers."""

from typing import Final

MAY_IMPORT: Final = ("errors", "memory")
