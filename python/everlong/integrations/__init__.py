"""Memories in frameworks that people use: LangChain, LangGraph, LlamaIndex, Haystack, lm-eval.

A file for each, and one for transformers' own doors. None is imported before it is asked for. Each but that one needs
the extra of its name. `turns.py` is how many threads share a memory, and `shown.py` what frameworks get of a passage.
"""

from typing import Final

MAY_IMPORT: Final = ("config", "errors", "frame", "generation", "memory", "models", "retrieval", "text")
