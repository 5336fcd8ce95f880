"""Needle in a haystack: facts planted in books, asked with the memory, the window alone and the gold text alone.

One reading serves every length. It stops at each and asks, or it keeps a fork of the memory there (`keep`). The forks
are asked afterwards, as often and with as many settings as one likes. The gold text alone is about 512 tokens around a
fact in plain transformers. It gives the model's own rate, which no memory can be blamed for. The window alone is the
same MemoryModel without recall.
"""

from everlong_lab.eval.niah.config import NiahConfig
from everlong_lab.eval.niah.report import NiahAnswer, NiahReport, Share, summarise
from everlong_lab.eval.niah.run import READ_AS, ask_haystack, ask_in_kept, plan_haystack, run_niah

__all__ = [
    "READ_AS",
    "NiahAnswer",
    "NiahConfig",
    "NiahReport",
    "Share",
    "ask_haystack",
    "ask_in_kept",
    "plan_haystack",
    "run_niah",
    "summarise",
]
