"""Settings of an answer: when something comes back, as what, and what stands beside it."""

from __future__ import annotations

import dataclasses
from typing import Literal

import everlong._core as _core
from everlong.settings import Settings

Policy = Literal["prompt", "recent", "periodic", "signal", "off"]
Order = Literal["relevance", "time"]
RecallMode = Literal["kv", "text", "auto", "kept", "detail", "both"]

_OS = _core.MemoryOsConfig()  # the Memory OS owns these defaults (cpp/include/everlong/os/*.h)


@dataclasses.dataclass(frozen=True)
class AnswerConfig(Settings, group="answer", least={"quotes": 0, "recalled_temperature": 1}):
    """`quotes`, `order` and `recalled_temperature` may change from one question to the next."""

    # "prompt": once a question, by its own queries. "recent": every `recent_every` generated tokens, the newest blocks.
    # "periodic": every `periodic_every` generated tokens, by the newest tokens' queries. "signal": on <RETRIEVE>, by
    # the same. Several are combined.
    policy: Policy | tuple[Policy, ...] = "prompt"
    # "kv": recalled pages come back as the KV that was archived. "text": their tokens are read again, each after those
    # recalled before it; serves models whose KV cannot be spliced, too, with a memory of text alone. "auto": of several
    # groups the last, the most relevant, is read again and so sees the others, which come back as KV; one alone comes
    # back as KV. "kept": the chosen tokens of a block (frame.kept_tokens) come back in place of its pages, with keys
    # and values that blocks store for them; blocks without come back as "kv". "detail": blocks come back as the Detail
    # Tokens that a part wrote; a block without comes back as "kv". "both": Detail Tokens, up to half of the recalled
    # zone, then pages as "kv".
    recall_mode: RecallMode = "auto"
    order: Order = "relevance"  # of groups in the frame: the most relevant last, or in order of time
    # So many recalled sentences, the nearest to the question, stand in words right before it (retrieval/quotes.py). A
    # turn is remembered without them. 0: none.
    quotes: int = 1
    # Attention temperature of a group that is surely not the one asked for: its keys are divided by it, so that a
    # similar thing in it matches less than what the best group says. The nearer a group's probability is to the best
    # one's, the nearer its temperature is to 1. 1: all come back as they were archived.
    recalled_temperature: float = 1.2
    prompt_rolling_tokens: int = _OS.prompt_rolling_tokens  # of the newest text, what stays right before a question
    # Newest tokens of the conversation since text was read last, which stand before what a question recalls: at most
    # half of the recalled zone, or all of it where the question recalls nothing.
    conversation_tokens: int = _OS.conversation_tokens
    recent_every: int = _OS.recent_every
    recent_blocks: int = _OS.recent_blocks
    periodic_every: int = _OS.periodic_every
    protect_tokens: int = _OS.protect_tokens  # T_protect: so many generated tokens keep what came back for them

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset({"quotes", "order", "recalled_temperature"})

    @property
    def policies(self) -> frozenset[Policy]:
        """`policy` as a set; "off" and an empty tuple are the empty one."""
        named = (self.policy,) if isinstance(self.policy, str) else self.policy
        return frozenset(policy for policy in named if policy != "off")
