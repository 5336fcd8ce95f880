"""The KV cache that a model attends to, and one forward over it: buffers, masters of long-lived slots, CUDA graphs."""

from typing import Final

MAY_IMPORT: Final = ("_core", "errors", "models", "ops")
