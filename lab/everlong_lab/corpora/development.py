"""The development set: facts asked for in other words, on other topics than everlong_lab.corpora.paraphrases.

The constants of the fusion (everlong/index/fusion.h) were fitted on it, so a figure on it says nothing about new
questions. It shares no fact and no answer with PARAPHRASES.
"""

from __future__ import annotations

from everlong_lab.corpora.facts import Fact, paraphrased, planted_together
from everlong_lab.corpora.paraphrases import told_in

DEVELOPMENT: tuple[Fact, ...] = planted_together(paraphrased(*told) for told in told_in("development"))
