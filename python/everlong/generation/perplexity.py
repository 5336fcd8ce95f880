"""How well a text is predicted after all that a memory was given."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch

from everlong.config import MemoryConfig
from everlong.config.answer import Policy
from everlong.frame.frame import Frame
from everlong.frame.offers import Offers, offers_of
from everlong.retrieval.searcher import Searcher
from everlong.text import notebook_html
from everlong.text.prompt import Prompt

PerplexityPolicy = Literal["window", "recent", "prompt", "random"]


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """How well a text was predicted: its tokens but the first."""

    ppl: float  # exp(nll)
    nll: float  # the mean, nats a token
    tokens: int  # scored ones
    token_nll: tuple[float, ...]  # of every scored token, nats

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the figures."""
        return notebook_html.table(
            (("perplexity", self.ppl), ("nats a token", round(self.nll, 3)), ("tokens", self.tokens))
        )


def perplexity_of(
    ids: torch.Tensor, frame: Frame, searcher: Searcher, config: MemoryConfig, policy: PerplexityPolicy, seed: int
) -> Perplexity:
    """Score token ids [n] behind what the frame holds. Afterwards the frame is what it was.

    Every `answer.recent_every` tokens the recalled zone is filled anew, as `policy` says. ValueError for less than two
    tokens.
    """
    if len(ids) < 2:
        raise ValueError(f"perplexity needs at least 2 tokens, the text has {len(ids)}")
    step = config.answer.recent_every
    rows = []
    with frame.branch():
        frame.clear_recalled()
        newest = frame.stream.newest_archived(config.archive.page_tokens)
        for first in range(0, len(ids), step):
            recalled = _recalled(policy, newest, frame, searcher, config, seed + first)
            frame.bring_back(recalled)
            chunk = ids[first : first + step]
            logits = frame.extend(chunk, "read", logits=True).float()
            target = ids[first + 1 : first + step + 1].to(logits.device)
            rows.append(torch.nn.functional.cross_entropy(logits[: len(target)], target, reduction="none").cpu())
            newest = chunk[-config.archive.page_tokens :]
    nll = torch.cat(rows)
    mean = float(nll.double().mean())
    return Perplexity(math.exp(mean), mean, len(nll), tuple(nll.tolist()))


def nearest_policy(policies: frozenset[Policy]) -> PerplexityPolicy:
    """Return the policy of a perplexity that comes nearest to those of a conversation."""
    if not policies:
        return "window"
    return "recent" if policies == {"recent"} else "prompt"


def _recalled(
    policy: PerplexityPolicy, newest: torch.Tensor, frame: Frame, searcher: Searcher, config: MemoryConfig, seed: int
) -> Offers:
    if policy == "recent":
        return offers_of(searcher.recent_pages(config.answer.recent_blocks), "recent")
    if policy == "window" or len(newest) == 0:
        return ()
    found = searcher.find(Prompt(newest, slice(0, len(newest)))).chosen(config.search.decisive)
    recalled = found.in_frame_order(config.answer.order, config.answer.recalled_temperature)
    if policy == "prompt":
        return recalled
    os = frame.os
    count = sum(len(offer.pages) for offer in recalled)
    return offers_of(frame.memory.core.search.random_pages(os.stream, os.rolling[0], count, seed), "random")
