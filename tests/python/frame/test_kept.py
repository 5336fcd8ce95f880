"""The zone "kept" against plain transformers: what was trimmed is there and masked, what moved has its position named.

The reference is logical trimming. It keeps every token's keys and values, hands all of them to the model in each
forward, and a 4D mask hides those that are trimmed; positions are the compact ones of the frame.
"""

from __future__ import annotations

import dataclasses
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
import everlong.frame.frame
from everlong.frame.kept_tokens import best_tokens, token_scores
from everlong.frame.part import Needs, Span
from everlong.frame.parts import Parts
from everlong.models.releases import cache_argument
from everlong.parts.trimmer import Trimmer
from everlong.parts.trimmer.runtime import HeadScorer, KeyNormScorer, RandomScorer
from everlong.retrieval.older_kept import OlderKept
from support import TOLERANCE, byte_tokenizer, next_logits, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS, NEWEST
from support.processes import killed, tell_and_wait

Array = np.ndarray[Any, np.dtype[np.float64]]
CHUNK = 48
SHAPES = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")]


class Masked:
    """Logical trimming in fp64: which tokens the model may see, and at which position each of them stands.

    It is told which tokens were chosen, the best first, and knows the ladder by its definition.
    """

    def __init__(self, mm: everlong.MemoryModel) -> None:
        self.model, self.served, self.config = mm.model, mm.frame.served, mm.config
        layers = range(mm.model.config.num_hidden_layers)
        self.keys: dict[int, list[Array]] = {index: [] for index in layers}  # by token: [Hkv, D], un-rotated
        self.values: dict[int, list[Array]] = {index: [] for index in layers}
        self.left = self.config.frame.sink_tokens  # tokens before it have left, but for the sinks and what is kept
        self.evicted = False
        self.blocks: list[tuple[int, list[int], int]] = []  # length, chosen tokens (best first), rung
        self.recalled: list[int] = []

    @property
    def tokens(self) -> int:
        return len(self.keys[0])

    def frequencies(self, index: int) -> Array:
        rotary = self.model.model.rotary_emb
        types = getattr(self.model.config, "layer_types", None)
        name = f"{types[index]}_inv_freq" if types and hasattr(rotary, f"{types[index]}_inv_freq") else "inv_freq"
        return np.asarray(getattr(rotary, name).double())

    def rotate(self, index: int, keys: Array, positions: Array, sign: int = 1) -> Array:
        """keys [n, Hkv, D] at positions [n], halves paired; sign -1 undoes it."""
        angles = positions[:, None] * self.frequencies(index)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        half = cos.shape[-1]
        first, second = keys[..., :half], keys[..., half : 2 * half]
        out = keys.copy()
        out[..., :half] = first * cos - sign * second * sin
        out[..., half : 2 * half] = second * cos + sign * first * sin
        m = self.served.rope.attention_scaling
        out[..., : 2 * half] *= m if sign > 0 else 1 / m
        return out

    def kept(self) -> list[int]:
        """Ladder by its definition: over all that was chosen and left, oldest of the first rung over its share."""
        return sorted(token for _, tokens, _ in self.blocks for token in tokens if token < self.left)

    def trim_again(self) -> None:
        c = self.config.frame
        while len(self.kept()) > c.kept_tokens:
            held = [
                sum(t < self.left for _, ts, r in self.blocks if r == rung for t in ts) for rung in range(c.kept_rungs)
            ]
            rung = next(rung for rung in range(c.kept_rungs) if held[rung] > c.kept_tokens / c.kept_rungs)
            at = next(i for i, block in enumerate(self.blocks) if block[2] == rung)
            length, tokens, _ = self.blocks[at]
            if rung + 1 == c.kept_rungs:
                del self.blocks[at]
            else:
                self.blocks[at] = (length, tokens[: -(-length // (c.kept_share << rung + 1))], rung + 1)

    def positions(self) -> dict[int, int]:
        """Of every token that may be seen, in the frame."""
        c = self.config.frame
        if not self.evicted:
            return {token: token for token in range(self.tokens)}
        at = {token: token for token in range(c.sink_tokens)}
        shown = [token for token in self.kept() if token not in self.recalled]
        at |= {token: c.sink_tokens + i for i, token in enumerate(shown)}
        rolling = c.sink_tokens + c.kept_tokens + c.recalled_tokens
        at |= {token: rolling - len(self.recalled) + i for i, token in enumerate(self.recalled)}
        return at | {token: rolling + token - self.left for token in range(self.left, self.tokens)}

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] of what comes next; the caller trims and evicts."""
        at, total, n = self.positions(), self.tokens, len(ids)
        rolling = self.config.frame.sink_tokens + self.config.frame.kept_tokens + self.config.frame.recalled_tokens
        next_position = rolling + total - self.left if self.evicted else total
        cache = DynamicCache()  # of full layers all, whatever they are: the masks are ours
        # A layer with a window sees the newest tokens, and these stand where the stream goes on from.
        plain = np.arange(total, dtype=np.float64) - total + next_position
        seen = np.array([at.get(token, 0) for token in range(total)], dtype=np.float64)
        for index, keys in self.keys.items():
            if total == 0:
                continue
            where = seen if index in self.served.archived else plain
            rotated = self.rotate(index, np.stack(keys), where)
            k, v = (torch.from_numpy(x).float().transpose(0, 1)[None] for x in (rotated, np.stack(self.values[index])))
            cache.update(k.contiguous(), v.contiguous(), index)
        causal = torch.ones(n, n).tril().bool()
        visible = torch.tensor([token in at for token in range(total)], dtype=torch.bool)
        full = torch.cat([visible.expand(n, total), causal], dim=1)
        masks: Any = self._additive(full)
        window = getattr(self.model.config, "sliding_window", None)
        if self.served.own_layers() and window:
            behind = torch.arange(total, total + n)[:, None] - torch.arange(total + n)[None]
            masks = {"full_attention": masks, "sliding_attention": self._additive((behind >= 0) & (behind < window))}
        places = torch.arange(next_position, next_position + n)[None]
        with torch.no_grad():
            logits: torch.Tensor = self.model(
                input_ids=ids[None], position_ids=places, attention_mask=masks, **{cache_argument(self.model): cache}
            ).logits[0]
        for index in self.keys:
            k, v = (
                x[0, :, -n:].transpose(0, 1).double().numpy()
                for x in (cache.layers[index].keys, cache.layers[index].values)
            )
            self.keys[index] += list(self.rotate(index, k, places[0].double().numpy(), sign=-1))
            self.values[index] += list(v)
        return logits

    @staticmethod
    def _additive(mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]

    def leave(self) -> None:
        """What is over leaves, all of it archived."""
        over = self.tokens - self.left - self.config.frame.rolling_tokens
        if over >= self.config.frame.evict_tokens:
            self.left += over
            self.evicted = True
            self.trim_again()


class Choices:
    """A scorer beside the frame's own: notes what was chosen of each block."""

    def __init__(self, mm: everlong.MemoryModel) -> None:
        self.os = mm.frame.os
        self.blocks: list[tuple[int, list[int], int]] = []
        self._known: set[int] = set()

    def new(self) -> list[tuple[int, list[int], int]]:
        """Of blocks closed since the last call, not trimmed again yet: length, tokens, rung 0."""
        found = [(b, e, t) for b, e, rung, t in self.os.kept["blocks"] if b not in self._known and rung == 0]
        self._known |= {b for b, _, _ in found}
        return [(e - b, list(t), 0) for b, e, t in found]


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_physical_trimming_is_logical_trimming(kind: str, rope: str) -> None:
    """Over evictions, later trims and drops, a recall of a kept block and what is read with it in place."""
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=KEPT_TOKENS) as mm:
        masked, choices = Masked(mm), Choices(mm)
        ids = mm.encode(random_text(1440))
        worst = 0.0
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            got, expected = mm.frame.extend(chunk, "read", logits=True), masked.read(chunk)
            worst = max(worst, float((got - expected).abs().max()))
            masked.blocks += choices.new()
            masked.leave()
            assert mm.frame.os.kept_held == masked.kept(), first
            assert mm.frame.zones.resident_tokens == len(masked.positions())
            if first == 960:
                pages = mm.memory.core.blocks.pages_of(0, 700, 830)
                held = set(masked.kept())
                mm.frame.recall(pages)
                masked.recalled = [
                    token for page in pages for token in range(page.begin, page.end) if token < masked.left
                ]
                assert held & set(masked.recalled)  # they come back with their page, and are hidden in the zone
                assert mm.frame.zones.resident_tokens == len(masked.positions())
        assert worst <= TOLERANCE
        events = [event["what"] for event in mm.trace()]
        assert events.count("trim again") >= 4
        assert events.count("kept dropped") >= 2
        assert len(mm.frame.os.kept_held) > KEPT_TOKENS.frame.kept_tokens // 2


def read_parts(mm: everlong.MemoryModel, parts: int = 4, first: int = 0) -> None:
    for part in range(first, first + parts):
        mm.read(random_text(300, seed=part), source=f"part {part}")


def kept_slots(mm: everlong.MemoryModel) -> tuple[torch.Tensor, torch.Tensor]:
    """k, v of the zone in the frame."""
    cache = mm.frame.cache
    last = cache.rolling_slot - cache.recalled
    own = slice(last - len(cache.kept_visible), last)
    return cache.k[:, :, own].clone(), cache.v[:, :, own].clone()


def test_the_zone_changes_what_is_predicted() -> None:
    """The control of the test above, and who chooses matters."""
    logits = []
    for config in (
        KEPT_TOKENS,
        KEPT_TOKENS.changed(frame={"kept_tokens": 0}),
        NEWEST,
        KEPT_TOKENS.with_part(Trimmer(by="random")),
    ):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
            read_parts(mm)
            logits.append(next_logits(mm, random_text(30, seed=9)))
    for other in logits[1:]:
        assert (logits[0] - other).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("mode", ["kv", "auto", "text"])
def test_a_recall_brings_no_token_twice_and_its_pages_whole(mode: str) -> None:
    config = KEPT_TOKENS.changed(answer={"recall_mode": mode})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        read_parts(mm)
        os, before = mm.frame.os, kept_slots(mm)
        pages = mm.memory.core.blocks.pages_of(0, os.kept_held[0] - 10, os.kept_held[0] + 150)
        assert set(os.kept_held) & {token for page in pages for token in range(page.begin, page.end)}
        mm.frame.recall(pages)
        *_, restore = (event for event in mm.trace() if event["what"] == "restore")
        restored = [token for run in restore["restored"] for token in range(run["begin"], run["end"])]
        assert restored == [token for page in pages for token in range(page.begin, page.end)][-len(restored) :]
        frame = [*range(os.sinks), *os.kept_shown, *restored, *range(*os.rolling)]
        assert len(frame) == len(set(frame)) == mm.frame.zones.resident_tokens
        assert set(os.kept_held) - set(os.kept_shown) == set(os.kept_held) & set(restored) != set()
        mm.frame.clear_recalled()
        assert os.kept_shown == os.kept_held
        for had, has in zip(before, kept_slots(mm), strict=True):
            assert torch.equal(had, has)


@pytest.mark.parametrize(
    ("kind", "rope"), [*SHAPES, ("smollm3", "default"), ("glm", "partial"), ("qwen3_next", "partial")]
)
def test_branch_undoes_the_zone(kind: str, rope: str) -> None:
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=KEPT_TOKENS) as mm:
        read_parts(mm)
        cache, zone = mm.frame.cache, mm.frame.os.kept
        masters = cache.kept.in_order()
        before = (cache.begin, cache.end, cache.k[:, :, cache.begin : cache.end].clone())
        first = mm.generate(random_text(300, seed=8), max_new_tokens=70, remember=False)
        mm.perplexity(random_text(700, seed=9), policy="recent")
        with mm.frame.branch():
            mm.frame.extend(mm.encode(random_text(500, seed=10)), "read")
            assert mm.frame.os.kept_held != [token for *_, tokens in zone["blocks"] for token in sorted(tokens)]
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, cache.begin : cache.end], before[2])
        assert mm.frame.os.kept == zone
        for had, has in zip(vars(masters).values(), vars(cache.kept.in_order()).values(), strict=True):
            assert torch.equal(had, has)
        again = mm.generate(random_text(300, seed=8), max_new_tokens=70, remember=False)
        assert again.text == first.text


@pytest.mark.parametrize(("kind", "rope"), [*SHAPES, ("smollm3", "default")])
def test_a_memory_reopened_goes_on_with_the_same_zone_bit_for_bit(kind: str, rope: str, tmp_path: Path) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    reopened = 0
    config = KEPT_TOKENS.with_part(Trimmer(by="random"))  # no rounding makes it choose otherwise
    with everlong.MemoryModel(model, tokenizer, config=config) as through:
        for part in range(7):
            with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=config) as mm:
                assert mm.frame.os.kept["blocks"] == through.frame.os.kept["blocks"]
                assert mm.frame.os.rolling == through.frame.os.rolling
                assert mm.frame.zones.resident_tokens == through.frame.zones.resident_tokens
                for had, has in zip(kept_slots(through), kept_slots(mm), strict=True):
                    assert torch.equal(had, has)
                    reopened += has.shape[2]
                read_parts(mm, 1, part)
                read_parts(through, 1, part)
                mm.frame.end_of_text()
                through.frame.end_of_text()
                # Rolling came out of the archive, the other one never went there: what was made since differs by fp32.
                assert mm.frame.os.kept["until"] == through.frame.os.kept["until"]
            # So that what comes is compared bit for bit again.
            through.frame.cache.kept.write(sorted(mm.frame.cache.kept.tokens), mm.frame.cache.kept.in_order())
            through.frame.cache.lay_front()
    assert reopened > 6 * 2 * KEPT_TOKENS.frame.kept_tokens // 2


@pytest.mark.parametrize("how", ["damaged", "lost", "smaller", "off", "forgotten"])
def test_of_a_zone_only_what_is_there_and_true_stays(how: str, tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=KEPT_TOKENS) as mm:
        read_parts(mm)
        held, masters = mm.frame.os.kept_held, mm.frame.cache.kept.in_order()
    config, file = KEPT_TOKENS, tmp_path / "m" / "files" / "frame.safetensors"
    if how == "damaged":
        state = file.read_bytes()
        file.write_bytes(state[:-1] + bytes([state[-1] ^ 1]))
    elif how == "lost":
        file.unlink()
    elif how == "smaller":
        config = KEPT_TOKENS.changed(frame={"kept_tokens": 20})
    elif how == "off":
        config = KEPT_TOKENS.changed(frame={"kept_tokens": 0})
    else:
        with everlong.Memory.open(tmp_path / "m") as memory:
            gone = [block.span for block in memory.blocks("part 2")]
            memory.forget(source="part 2")
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=config) as mm:
        os, kept = mm.frame.os, mm.frame.cache.kept
        if how == "smaller":  # what is over was trimmed again
            assert 0 < len(os.kept_held) <= 20
            assert set(os.kept_held) < set(held)
            at = [held.index(token) for token in os.kept_held]
            assert torch.equal(kept.in_order().k, masters.k[:, :, at])
        elif how == "forgotten":
            left = [token for token in held if not any(begin <= token < end for begin, end in gone)]
            assert os.kept_held == left
            assert 0 < len(left) < len(held)
            at = [held.index(token) for token in left]
            assert torch.equal(kept.in_order().k, masters.k[:, :, at])
        else:
            assert os.kept_held == []
        assert sorted(kept.tokens) == os.kept_held
        mm.read(random_text(600, seed=6))
        assert (len(os.kept_held) > 0) == (how != "off")


class Waits:
    """Chooses at random, and waits for ever once it is asked about a block: the process is then killed."""

    def __init__(self, mm: everlong.MemoryModel, block: int, pipe: Connection) -> None:
        self._mm, self._block, self._pipe = mm, block, pipe
        self._random = RandomScorer()

    def score_tokens(self, block: Span) -> torch.Tensor:
        if self._mm.frame.archive.blocks == self._block:
            self._mm.memory.flush()
            tell_and_wait(self._pipe, block.begin)
        return self._random.score_tokens(block)


KILLED = KEPT_TOKENS.with_part(Trimmer(by="random"))


def read_and_trim(folder: Path, block: int, apart: int, pipe: Connection) -> None:
    everlong.frame.checkpointing.CHECKPOINT_TOKENS = apart
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=KILLED) as mm:
        mm.frame.stream.parts = Parts({"waits": Waits(mm, block, pipe)})
        mm.read(random_text(3000))


@pytest.mark.parametrize("block", [1, 9, 21])
def test_a_process_killed_while_trimming_leaves_the_zone_of_one_that_lived(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 300)
    begin = killed(read_and_trim, tmp_path / "killed", block, 300)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "killed", config=KILLED) as mm:
        end = mm.stream_tokens
        assert end == begin  # the block that was being trimmed is not in the archive yet, all before it are
        assert mm.memory.verify().damage == ()
        assert mm.frame.os.kept["blocks"][-1][1] == end
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=KILLED) as lived:
            lived.frame.extend(mm.encode(random_text(3000)[:end]), "read")
            lived.frame.end_of_text()
            assert mm.frame.os.kept == lived.frame.os.kept
            ours, theirs = (frame.cache.kept.in_order() for frame in (mm.frame, lived.frame))
            torch.testing.assert_close(ours.k, theirs.k, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ours.v, theirs.v, rtol=1e-4, atol=1e-4)
            assert (len(mm.frame.os.kept_held) > 0) == (block > 1)


def test_a_scorer_that_fails_keeps_nothing_and_the_frame_goes_on() -> None:
    class Fails:
        def score_tokens(self, block: Span) -> torch.Tensor:
            raise RuntimeError("no score")

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=KEPT_TOKENS) as mm:
        own, mm.frame.stream.parts = mm.frame.parts, Parts({"fails": Fails()})
        mm.frame.extend(mm.encode(random_text(100)), "read")
        with pytest.raises(RuntimeError, match="no score"):
            mm.frame.end_of_text()
        assert not mm.frame.steps.broken
        assert mm.frame.archive.blocks == 1
        mm.frame.stream.parts = own
        read_parts(mm)
        assert min(mm.frame.os.kept_held) >= 100


def test_a_scorer_gets_the_states_of_the_block_that_ended() -> None:
    """Those of a plain forward, of every token; and its keys, un-rotated."""
    told: list[Span] = []

    class Last:
        needs = Needs(hidden_layers=(1, 3))

        def score_tokens(self, block: Span) -> torch.Tensor:
            rows = block.kv()
            told.append(dataclasses.replace(block, kv=lambda: rows))
            return torch.full((len(block.ids),), torch.nan)

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=KEPT_TOKENS) as mm:
        mm.frame.stream.parts = Parts({"last": Last()})
        ids = mm.encode(random_text(250))
        mm.frame.extend(ids, "read")
        mm.frame.end_of_text()
        assert [block.begin for block in told] == [0, 128]
        with torch.no_grad():
            out = mm.model(input_ids=ids[None], output_hidden_states=True, use_cache=True)
        masked = Masked(mm)
        for block in told:
            own = slice(block.begin, block.begin + len(block.ids))
            assert torch.equal(block.ids, ids[own])
            for layer in (1, 3):
                torch.testing.assert_close(block.hidden[layer], out.hidden_states[layer][0, own], rtol=1e-4, atol=1e-4)
            for layer in range(3):
                rotated = out.past_key_values.layers[layer].keys[0, :, own].transpose(0, 1).double().numpy()
                plain = masked.rotate(layer, rotated, np.arange(own.start, own.stop, dtype=np.float64), sign=-1)
                assert np.abs(block.kv()[0][layer].transpose(0, 1).numpy() - plain).max() <= 1e-4
        # Where all score alike, and be it nothing, the newest stay.
        (_, _, _, chosen), (_, _, _, newest) = mm.frame.os.kept["blocks"]
        assert (chosen, newest) == (list(range(127, 111, -1)), list(range(249, 233, -1)))


def test_a_head_on_states_scores_them_side_by_side() -> None:
    hidden = {1: torch.rand(5, 4).bfloat16(), 3: torch.rand(5, 4).bfloat16()}
    block = Span(0, torch.zeros(5, dtype=torch.int64), hidden, lambda: (torch.zeros(0), torch.zeros(0)))
    weight = torch.rand(8)
    got = HeadScorer((3, 1), lambda states: states @ weight).score_tokens(block)
    torch.testing.assert_close(got, hidden[3].float() @ weight[:4] + hidden[1].float() @ weight[4:])


@pytest.mark.parametrize(("kind", "rope"), [*SHAPES, ("smollm3", "default")])
def test_a_payload_of_chosen_tokens_comes_back_in_place_of_its_block(kind: str, rope: str) -> None:
    """And is read over; what the zone has of them stays there."""
    config = KEPT_TOKENS.changed(frame={"kept_share": 2, "kept_tokens": 64}, answer={"recall_mode": "kept"})
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config) as mm:
        masked, choices = Masked(mm), Choices(mm)
        ids = mm.encode(random_text(1152))
        chosen: dict[int, list[int]] = {}
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            got, expected = mm.frame.extend(chunk, "read", logits=True), masked.read(chunk)
            if kind != "smollm3":  # whose layers without positions Masked does not know
                assert (got - expected).abs().max() <= TOLERANCE, first
            closed = choices.new()
            chosen |= {min(tokens) // 128: tokens for _, tokens, _ in closed}
            masked.blocks += closed
            masked.leave()
            if first in (912, 1008):
                # A page of a block of which the zone holds some, and one of a block that has left it.
                pages = [mm.memory.core.blocks.pages_of(0, at, at + 1)[0] for at in (mm.frame.os.kept_held[-1], 40)]
                mm.frame.recall(pages)
                held = masked.kept()
                blocks = [page.begin // 128 for page in pages]
                assert set(held) & set(chosen[blocks[0]])
                assert not set(held) & set(chosen[blocks[1]])
                back = [token for block in blocks for token in sorted(chosen[block])]
                masked.recalled = [token for token in back if token < masked.left and token not in held]
                assert mm.frame.os.kept_shown == held
                assert mm.frame.zones.resident_tokens == len(masked.positions())
                assert len(masked.recalled) > 60
        for block in mm.memory.blocks():
            tensors = mm.memory.core.blocks.tensors(block.id)
            begin, end = block.span
            assert (tensors["kept.tokens"] + begin).tolist() == chosen[begin // 128]
            assert len(tensors["kept.kv"]) * 2 == mm.frame.zones.pages.block_bytes(end - begin)


def test_a_page_of_the_conversation_comes_whole_where_its_block_comes_as_chosen_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = KEPT_TOKENS.changed(frame={"kept_share": 2, "kept_tokens": 64}, answer={"recall_mode": "kept"})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        masked, choices = Masked(mm), Choices(mm)
        ids = mm.encode(random_text(1152))
        chosen: dict[int, list[int]] = {}
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            got, expected = mm.frame.extend(chunk, "read", logits=True), masked.read(chunk)
            assert (got - expected).abs().max() <= TOLERANCE, first
            closed = choices.new()
            chosen |= {min(tokens) // 128: tokens for _, tokens, _ in closed}
            masked.blocks += closed
            masked.leave()
            if first == 912:
                (said,), (found,) = (mm.memory.core.blocks.pages_of(0, at, at + 1) for at in (130, 200))
                assert said.block == found.block
                monkeypatch.setattr(mm.frame.stream, "conversation", lambda said=said: [said])
                mm.frame.recall([found])
                of_block = {*range(said.begin, said.end), *(one for one in chosen[1] if one >= said.end)}
                masked.recalled = sorted(of_block - set(masked.kept()))
                assert len(masked.recalled) > 64
                assert mm.frame.zones.resident_tokens == len(masked.positions())
        assert masked.recalled


def test_a_block_without_a_payload_of_its_own_comes_back_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OlderKept, "missing", lambda older: [])  # it is not made yet
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=KEPT_TOKENS) as mm:
        read_parts(mm)
        assert mm.memory.core.blocks.tensors(1).keys() == {"kept.tokens"}
    config = KEPT_TOKENS.changed(answer={"recall_mode": "kept"})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        read_parts(mm, 3, 4)
        pages = [mm.memory.core.blocks.pages_of(0, at, at + 1)[0] for at in (10, 1300)]
        mm.frame.recall(pages)
        *_, restore = (event for event in mm.trace() if event["what"] == "restore")
        first = [run for run in restore["restored"] if run["block"] == pages[0].block]
        assert [(run["begin"], run["end"]) for run in first] == [(8, 64)]
        assert 0 < restore["tokens"] - 56 <= 16
        own = [token for run in restore["restored"] for token in range(run["begin"], run["end"])]
        os = mm.frame.os
        frame = [*range(os.sinks), *os.kept_shown, *own, *range(*os.rolling)]
        assert len(frame) == len(set(frame)) == mm.frame.zones.resident_tokens


def test_what_is_fed_again_is_chosen_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever chose, and whatever it chose by: the block says so."""
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 10_000)
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=KEPT_TOKENS)
    mm.frame.extend(mm.encode(random_text(900)), "read")
    mm.frame.end_of_text()
    mm.memory.close()
    mm.frame.detach()
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=NEWEST) as again:
        assert again.trace()[0]["stream_position"] == 0
        assert again.frame.os.kept == mm.frame.os.kept


def test_the_untrained_scorers_by_their_definitions() -> None:
    keys = torch.randn(3, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    block = Span(100, torch.zeros(40, dtype=torch.int64), {}, lambda: (keys, keys))
    runs = [(104, 120), (122, 140)]
    free = {token for run in runs for token in range(*run)}

    def best(by: Any) -> list[int]:
        return best_tokens(token_scores(by, block), 100, runs, 6)

    assert best(None) == [139, 138, 137, 136, 135, 134]
    norms = np.linalg.norm(keys.numpy().astype(np.float64), axis=-1).mean(axis=(0, 1))
    assert best(KeyNormScorer()) == [t for t in (100 + np.argsort(norms)).tolist() if t in free][:6]
    assert best(RandomScorer()) == best(RandomScorer()) != best(None)
    other = dataclasses.replace(block, begin=300)
    assert not torch.equal(RandomScorer().score_tokens(block), RandomScorer().score_tokens(other))
    assert set(best(RandomScorer())) < free
    scores = torch.tensor([torch.nan, 1.0, torch.inf, -torch.inf, 1.0])
    assert best_tokens(scores, 10, [(10, 15)], 5) == [12, 14, 11, 13, 10]


@pytest.mark.slow
def test_a_kept_token_never_loses_by_staying() -> None:
    """In bf16, after a thousand evictions it is what it was when it was taken, bit for bit, turned once."""
    model = tiny_model(max_position_embeddings=8192)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    config = KEPT_TOKENS.changed(
        frame={"kept_tokens": 512, "kept_share": 64, "rolling_tokens": 64, "evict_tokens": 4, "chunk_tokens": 4},
        archive={"block_tokens": 32, "codec": "bf16"},
    )
    config = config.changed(frame={"tokens": 1200})
    with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
        mm.frame.extend(mm.encode(random_text(400)), "read")
        (first, *_), before = mm.frame.os.kept_held, kept_slots(mm)
        masters = mm.frame.cache.kept.in_order()
        mm.frame.extend(mm.encode(random_text(4100, seed=3)), "read")
        assert sum(event["what"] == "evict" for event in mm.trace()) >= 1000
        assert mm.frame.os.kept_held[0] == first
        count = masters.k.shape[2]
        assert count >= 8
        assert torch.equal(mm.frame.cache.kept.in_order().k[:, :, :count], masters.k)
        for had, has in zip(before, kept_slots(mm), strict=True):
            assert torch.equal(had, has[:, :, :count])


def test_what_cannot_be_kept_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    for config, named in (
        (
            KEPT_TOKENS.with_part(Trimmer()),
            "trimmer: nothing was trained for this model; `everlong train trimmer` .* 'random', 'key_norm' need none",
        ),
        (KEPT_TOKENS.changed(frame={"kept_tokens": 8}), "kept_tokens is 8, expected 0 or at least 16"),
        (KEPT_TOKENS.changed(frame={"kept_tokens": 1000}), "kept_tokens"),
        (KEPT_TOKENS.changed(frame={"kept_rungs": 0}), "kept_rungs"),
    ):
        with pytest.raises(ValueError, match=named):
            everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config)
        assert not (tmp_path / "m").exists()
    with pytest.raises(ValueError, match="by is 'best', expected one of learned, random"):
        Trimmer(by="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a memory of text alone has none"):
        KEPT_TOKENS.of_text_alone()
