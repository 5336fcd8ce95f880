"""Settings of an answer: when something comes back, as what, and what stands beside it."""

from __future__ import annotations

import dataclasses
from typing import Literal

import everlong._core as _core
from everlong.config.settings import Settings

Policy = Literal["prompt", "recent", "periodic", "signal", "off"]
Order = Literal["relevance", "time"]
WhenUnsure = Literal["answer", "say"]
RecallMode = Literal["kv", "text", "auto", "kept", "detail", "both"]

_OS = _core.MemoryOsConfig()  # the Memory OS owns these defaults (cpp/os/include/everlong/os/*.h)


@dataclasses.dataclass(frozen=True)
class AnswerConfig(Settings, group="answer", least={"quotes": 0, "recalled_temperature": 1, "draft_tokens": 0}):
    """`quotes`, `quotes_alone`, `order`, `when_unsure`, `recalled_temperature`, `draft_tokens` and `at_once` may change
    between two questions.
    """

    # What asks for a recall. "prompt": each question, by its own queries. "recent": every `recent_every` generated
    # tokens; it brings the newest blocks. "periodic": every `periodic_every` generated tokens, by the newest tokens'
    # queries. "signal": <RETRIEVE>, by the same queries. Several are combined.
    policy: Policy | tuple[Policy, ...] = "prompt"
    # How what was recalled comes back. "kv": pages as the KV that was archived. "text": their tokens are read again,
    # each after those recalled before it; with a memory of text alone this serves models whose KV cannot be spliced.
    # "auto": as KV, but of several groups the last, the most relevant, is read again and so sees the others. "kept":
    # the chosen tokens of a block (frame.kept_tokens), whose KV the block stores once more. "detail": the Detail Tokens
    # that a part wrote. With both of these a block without them comes back as "kv". "both": Detail Tokens, up to half
    # of the recalled zone, then pages as "kv".
    recall_mode: RecallMode = "auto"
    order: Order = "relevance"  # order of groups in the frame: the most relevant last, or by time
    # So many recalled sentences at most, the nearest to the question, stand in words right before it
    # (retrieval/quotes.py). Where several may, each stands in a line behind its source, its date and who says it, the
    # oldest first (retrieval/quote_lines.py). A turn is remembered without them. 0: none.
    quotes: int = 1
    # Nothing else comes back for a question. What was found is cited, and takes no room in the frame, so that
    # `search.groups` may be many. It serves memories of text alone, too.
    quotes_alone: bool = False
    # What an answer is where the memory is unsure (`Answer.unsure`): the model's, from what came back all the same, or
    # one that says that the memory does not hold it, and what is nearest (generation/not_there.py).
    when_unsure: WhenUnsure = "answer"
    # Attention temperature of a group that is surely not the one asked for. Its keys are divided by it, so that a
    # similar thing in it matches less than what the best group says. The nearer a group's probability is to the best
    # one's, the nearer its temperature is to 1. 1: all come back as they were archived.
    recalled_temperature: float = 1.2
    # Where an answer repeats what stands before it, at most so many of the tokens that follow there are computed with
    # the next one (generation/drafts.py). Answers stay as they are, to rounding. 0: off.
    draft_tokens: int = 16
    # How many questions of `answer_many` are answered at once. What they compute is computed in one forward
    # (kv_cache/batching.py), each over a fork of the frame (kv_cache/copy_on_write.py says what it takes). 1: one after
    # another.
    at_once: int = 8
    prompt_rolling_tokens: int = _OS.prompt_rolling_tokens  # how much of the newest text stays right before a question
    # How many of the newest tokens of the conversation since text was read last stand before what a question recalls:
    # at most half of the recalled zone, or all of it where the question recalls nothing.
    conversation_tokens: int = _OS.conversation_tokens
    recent_every: int = _OS.recent_every
    recent_blocks: int = _OS.recent_blocks
    periodic_every: int = _OS.periodic_every
    # T_protect: what came back for generated tokens stays for at least so many of them
    protect_tokens: int = _OS.protect_tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quotes_alone and self.quotes == 0:
            raise ValueError("quotes_alone is True, and quotes is 0: nothing would come back; expected at least 1")

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset(
            {"quotes", "quotes_alone", "order", "when_unsure", "recalled_temperature", "draft_tokens", "at_once"}
        )

    @property
    def policies(self) -> frozenset[Policy]:
        """`policy` as a set; "off" and an empty tuple are the empty one."""
        named = (self.policy,) if isinstance(self.policy, str) else self.policy
        return frozenset(policy for policy in named if policy != "off")
