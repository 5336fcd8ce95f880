"""Local anchors and tombstones against plain transformers over a cache that is put together by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
import everlong._core as _core
import everlong.frame.frame
from everlong.models.releases import cache_argument
from support import OWN_STATE, SMALL, TOLERANCE, byte_tokenizer, next_logits, random_text, tiny_model

ZONED = SMALL.changed(
    frame={"anchor_tokens": 6, "anchors": 3, "tombstones": 3},
    search={"index": ("lexical",)},
    answer={"recall_mode": "kv"},
)
CHUNK = 16
Array = np.ndarray[Any, np.dtype[np.float64]]

FULL_ATTENTION = [
    ("llama", "default"),
    ("qwen3", "yarn"),
    ("phi3", "longrope"),
    ("smollm3", "default"),
    ("glm", "partial"),
    ("cohere", "default"),
]


class SplicedByHand:
    """The frame in fp64, by its definition: every token's un-rotated KV is kept, and each forward gets what is due.

    It knows nothing of slots, masters or plans. A topic begins where `begin_topic` says.
    """

    def __init__(self, mm: everlong.MemoryModel) -> None:
        self.model, self.served, self.config = mm.model, mm.frame.served, mm.config
        self.keys: list[list[Array]] = [[] for _ in self.served.archived]  # by layer, by token: [Hkv, D]
        self.values: list[list[Array]] = [[] for _ in self.served.archived]
        self.topics = [0]
        self.stones: list[tuple[int, int]] = []  # spans
        self.left = self.config.frame.sink_tokens  # tokens before it have left, but for the sinks
        self.evicted = False
        self.recalled: list[int] = []

    @property
    def tokens(self) -> int:
        return len(self.keys[0])

    def rotate(self, layer: int, keys: Array, positions: Array, sign: int = 1) -> Array:
        """keys [n, Hkv, D] at positions [n]; sign -1 undoes it."""
        table = self.served.table(layer)
        half = table.rotary_dim // 2
        if half == 0:
            return keys
        angles = positions[:, None] * table.inv_freq.numpy()
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        pairs = [slice(0, 2 * half, 2), slice(1, 2 * half, 2)]
        if not table.interleaved:
            pairs = [slice(0, half), slice(half, 2 * half)]
        first, second = keys[..., pairs[0]], keys[..., pairs[1]]
        out = keys.copy()
        out[..., pairs[0]] = first * cos - sign * second * sin
        out[..., pairs[1]] = second * cos + sign * first * sin
        m = table.attention_scaling
        out[..., : 2 * half] *= m if sign > 0 else 1 / m
        return out

    def entries(self) -> list[tuple[list[int], int]]:
        """What stands in the frame: (tokens that the slot is the mean of, position)."""
        c = self.config.frame
        if not self.evicted:
            return [([token], token) for token in range(self.tokens)]
        out = [([token], token) for token in range(c.sink_tokens)]
        out += [(list(range(*span)), c.sink_tokens + i) for i, span in enumerate(self.stones)]
        anchors = []
        for topic, following in zip(self.topics, [*self.topics[1:], self.tokens], strict=True):
            tokens = range(max(topic, c.sink_tokens), min(topic + c.anchor_tokens, following, self.left))
            anchors.append(list(tokens))
        anchors = [anchor for anchor in anchors if anchor][-c.anchors :]
        flat = [token for anchor in anchors for token in anchor]
        out += [([token], c.sink_tokens + c.tombstones + i) for i, token in enumerate(flat)]
        behind = c.sink_tokens + c.tombstones + c.anchors * c.anchor_tokens + c.recalled_tokens
        out += [([token], behind - len(self.recalled) + i) for i, token in enumerate(self.recalled)]
        out += [([token], behind + token - self.left) for token in range(self.left, self.tokens)]
        return out

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [n, V]; then what is over leaves."""
        entries = self.entries()
        next_position = entries[-1][1] + 1 if entries else 0
        first = self.served.first_position
        cache = DynamicCache(config=self.model.config)
        for layer, index in enumerate(self.served.archived):
            if not entries:
                continue
            means = np.stack([np.mean([self.keys[layer][t] for t in tokens], axis=0) for tokens, _ in entries])
            positions = np.array([position + first for _, position in entries], dtype=np.float64)
            values = np.stack([np.mean([self.values[layer][t] for t in tokens], axis=0) for tokens, _ in entries])
            rotated = self.rotate(layer, means, positions)
            k, v = (torch.from_numpy(x).float().transpose(0, 1)[None].contiguous() for x in (rotated, values))
            cache.update(k, v, index)
        places = torch.arange(next_position, next_position + len(ids))[None] + first
        with torch.no_grad():
            logits = self.model(input_ids=ids[None], position_ids=places, **{cache_argument(self.model): cache}).logits[
                0
            ]
        for layer, index in enumerate(self.served.archived):
            k, v = (
                x[0, :, -len(ids) :].transpose(0, 1).double().numpy()
                for x in (cache.layers[index].keys, cache.layers[index].values)
            )
            self.keys[layer] += list(self.rotate(layer, k, places[0].double().numpy(), sign=-1))
            self.values[layer] += list(v)
        over = self.tokens - self.left - self.config.frame.rolling_tokens
        if over >= self.config.frame.evict_tokens:
            self.evict(over)
        return logits

    def evict(self, count: int) -> None:
        self.stones.append((self.left, self.left + count))
        self.left += count
        self.evicted = True
        if len(self.stones) > self.config.frame.tombstones:
            sizes = [b[1] - a[0] for a, b in zip(self.stones, self.stones[1:], strict=False)]
            at = sizes.index(min(sizes))
            self.stones[at : at + 2] = [(self.stones[at][0], self.stones[at + 1][1])]
        self.stones = self.stones[-self.config.frame.tombstones :] if self.config.frame.tombstones else []

    def begin_topic(self) -> None:
        self.topics.append(self.tokens)

    def recall(self, pages: Sequence[_core.PageRef]) -> None:
        self.recalled = []
        resident = {tokens[0] for tokens, _ in self.entries() if len(tokens) == 1}
        self.recalled = [token for page in pages for token in range(page.begin, page.end) if token not in resident]


def pages_with_anchors(mm: everlong.MemoryModel) -> list[_core.PageRef]:
    pages: list[_core.PageRef] = []
    for begin, end in mm.frame.os.anchor_zone["anchors"]:
        pages += [page for page in mm.memory.core.blocks.pages_of(0, begin, end) if page not in pages]
    return pages


@pytest.mark.parametrize(("kind", "rope"), FULL_ATTENTION)
def test_zone_is_the_kv_spliced_by_hand(kind: str, rope: str) -> None:
    """Over evictions, merged tombstones, dropped anchors, a recall and what is read with it in place."""
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=ZONED) as mm:
        by_hand = SplicedByHand(mm)
        generator = np.random.default_rng(0)
        ids = mm.encode(random_text(960))
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            got = mm.frame.extend(chunk, "read", logits=True)
            expected = by_hand.read(chunk)
            assert (got - expected).abs().max() <= TOLERANCE, first
            if generator.random() < 0.2:
                mm.frame.end_of_text()
                by_hand.begin_topic()
            if first == 800:
                pages = mm.memory.core.blocks.pages_of(0, 100, 230)
                mm.frame.recall(pages)
                by_hand.recall(pages)
            if first == 864:  # of which the first tokens stand in the zone
                pages = pages_with_anchors(mm)
                mm.frame.recall(pages)
                by_hand.recall(pages)
                assert 0 < len(by_hand.recalled) < sum(page.end - page.begin for page in pages)
        events = [event["what"] for event in mm.trace()]
        assert events.count("tombstone") >= 6
        assert events.count("anchor") >= 5
        assert len(mm.frame.os.anchor_positions) > 12
        # The masters are the means themselves.
        served, anchors = mm.frame.served, mm.frame.cache.anchors
        for layer in range(served.layers):
            for i, span in enumerate(by_hand.stones):
                for got, by_token in ((anchors.tombstone_k, by_hand.keys), (anchors.tombstone_v, by_hand.values)):
                    mean = np.mean(by_token[layer][slice(*span)], axis=0)
                    assert np.abs(got[layer, :, i].numpy() - mean).max() <= 1e-5


@pytest.mark.parametrize("mode", ["kv", "auto", "text"])
def test_a_recall_brings_no_anchor_again(mode: str) -> None:
    config = ZONED.changed(answer={"recall_mode": mode})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        for part in range(3):
            mm.read(random_text(300, seed=part))
        pages_of, resident = mm.memory.core.blocks.pages_of, mm.frame.zones.resident_tokens
        for span, fits in (((250, 340), True), ((280, 660), False)):
            pages = pages_of(0, *span)
            mm.generate("abc", max_new_tokens=2, recall=pages)
            os = mm.frame.os
            anchors = [token for anchor in os.anchor_zone["anchors"] for token in range(*anchor)]
            assert set(range(300, 306)) < set(anchors)
            talked = [*range(900, os.rolling[0])]  # earlier turns leave the window for a question
            assert len(talked) == (0 if fits else 5)
            found = [token for page in pages for token in range(page.begin, page.end) if token not in anchors]
            assert len(found) < pages[-1].end - pages[0].begin
            back = found[-config.frame.recalled_tokens :]

            *_, restore = (event for event in mm.trace() if event["what"] == "restore")
            restored = [token for run in restore["restored"] for token in range(run["begin"], run["end"])]
            assert restored == back
            assert (restore["tokens"], os.recalled_tokens) == (len(back), len(back))
            left_out = [event["tokens"] for event in mm.trace() if event["what"] == "left out"]
            assert left_out == ([] if fits else [len(found) - len(back)])
            held = [*range(os.sinks), *anchors, *restored, *range(*os.rolling)]
            assert len(held) == len(set(held))
            stones = len(os.anchor_positions) - len(anchors)
            assert mm.frame.zones.resident_tokens == len(held) + stones != resident


def test_a_piece_with_an_anchor_in_it_is_one_piece() -> None:
    """`recall_mode` "auto" restores it whole: what stands in the zone is missing from it without breaking it."""
    keys = []
    for mode in ("auto", "kv", "text"):
        with everlong.MemoryModel(
            tiny_model(), byte_tokenizer(), config=ZONED.changed(answer={"recall_mode": mode})
        ) as mm:
            for part in range(3):
                mm.read(random_text(300, seed=part))
            cache = mm.frame.cache
            mm.frame.recall(mm.memory.core.blocks.pages_of(0, 250, 340))
            assert (300, 306) in mm.frame.os.anchor_zone["anchors"]
            keys.append(cache.k[:, :, cache.rolling_slot - cache.recalled : cache.rolling_slot].clone())
    assert torch.equal(keys[0], keys[1])
    assert (keys[0] - keys[2]).abs().max() > 1e-2


def test_the_zone_changes_what_is_predicted() -> None:
    """The control of the test above: without the zone the same text reads otherwise."""
    logits = []
    for config in (ZONED, ZONED.changed(frame={"tombstones": 0}), ZONED.changed(frame={"anchor_tokens": 0})):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
            for part in range(3):
                mm.read(random_text(300, seed=part))
            logits.append(next_logits(mm, random_text(30, seed=9)))
    assert (logits[0] - logits[1]).abs().max() > 100 * TOLERANCE
    assert (logits[0] - logits[2]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE])
def test_branch_undoes_the_zone(kind: str, rope: str) -> None:
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=ZONED) as mm:
        for part in range(3):
            mm.read(random_text(300, seed=part))
        cache, zone = mm.frame.cache, mm.frame.os.anchor_zone
        before = (cache.begin, cache.end, cache.k[:, :, cache.begin : cache.end].clone(), cache.anchors)
        first = mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False)
        mm.perplexity(random_text(700, seed=4), policy="recent")
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, cache.begin : cache.end], before[2])
        assert cache.anchors is before[3]
        assert mm.frame.os.anchor_zone == zone
        assert zone["tombstones"]
        assert zone["anchors"]
        assert mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False) == first


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("smollm3", "default"), *OWN_STATE])
@pytest.mark.parametrize("in_ram", [False, True])
def test_closed_and_reopened_the_zone_is_as_it_was(kind: str, rope: str, in_ram: bool, tmp_path: Path) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    mm = everlong.MemoryModel(model, tokenizer, None if in_ram else tmp_path / "m", config=ZONED)
    for part in range(3):
        mm.read(random_text(300, seed=part))
    mm.generate("abc", max_new_tokens=3)
    mm.frame.clear_recalled()  # it does not outlast a question
    expected, zone = next_logits(mm, random_text(30, seed=9)), mm.frame.os.anchor_zone
    memory = mm.memory if in_ram else tmp_path / "m"
    if in_ram:  # which a memory of its own does not outlive
        mm.frame.close()
        mm.memory.end_writing(mm)
    else:
        mm.close()
    with everlong.MemoryModel(model, tokenizer, memory, config=ZONED) as mm:
        assert mm.frame.os.anchor_zone == zone
        assert (next_logits(mm, random_text(30, seed=9)) - expected).abs().max() <= TOLERANCE
        mm.read(random_text(600, seed=10))
        after, later = mm.frame.os.anchor_zone, next_logits(mm, random_text(30, seed=9))
    with everlong.MemoryModel(model, tokenizer, config=ZONED) as mm:
        for part in range(3):
            mm.read(random_text(300, seed=part))
        mm.generate("abc", max_new_tokens=3)
        mm.read(random_text(600, seed=10))
        assert mm.frame.os.anchor_zone == after
        assert (next_logits(mm, random_text(30, seed=9)) - later).abs().max() <= TOLERANCE


def test_a_topic_that_has_not_left_yet_is_kept_across_a_reopening(tmp_path: Path) -> None:
    """Nothing stands in the zone so far: there is no file of keys, and the topics are known all the same."""
    config = ZONED.changed(frame={"anchor_tokens": 8, "tombstones": 0})
    texts = [random_text(100, seed=1), random_text(100, seed=2), random_text(700, seed=3)]
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        for text in texts:
            mm.read(text)
        expected = mm.frame.os.anchor_zone
    for part, text in enumerate(texts):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
            if part < len(texts) - 1:
                assert mm.frame.os.anchor_zone["anchors"] == []
            mm.read(text)
            zone = mm.frame.os.anchor_zone
    assert len(expected["anchors"]) > 0
    assert zone == expected


@pytest.mark.parametrize("how", ["damaged", "lost", "other budget", "forgotten", "killed"])
def test_of_a_zone_only_what_is_there_and_true_stays(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=ZONED) as mm:
        for part in range(3):
            mm.read(random_text(300, seed=part), source=f"part {part}")
        zone, anchors = mm.frame.os.anchor_zone, mm.frame.cache.anchors
    config, file = ZONED, tmp_path / "m" / "files" / "frame.safetensors"
    if how == "damaged":
        state = file.read_bytes()
        file.write_bytes(state[:-1] + bytes([state[-1] ^ 1]))
    elif how == "lost":
        file.unlink()
    elif how == "other budget":
        config = ZONED.changed(frame={"tombstones": 2})
    elif how == "forgotten":
        with everlong.Memory.open(tmp_path / "m") as memory:
            gone = [block.span for block in memory.blocks("part 1")]
            memory.forget(source="part 1")
    else:  # too much was archived since the checkpoint to be read again: what the zone held before is still so
        monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 10_000)
        mm = everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=ZONED)
        mm.frame.extend(mm.encode(random_text(600, seed=5)), "read")
        mm.frame.end_of_text()
        mm.memory.close()
        monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 200)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=config) as mm:
        if how == "killed":
            assert mm.frame.os.anchor_zone["tombstones"] == zone["tombstones"]
            assert torch.equal(mm.frame.cache.anchors.k, anchors.k)
        elif how == "forgotten":  # what stands for any of it
            left = [anchor for anchor in zone["anchors"] if not any(anchor[0] < e and b < anchor[1] for b, e in gone)]
            assert mm.frame.os.anchor_zone["anchors"] == left
            assert len(left) < len(zone["anchors"])
            assert mm.frame.cache.anchors.anchor_k.shape[2] == sum(end - begin for begin, end in left)
            stones = [stone for stone in zone["tombstones"] if not any(stone[0] < e and b < stone[1] for b, e in gone)]
            assert mm.frame.os.anchor_zone["tombstones"] == stones
        else:
            assert mm.frame.os.anchor_positions == []
            assert len(mm.frame.cache.anchors) == 0
        mm.read(random_text(600, seed=6))
        assert len(mm.frame.os.anchor_positions) == len(mm.frame.cache.anchors) > 0


@pytest.mark.parametrize("apart", [10_000, 250])
def test_a_zone_after_a_process_that_died_is_that_of_one_that_lived(
    apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was archived since the last checkpoint is read again, and leaves in the zone what it left there before."""
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", apart)
    model, tokenizer = tiny_model(), byte_tokenizer()
    for name in ("lived", "died"):
        mm = everlong.MemoryModel(model, tokenizer, tmp_path / name, config=ZONED)
        for part in range(3):
            mm.read(random_text(300, seed=part), source=f"part {part}")
        mm.frame.extend(mm.encode(random_text(600, seed=5)), "read")
        mm.frame.end_of_text()
        if name == "lived":
            mm.close()
        else:
            mm.memory.close()
            mm.frame.detach()
    with (
        everlong.MemoryModel(model, tokenizer, tmp_path / "lived", config=ZONED) as lived,
        everlong.MemoryModel(model, tokenizer, tmp_path / "died", config=ZONED) as died,
    ):
        (first, *_) = died.trace()
        assert (first["what"], first["stream_position"]) == ("resume", 900 if apart > 900 else 1412)
        assert died.frame.os.anchor_zone == lived.frame.os.anchor_zone
        assert died.frame.os.rolling == lived.frame.os.rolling
        ours, theirs = (mm.frame.cache.anchors.tensors() for mm in (died, lived))
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reads_again", [True, False])
@pytest.mark.parametrize("forgotten", [("part 1", "part 2"), ("part 0", "part 1", "part 2")])
def test_a_zone_of_forgotten_text_is_never_that_of_the_text_in_its_place(
    forgotten: tuple[str, ...], reads_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest text is forgotten, other is read to where that ended and further, and nobody closes the memory."""
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 10_000)
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=ZONED) as mm:
        for part in range(3):
            mm.read(random_text(300, seed=part), source=f"part {part}")
        assert len(mm.frame.os.anchor_positions) > 0
    with everlong.Memory.open(tmp_path / "m") as memory:
        for source in forgotten:
            memory.forget(source=source)
    mm = everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=ZONED)
    mm.frame.extend(mm.encode(random_text(900, seed=5)), "read")
    mm.frame.end_of_text()
    mm.memory.close()
    zone = mm.frame.os.anchor_zone
    assert len(mm.frame.os.anchor_positions) > 0
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", 10_000 if reads_again else 100)
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=ZONED) as mm:
        assert mm.frame.os.stream_end >= 900
        if reads_again:  # the text that is there now
            assert mm.frame.os.anchor_zone == zone
        else:  # at most what stood for the text that was never forgotten
            spans = [
                *mm.frame.os.anchor_zone["anchors"],
                *(stone[:2] for stone in mm.frame.os.anchor_zone["tombstones"]),
            ]
            assert all(end <= (300 if "part 0" not in forgotten else 0) for _, end in spans)
            assert len(mm.frame.cache.anchors) == len(mm.frame.os.anchor_positions)


@pytest.mark.slow
def test_an_anchor_never_loses_by_staying() -> None:
    """In bf16, after 1,000 evictions it is the token that it was, bit for bit, rotated once."""
    model = tiny_model(max_position_embeddings=8192)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    config = ZONED.changed(
        frame={"tombstones": 2, "rolling_tokens": 64, "evict_tokens": 4, "chunk_tokens": 4},
        archive={"block_tokens": 32, "codec": "bf16"},
    )
    with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
        mm.read(random_text(200))
        mm.frame.extend(mm.encode(random_text(200, seed=2)), "read")
        cache = mm.frame.cache
        first = cache.begin + config.frame.sink_tokens + config.frame.tombstones
        before, kept = cache.anchors.anchor_k, cache.k[:, :, first : first + 6].clone()
        assert before.shape[2] == 6
        mm.frame.extend(mm.encode(random_text(4100, seed=3)), "read")
        assert sum(event["what"] == "evict" for event in mm.trace()) >= 1000
        assert torch.equal(cache.anchors.anchor_k, before)
        assert torch.equal(cache.k[:, :, first : first + 6], kept)


def test_a_question_under_another_config_leaves_the_zone(tmp_path: Path) -> None:
    config = ZONED.changed(frame={"anchor_tokens": 8, "tombstones": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        for part in range(4):
            mm.read(random_text(300, seed=part))
        zone, trace_free = mm.frame.os.anchor_zone, mm.stream_tokens
    assert len(zone["anchors"]) > 0
    without = ZONED.changed(frame={"anchor_tokens": 0, "tombstones": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=without) as mm:
        mm.generate("abc", max_new_tokens=2, remember=False)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        assert (mm.frame.os.anchor_zone, mm.stream_tokens) == (zone, trace_free)
