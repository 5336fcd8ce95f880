"""Forty scripted streams of the Memory OS alone: integers in, decisions out. No model, no memory, no archive.

`python -m support.os_streams > data/decisions.json`, in tests/, writes anew what tests/python/core/
test_decisions_golden.py compares with. Do that only where a change is meant to change decisions.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import everlong._core as _core

PAGE = 8
BASE: dict[str, Any] = {
    **{"frame_tokens": 200, "sink_tokens": 4, "recalled_tokens": 40, "rolling_tokens": 48, "evict_tokens": 16},
    **{"block_tokens": 24, "least_tokens": 8, "cooldown_tokens": 8, "conversation_tokens": 30},
}
EVERY = {"recent_every": 9, "recent_blocks": 2, "periodic_every": 7, "protect_tokens": 5}
POLICIES = {"recall_recent": True, "recall_periodic": True, "recall_signal": True, **EVERY}
ANCHORS, STONES = {"anchor_tokens": 3, "anchors": 4}, {"tombstones": 3}
KEPT = {"kept_tokens": 18, "kept_share": 4, "kept_rungs": 3}
WAKING = {**STONES, "recall_tombstone": True, "tombstone_threshold": 0.5, "protect_tokens": 3}
TOPICS = {"topic_threshold": 0.75, "topic_lookahead": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "prompt": {},
    "recent": {"recall_recent": True, "recall_prompt": False, **EVERY},
    "periodic": {"recall_periodic": True, **EVERY, "protect_tokens": 0},
    "signal": {"recall_signal": True, "protect_tokens": 12, "prompt_rolling_tokens": 20},
    "all policies": POLICIES | {"stream": 3, "conversation_tokens": 60},
    "waking": WAKING | {"recall_prompt": False},
    "anchors": ANCHORS | TOPICS,
    "kept": KEPT | {"conversation_tokens": 12, "recall_signal": True, "protect_tokens": 4},
    "all zones": ANCHORS | WAKING | KEPT | TOPICS | POLICIES,
    "no room": {"sink_tokens": 0, "recalled_tokens": 0, "frame_tokens": 80, "evict_tokens": 1, "recall_recent": True},
}
STREAMS = {f"{config} {seed}": config for config in CONFIGS for seed in range(4)}
STEPS = 90
_KINDS = ("sentence", "paragraph", "turn", "signal")
_TOLD = (
    *("state", "stream_end", "archived_until", "read_until", "conversation", "rolling", "sinks", "anchor_zone", "kept"),
    *("kept_held", "kept_shown", "kept_position", "open_from", "recall_counts", "cooldown_until", "anchor_positions"),
    *("recalled_tokens", "evicted", "archiving"),
)
_OF_ACTION = {
    _core.Archive: ("begin", "end", "sink_tokens", "role"),
    _core.Trim: ("begin", "end", "tokens", "runs"),
    _core.Keep: ("tombstone", "begin", "end", "dropped", "merged", "merged_tokens", "next_tokens"),
    _core.Evict: ("tokens", "delta", "keeps", "anchor_positions"),
    _core.Recall: ("trigger", "blocks", "span"),
    _core.Placement: ("page", "first_token", "tokens", "position", "details"),
    _core.PageRef: ("block", "page", "stream", "begin", "end", "sink_tokens"),
}


def offers_of(
    pages: list[_core.PageRef],
    talk: list[_core.PageRef],
    kept: dict[int, list[int]],
    details: list[tuple[int, int, int, int, int]],
) -> list[_core.Offer]:
    """Return offers of all of these: `kept` has a block's chosen tokens, `details` a block's place and slots."""
    offers = [_core.Offer(page, "conversation") for page in talk]
    for block, stream, begin, end, slots in details:
        offers.append(_core.Offer(_core.PageRef(block, 0, stream, begin, end), "details", slots=slots))
    for page in pages:
        kind, tokens = ("chosen", kept[page.block]) if page.block in kept else ("page", [])
        offers.append(_core.Offer(page, kind, tokens=tokens))
    return offers


class Host:
    """Does what a frame does for a Memory OS, by a script, and notes all that it decides."""

    def __init__(self, name: str) -> None:
        self.rng = Random(name)
        fields = BASE | CONFIGS[STREAMS[name]]
        self.config = _core.MemoryOsConfig(**fields)
        self.os = _core.MemoryOs(self.config)
        self.other = fields.get("stream", 0) + 1  # another stream of the memory
        self.blocks: list[tuple[int, int, int, int]] = []  # id, first token, one past the last, sinks
        self.ids = 0
        self.said: list[Any] = []
        self.events: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        """Run the script to its end. In the last steps nothing is archived."""
        steps = {"read": 4, "prompt": 3, "generate": 5, "signal": 3, "end_of_text": 1, "recall": 2, "clear": 1}
        steps |= {"branch": 2, "resume": 1, "resume_earlier": 1, "forget": 1}
        for at in range(STEPS):
            if at == STEPS - 8:
                self.os.stop_archiving()
                self.note("stop_archiving", None)
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            if at < STEPS - 8 or not step.startswith("resume"):
                getattr(self, step)()
        self.take_events()

    # --- notes

    def note(self, step: str, decided: Any) -> None:
        """Note what a step decided, and where the Memory OS then stands."""
        stands = [getattr(self.os, name) for name in _TOLD]
        self.said.append([step, plain(decided), plain(stands), self.os.room(), self.os.next_position()])

    def take_events(self) -> None:
        events = self.os.trace()
        self.said.append(events)
        for event in events:
            self.events[event["what"]] += 1
            for more in ("trigger", "ended_by"):
                if event[more] is not None:
                    self.events[f"{event['what']}: {event[more]}"] += 1

    # --- doing what was decided

    def do(self, step: str, actions: Sequence[Any]) -> None:
        """Answer actions in order: archive, choose, recall."""
        asked = []
        for action in actions:
            if isinstance(action, _core.Archive):
                self.ids += 1
                self.blocks.append((self.ids, action.begin, action.end, action.sink_tokens))
            elif isinstance(action, _core.Trim):
                free = [token for begin, end in action.runs for token in range(begin, end)]
                self.os.choose(
                    self.rng.sample(free, self.rng.choice([action.tokens, self.rng.randint(0, action.tokens)]))
                )
            elif isinstance(action, _core.Recall):
                asked.append(action)
        self.note(step, actions)
        for action in asked:
            newest = action.trigger == "recent"
            self.recall(self.pages(self.blocks[-action.blocks :]) if newest else None)

    def pages(self, blocks: Sequence[tuple[int, int, int, int]]) -> list[_core.PageRef]:
        """Return all pages of these blocks."""
        return [
            _core.PageRef(block, page, self.os.stream, at, min(at + PAGE, end), max(0, min(PAGE, begin + sinks - at)))
            for block, begin, end, sinks in blocks
            for page, at in enumerate(range(begin, end, PAGE))
        ]

    # --- steps

    def observe(self, origin: str, tokens: int, *, marks: bool = False) -> None:
        tokens = min(tokens, self.os.room())
        places = sorted(self.rng.sample(range(tokens + 1), self.rng.randint(0, min(2, tokens)))) if marks else []
        boundaries = [(place, self.rng.choice(_KINDS)) for place in places]
        topics = [self.rng.randint(0, 8) / 8 for _ in range(tokens)] if marks and self.config.topic_lookahead else []
        stones = [self.rng.randint(0, 8) / 8 for _ in self.os.anchor_zone["tombstones"]]
        given: dict[str, Any] = {"topic_probabilities": topics} if topics else {}
        self.do(f"observe {origin}", self.os.observe(tokens, origin, boundaries, tombstone_scores=stones, **given))

    def read(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self.observe("read", self.rng.randint(1, 40), marks=True)

    def prompt(self) -> None:
        self.do("begin_prompt", self.os.begin_prompt())
        self.observe("prompt", self.rng.randint(1, 20), marks=self.rng.random() < 0.5)
        if self.rng.random() < 0.7:
            self.generate()

    def generate(self) -> None:
        for _ in range(self.rng.randint(1, 24)):
            self.observe("generated", self.rng.choice([1, 1, 1, 2]))

    def signal(self) -> None:
        self.do("signal", self.os.raise_signal(self.rng.choice(["summarize", "retrieve"])))

    def end_of_text(self) -> None:
        self.do("end_of_text", self.os.end_of_text())

    def recall(self, pages: list[_core.PageRef] | None = None) -> None:
        """Recall these pages, or drawn ones, some of another stream, beside the conversation's."""
        mine = self.pages(self.blocks)
        if pages is None:
            drawn = self.rng.sample(mine, min(len(mine), self.rng.randint(0, 7)))
            there = [
                _core.PageRef(900, page, self.other, page * PAGE, page * PAGE + PAGE, 3 * (page == 0))
                for page in range(3)
            ]
            pages = [*drawn, *self.rng.sample(there, self.rng.randint(0, 2)), *drawn[:1]]
        begin, end = self.os.conversation
        kept: dict[int, list[int]] = {}
        details = []
        if self.config.kept_tokens and self.rng.random() < 0.5:
            for block, first, last, _ in self.rng.sample(self.blocks, min(len(self.blocks), 3)):
                kept[block] = sorted(self.rng.sample(range(first, last), min(last - first, 5)))
        if self.rng.random() < 0.3:
            for block, first, last, _ in self.rng.sample(self.blocks, min(len(self.blocks), 4)):
                details.append((block, self.os.stream, first, last, self.rng.randint(1, 9)))
        talk = [page for page in mine if begin <= page.begin < end]
        self.note("recall", self.os.recall(offers_of(pages, talk, kept, details)))

    def clear(self) -> None:
        self.os.clear_recalled()
        self.note("clear", None)

    def branch(self) -> None:
        """Ask in a branch, and sometimes in a branch of that. Afterwards all is as it was, but for the trace."""
        before, blocks, ids = self.os, list(self.blocks), self.ids
        self.os = before.branch()
        self.prompt()
        if self.rng.random() < 0.3:
            self.branch()
        self.recall()
        if self.rng.random() < 0.7:
            before.take_trace(self.os)
        self.os, self.blocks, self.ids = before, blocks, ids
        self.note("branch left", None)

    def forget(self) -> None:
        if len(self.blocks) > 12:
            self.blocks.pop(self.rng.randrange(len(self.blocks) - 3))

    def resume(self) -> None:
        """Go on in a new frame with all that the old one noted, or with a part of it, or with what cannot be."""
        self.end_of_text()
        self.take_events()
        noted: dict[str, Any] = {"rolling_from": self.os.rolling[0], "read_until": self.os.read_until}
        noted |= {name: getattr(self.os, name) for name in ("anchor_zone", "kept", "recall_counts", "cooldown_until")}
        if self.rng.random() < 0.4:
            del noted[self.rng.choice(list(noted))]
        if self.rng.random() < 0.2:
            noted |= {"rolling_from": self.os.stream_end + 9, "cooldown_until": -5, "read_until": 10**12}
            counts = {"since_recent": 999, "since_periodic": 999, "since_restored": 999, "signal_waits": True}
            noted["recall_counts"] = counts
        end = self.os.stream_end
        self.os = _core.MemoryOs(self.config)
        self.note("resume", self.os.resume(end, self.pages(self.blocks), **noted))

    def resume_earlier(self) -> None:
        """Resume before the end of the archive, and feed the rest again."""
        self.end_of_text()
        self.take_events()
        end, start = self.os.stream_end, self.rng.choice([block[2] for block in self.blocks[-4:]] or [0])
        known: dict[str, Any] = (
            {"kept": self.os.kept, "anchor_zone": self.os.anchor_zone} if self.rng.random() < 0.5 else {}
        )
        self.os = _core.MemoryOs(self.config)
        self.note("resume", self.os.resume(start, self.pages(self.blocks), archived_until=end, **known))
        while self.os.stream_end < end:
            self.observe("read", self.rng.randint(1, min(30, end - self.os.stream_end)))


def plain(said: Any) -> Any:
    """Return it as lists of plain numbers and words."""
    if type(said) in _OF_ACTION:
        return [type(said).__name__, *(plain(getattr(said, name)) for name in _OF_ACTION[type(said)])]
    return [plain(one) for one in said] if isinstance(said, list | tuple) else said


def decisions(name: str) -> dict[str, Any]:
    """Return a digest of all that a stream's Memory OS decided, and how often what was decided."""
    host = Host(name)
    host.run()
    digest = hashlib.sha256(json.dumps(host.said).encode()).hexdigest()
    return {"sha256": digest, "events": dict(sorted(host.events.items()))}


if __name__ == "__main__":
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(decisions(name))}" for name in STREAMS) + "\n}")
