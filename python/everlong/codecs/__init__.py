"""The transform codec, which is fitted to a model, and what each codec of the archive costs one."""

from typing import Final

MAY_IMPORT: Final = ("_core", "data", "models", "ops")
