"""When something comes back, as what, and what stands beside it while an answer is computed."""

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

    # "prompt": once a question, by its own queries. "recent": every `recent_every` generated tokens the newest blocks.
    # "periodic", "signal": every `periodic_every` generated tokens, or on <RETRIEVE>, by the newest tokens' queries.
    # Several are combined.
    policy: Policy | tuple[Policy, ...] = "prompt"
    # "kv": recalled pages come back as the KV that was archived. "text": their tokens are read again, each after those
    # recalled before it. "auto": of several groups the last, the most relevant, is read again and so sees the others,
    # which come back as KV; one alone comes back as KV. With "text" a model whose KV cannot be spliced is served, too:
    # its memory is of text alone. "kept": blocks carry the keys and values of their chosen tokens (frame.kept_tokens)
    # once more, on their own, and those come back, of the whole block, in place of its pages; pages of other blocks as
    # "kv". "detail": blocks come back as the Detail Tokens that a part wrote; a block that has none, in pages as "kv".
    # "both": Detail Tokens, up to half of the recalled zone, then pages as "kv".
    recall_mode: RecallMode = "auto"
    order: Order = "relevance"  # of groups in the frame: the most relevant last, or in order of time
    # So many sentences of what came back, the nearest to the question, stand in words right before it
    # (retrieval/quotes.py). A turn is remembered without them. 0: none.
    quotes: int = 1
    # Attention temperature of a group that is surely not the one that was asked for: its keys are divided by it, so
    # that a like thing in it is less of a match than what the best group says. The nearer its probability is to the
    # best one's, the nearer to 1 is its temperature. 1: all come back as they were archived.
    recalled_temperature: float = 1.2
    prompt_rolling_tokens: int = _OS.prompt_rolling_tokens  # of the newest text, what stays right before a question
    # Of what was asked and said since text was read last, the newest tokens that stand before what a question recalls,
    # up to half of the recalled zone; where it recalls nothing, as many as that zone takes.
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
