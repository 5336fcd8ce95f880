"""Memories in frameworks that people use: LangChain, LangGraph, LlamaIndex, Haystack, lm-eval.

A file for each, and one for transformers' own doors. None is imported before it is asked for. Each but that one needs
the extra of its name. `exclusive.py` is how many threads share a memory, `table.py` what a framework keeps with one,
and `citations.py` what it gets of a passage.
"""

from typing import Final

MAY_IMPORT: Final = ("config", "errors", "frame", "generation", "memory", "models", "retrieval", "text")
