"""The development set: facts asked for in other words, on other topics than everlong_lab.corpora.paraphrases.

The constants of the fusion (everlong/index/fusion.h) were fitted on it, so a figure on it says nothing about new
questions. It shares no fact and no answer with PARAPHRASES.
"""

from __future__ import annotations

from everlong_lab.corpora.facts import Fact, paraphrased, plant_jointly
from everlong_lab.corpora.paraphrases import facts_in

DEVELOPMENT: tuple[Fact, ...] = plant_jointly(paraphrased(*told) for told in facts_in("development"))
