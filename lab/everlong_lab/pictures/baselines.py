"""What baselines are called in pictures, and their colours."""

from __future__ import annotations

from collections.abc import Mapping

from everlong.pictures.canvas import CONTROL, OURS, OWN_RATE, RIVAL

_COLOURS: Mapping[str, str] = {"everlong": OURS, "gold": OWN_RATE, "random": CONTROL}
LABELS: Mapping[str, str] = {
    "everlong": "everlong",
    "survey": "everlong, a survey",
    "heads": "everlong, heads alone",
    "lexical": "everlong, words alone",
    "mean_pool": "everlong, mean keys",
    "recent": "newest pages",
    "random": "random pages",
    "window": "window alone",
    "full": "full attention, own window",
    "bm25": "BM25, text read again",
    "minilm": "MiniLM, text read again",
    "gold": "gold text alone",
}


def colour_of(baseline: str) -> str:
    return _COLOURS.get(baseline.partition(":")[0], RIVAL)


def label_of(baseline: str) -> str:
    name, _, settings = baseline.partition(":")
    return LABELS.get(name, name) + (f" ({settings})" if settings else "")
