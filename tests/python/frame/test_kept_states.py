"""A frame that keeps tokens, whatever is done with it and in whatever order: who stands in it, and with which keys."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import everlong
import everlong._core as _core
from everlong import ops
from everlong.parts.trimmer import Trimmer
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.examples import examples

SMALLER = SMALL.changed(
    frame={"tokens": 512, "recalled_tokens": 96, "rolling_tokens": 64, "evict_tokens": 16, "chunk_tokens": 48},
    archive={"block_tokens": 32, "least_tokens": 4},
    search={"index": ("lexical",)},
)


class KeptStates(RuleBasedStateMachine):
    """One memory in a folder and the frame before it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="everlong-kept-"))
        self.model, self.tokenizer = tiny_model(), byte_tokenizer()
        self.archived: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # k, v [L, Hkv, D] un-rotated, by token

    @initialize(
        kept=st.integers(32, 60),
        share=st.integers(1, 6),
        rungs=st.integers(1, 4),
        anchors=st.sampled_from([0, 5]),
        mode=st.sampled_from(["kv", "auto", "text", "kept"]),
        trimmer=st.sampled_from(["newest", "random", "key_norm"]),
    )
    def create(self, kept: int, share: int, rungs: int, anchors: int, mode: str, trimmer: Any) -> None:
        self.config = SMALLER.changed(
            frame={
                "kept_tokens": kept,
                "kept_share": share,
                "kept_rungs": rungs,
                "anchor_tokens": anchors,
                "anchors": 3,
                "tombstones": anchors // 2,
            },
            answer={"recall_mode": mode},
            parts=() if trimmer == "newest" else (Trimmer(by=trimmer),),
        )
        self.open()

    def open(self) -> None:
        self.recalled: list[int] = []
        self.mm = everlong.MemoryModel(self.model, self.tokenizer, self.root / "m", config=self.config)

    @rule(tokens=st.integers(1, 90), seed=st.integers(0, 9), origin=st.sampled_from(["read", "prompt", "generated"]))
    def extend(self, tokens: int, seed: int, origin: str) -> None:
        self.mm.frame.extend(self.mm.encode(random_text(tokens, seed=seed)), origin)

    @rule()
    def end_of_text(self) -> None:
        self.mm.frame.end_of_text()

    @precondition(lambda self: self.mm.memory.core.blocks.pages())
    @rule(data=st.data(), asked=st.booleans())
    def recall(self, data: st.DataObject, asked: bool) -> None:
        pages = self.mm.memory.core.blocks.pages()
        found = data.draw(st.lists(st.sampled_from(range(len(pages))), max_size=4, unique=True))
        if asked:
            self.mm.frame.begin_prompt()
        self.mm.frame.recall([pages[at] for at in found])
        self.recalled = self.newest_recall()

    def newest_recall(self) -> list[int]:
        """Tokens of the stream that it brought."""
        *_, restore = (event for event in self.mm.frame.os.trace() if event["what"] == "restore")
        return [token for run in restore["restored"] for token in range(run["begin"], run["end"])]

    @rule()
    def clear(self) -> None:
        self.mm.frame.clear_recalled()
        self.recalled = []

    @rule(tokens=st.integers(1, 200), seed=st.integers(0, 9))
    def branch(self, tokens: int, seed: int) -> None:
        cache, zone = self.mm.frame.cache, self.mm.frame.os.kept
        before = cache.k[:, :, cache.begin : cache.end].clone()
        with self.mm.frame.branch():
            self.extend(tokens, seed, "generated")
            self.require_once(self.recalled)
            self.mm.frame.recall(self.mm.memory.core.blocks.pages()[-3:])
            self.require_once(self.newest_recall())
        assert self.mm.frame.os.kept == zone
        assert torch.equal(cache.k[:, :, cache.begin : cache.end], before)

    @rule(forgets=st.booleans())
    def reopen(self, forgets: bool) -> None:
        self.mm.frame.end_of_text()
        zone, masters = self.mm.frame.os.kept, self.mm.frame.cache.kept.in_order()
        self.mm.close()
        blocks: list[int] = []
        if forgets:
            with everlong.Memory.open(self.root / "m") as memory:
                blocks = [block.id for block in memory.blocks()][:1]
                memory.forget(blocks)
        self.open()
        if not blocks:
            assert self.mm.frame.os.kept["blocks"] == zone["blocks"]
            assert torch.equal(self.mm.frame.cache.kept.in_order().k, masters.k)
            assert torch.equal(self.mm.frame.cache.kept.in_order().v, masters.v)

    @invariant()
    def stands_once(self) -> None:
        if hasattr(self, "mm"):
            self.require_once(self.recalled)

    def require_once(self, recalled: Sequence[int]) -> None:
        os, cache = self.mm.frame.os, self.mm.frame.cache
        anchors = [token for anchor in os.anchor_zone["anchors"] for token in range(*anchor)]
        frame = [*range(os.sinks), *anchors, *os.kept_shown, *recalled, *range(*os.rolling)]
        assert len(frame) == len(set(frame))
        assert len(frame) + len(os.anchor_zone["tombstones"]) == cache.length
        assert cache.kept.tokens == set(os.kept_held)
        assert len(os.kept_held) <= self.config.frame.kept_tokens
        assert cache.kept_visible == tuple(os.kept_shown)

    @invariant()
    def has_the_keys_of_the_archive(self) -> None:
        """Up to the rounding of fp32; and its slots are these, turned to where they stand."""
        if not hasattr(self, "mm"):
            return
        os, cache = self.mm.frame.os, self.mm.frame.cache
        rows = cache.kept.in_order()
        for at, token in enumerate(os.kept_held):
            if token not in self.archived:
                self.archived |= self.decoded(token)
            k, v = self.archived[token]
            assert (rows.k[:, :, at] - k).abs().max() <= 1e-4
            assert (rows.v[:, :, at] - v).abs().max() <= 1e-5
        shown = [os.kept_held.index(token) for token in os.kept_shown]
        positions = torch.arange(len(shown)) + os.kept_position
        if shown:
            rope = cache.buffers._rope
            k, v = ops.rerotate_kv(rows.k[:, :, shown], rows.v[:, :, shown], positions, rope.inv_freq)
            last = cache.rolling_slot - cache.recalled
            assert torch.equal(cache.k[:, :, last - len(shown) : last], k)
            assert torch.equal(cache.v[:, :, last - len(shown) : last], v)

    def decoded(self, token: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Of the page that has this token."""
        core: _core.Memory = self.mm.memory.core
        (page,) = core.blocks.pages_of(0, token, token + 1)
        count = page.end - page.begin
        out = np.zeros(core.page_bytes(count), dtype=np.uint8)
        core.blocks.read_pages([page], out)
        served = self.mm.frame.served
        shape = (
            served.layers,
            served.kv_heads,
            count,
            served.head_dim,
            self.config.archive.page_tokens,
            "fp32",
            torch.float32,
        )
        k, v = ops.decode_kv(torch.from_numpy(out), *shape)
        return {page.begin + at: (k[:, :, at], v[:, :, at]) for at in range(count)}

    def teardown(self) -> None:
        if hasattr(self, "mm"):
            self.mm.close()
        shutil.rmtree(self.root, ignore_errors=True)


TestKeptStates = KeptStates.TestCase
TestKeptStates.settings = examples(12, stateful_step_count=14, suppress_health_check=list(HealthCheck))
