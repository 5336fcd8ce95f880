"""Facts that are asked for in other words: to find them, one must know what a text means, not how it is spelled.

A question shares at most one content word with its statement, and no name, number or answer. Nothing in everlong is
tuned or trained on them. Tuning uses a second set of the same making (everlong_lab.corpora.development).

An association goes further. Question and statement share no word, and are one step of world knowledge apart (the Eiffel
Tower, the French capital), as in NoLiMa (Modarressi et al., ICML 2025).
"""

from __future__ import annotations

import pathlib

ParaphrasedFact = tuple[str, str, str]  # statement, question, answer


def facts_in(name: str) -> tuple[ParaphrasedFact, ...]:
    """Return the statements, questions and answers of data/`name`.txt: a line each, and an empty line between facts."""
    text = pathlib.Path(__file__).with_name("data").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(_fact(block) for block in text.strip().split("\n\n"))


def _fact(block: str) -> ParaphrasedFact:
    statement, question, answer = block.splitlines()
    return statement, question, answer


PARAPHRASED = facts_in("paraphrases")
ASSOCIATED = facts_in("associations")
