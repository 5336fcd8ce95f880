"""The KV writer in a memory: what it makes of plain transformers' keys and values is what is stored, kept and recalled.

The reference runs the writer itself, over a plain forward's states and over its keys without their rotation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame.kept_tokens import plain_rows
from everlong.models.rope import rope_table, unrotated
from everlong.parts.kv_writer import KvWriter
from everlong.parts.kv_writer.model import KvWriterNet
from everlong.parts.trimmer import Trimmer
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS
from support.parts.kv_writer import LAYERS, drawn_trimmer, drawn_writer, pack_with

CHOSEN = KEPT_TOKENS.changed(answer={"recall_mode": "kept"}).with_part(Trimmer())
WRITTEN = CHOSEN.with_part(KvWriter(kept=True))
UNSAID = SMALL.changed(frame={"tombstones": 4}, search={"index": ("lexical",)}, answer={"recall_mode": "kv"})
STONES = UNSAID.with_part(KvWriter(tombstones=True))
SHAPES = [("llama", "default"), ("qwen3", "default")]


class Plain:
    """A text in plain transformers: states, keys without rotation, values, and the writer over them."""

    def __init__(self, model: Any, ids: torch.Tensor, writer: KvWriterNet) -> None:
        with torch.no_grad():
            out = model(ids[None], use_cache=True, output_hidden_states=True)
        self.states = torch.cat([out.hidden_states[layer][0] for layer in LAYERS], dim=-1)
        layers = out.past_key_values.layers
        k = torch.stack([layer.keys[0] for layer in layers])
        self.k = unrotated(k, torch.arange(len(ids)), rope_table(model.config))
        self.v = torch.stack([layer.values[0] for layer in layers])
        self.writer = writer

    def written(self, begin: int, end: int, chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """[L, Hkv, n, D] of chosen tokens of the span, in order of time."""
        anchors = torch.tensor([sorted(chosen)]) - begin
        with torch.no_grad():
            k, v = self.writer(
                self.states[None, begin:end], self.k[None, :, :, begin:end], self.v[None, :, :, begin:end], anchors
            )
        return k[0], v[0]


def stored(mm: Any, block: Any, name: str) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Which tokens were chosen, in order of time, and their keys and values as the memory has them."""
    core, page = mm.memory.core, mm.config.archive.page_tokens
    tokens = sorted((core.blocks.tensor(block.id, "kept.tokens") + block.span[0]).tolist())
    lengths = [min(page, len(tokens) - first) for first in range(0, len(tokens), page)]
    served = mm.frame.served
    rows = plain_rows(
        core.blocks.tensor(block.id, name),
        lengths,
        (served.layers, served.kv_heads, served.head_dim),
        core.page_bytes,
        page_tokens=page,
        codec="fp32",
        dtype=torch.float32,
    )
    return tokens, rows.k, rows.v


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_what_is_stored_kept_and_recalled_is_what_the_writer_made(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    writer = drawn_writer(model)
    pack = pack_with(tmp_path / "pack", model, writer)
    name = f"kept.kv.{writer.part({}).id}"
    with everlong.MemoryModel(model, byte_tokenizer(), config=WRITTEN, pack=pack) as mm:
        frame = mm.frame
        ids = mm.encode(random_text(600))
        plain = Plain(model, ids, writer)
        frame.extend(ids, "read")
        first, second = mm.memory.blocks()[:2]
        # The first block of a stream was read behind nothing, so a plain forward has its keys; sinks are not its own.
        begin, end = frame.os.sinks, first.span[1]
        tokens, k, v = stored(mm, first, name)
        assert "kept.kv" not in mm.memory.core.blocks.tensors(first.id)
        expected = plain.written(begin, end, tokens)
        own = plain.k[:, :, tokens]
        assert (expected[0] - own).abs().max() > 0.1
        for found, wanted in zip((k, v), expected, strict=True):
            assert (found - wanted).abs().max() < 1e-3
        # Kept: what has left rolling stands in the zone as it was written.
        rows = frame.cache.kept.in_order()
        held = frame.os.kept_held
        at = [held.index(token) for token in tokens if token in held]
        assert at
        for found, wanted in ((rows.k, k), (rows.v, v)):
            assert torch.equal(found[:, :, at], wanted[:, :, [tokens.index(held[one]) for one in at]])
        # Recalled: the same, at frame positions.
        frame.recall(mm.memory.core.blocks.pages_of(0, *first.span))
        shown = [token for token in tokens if token not in frame.os.kept_shown]
        slot = frame.cache.rolling_slot - frame.cache.recalled
        back = frame.cache.buffers.unrotated(slot, frame.cache.recalled)
        assert frame.cache.recalled == len(shown) > 0
        for found, wanted in zip(back, (k, v), strict=True):
            assert (found - wanted[:, :, [tokens.index(token) for token in shown]]).abs().max() < 1e-4
        assert second.span[0] == first.span[1]
        assert mm.memory.stats().kept_bytes == sum(
            tensor.nbytes
            for block in mm.memory.blocks()
            for one, tensor in mm.memory.core.blocks.tensors(block.id).items()
            if one.startswith("kept.")
        )


def test_an_untrained_writer_stores_the_tokens_own(tmp_path: Path) -> None:
    model = tiny_model()
    writer = drawn_writer(model, trained=False)
    pack = pack_with(tmp_path / "pack", model, writer)
    ids = torch.arange(500) % 250
    payloads = []
    for config in (WRITTEN, CHOSEN):
        with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack) as mm:
            mm.frame.extend(ids, "read")
            name = f"kept.kv.{writer.part({}).id}" if config is WRITTEN else "kept.kv"
            payloads.append([mm.memory.core.blocks.tensor(block.id, name) for block in mm.memory.blocks()])
    assert len(payloads[0]) > 2
    for one, other in zip(*payloads, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_zone_of_written_tokens_goes_on_in_the_next_process(tmp_path: Path) -> None:
    """Tokens that enter it after a restart are as written as those that entered before."""
    model = tiny_model()
    pack = pack_with(tmp_path / "pack", model, drawn_writer(model))
    ids = torch.arange(1200) * 7 % 251
    zones = []
    for processes in ([[ids[:640]], [ids[640:]]], [[ids[:640], ids[640:]]]):
        for texts in processes:
            place = tmp_path / f"m{len(processes)}"
            with everlong.MemoryModel(model, byte_tokenizer(), place, config=WRITTEN, pack=pack) as mm:
                for text in texts:
                    mm.frame.extend(text, "read")
                    mm.frame.end_of_text()
                zones.append((mm.frame.os.kept_held, mm.frame.cache.kept.in_order()))
    (before, _), (held, rows), (wanted, whole) = zones
    assert before != held == wanted
    assert (rows.k - whole.k).abs().max() < 1e-3
    assert (rows.v - whole.v).abs().max() < 1e-3


def test_older_blocks_get_it_in_the_background(tmp_path: Path) -> None:
    """What was chosen of a block stays chosen; of one of which nothing was, the Trimmer chooses now."""
    model = tiny_model()
    writer = drawn_writer(model)
    pack = pack_with(tmp_path / "pack", model, writer)
    name = f"kept.kv.{writer.part({}).id}"
    plainly = KEPT_TOKENS.changed(frame={"kept_tokens": 0})
    ids = torch.arange(400) * 7 % 251
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=plainly, pack=pack) as mm:
        mm.frame.extend(ids, "read")
        mm.frame.end_of_text()
        assert mm.memory.stats().kept_bytes == 0
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=WRITTEN, pack=pack) as mm:
        mm.searcher.settle()
        blocks = mm.memory.blocks()
        assert all({"kept.tokens", name} <= mm.memory.core.blocks.tensors(block.id).keys() for block in blocks)
        late = stored(mm, blocks[0], name)
        plain = Plain(model, ids[:256], writer)
        begin, end = WRITTEN.frame.sink_tokens, blocks[0].span[1]
        scores = drawn_trimmer().scores(plain.states[begin:end])
        assert late[0] == sorted((scores.topk(len(late[0])).indices + begin).tolist())
        for found, wanted in zip(late[1:], plain.written(begin, end, late[0]), strict=True):
            assert (found - wanted).abs().max() < 1e-3
        raw = WRITTEN.changed(parts=())
        chosen = {block.id: mm.memory.core.blocks.tensor(block.id, "kept.tokens") for block in blocks}
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=raw, pack=pack) as mm:
        mm.searcher.settle()
        for block, tokens in chosen.items():
            np.testing.assert_array_equal(mm.memory.core.blocks.tensor(block, "kept.tokens"), tokens)
        tokens, k, v = stored(mm, blocks[0], "kept.kv")
        assert (k - plain.k[:, :, tokens]).abs().max() < 1e-3
        assert (v - plain.v[:, :, tokens]).abs().max() < 1e-3


def test_it_goes_with_its_block_and_its_memory(tmp_path: Path) -> None:
    model = tiny_model()
    writer = drawn_writer(model)
    pack = pack_with(tmp_path / "pack", model, writer)
    name = f"kept.kv.{writer.part({}).id}"
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=WRITTEN, pack=pack) as mm:
        mm.read(random_text(500), source="one")
        mm.read(random_text(500, seed=2), source="two")
        kept = {block.id: mm.memory.core.blocks.tensor(block.id, name) for block in mm.memory.blocks(source="two")}
        before = mm.memory.stats().kept_bytes
        mm.memory.forget(source="one")
        assert 0 < mm.memory.stats().kept_bytes < before
        with pytest.raises(everlong.MemoryNotFoundError):
            mm.memory.core.blocks.tensor(1, name)
        mm.memory.compact()
        mm.memory.export(tmp_path / "file")
    everlong.Memory.import_file(tmp_path / "file", tmp_path / "imported").close()
    for folder in ("m", "imported"):
        with everlong.Memory.open(tmp_path / folder, read_only=True) as memory:
            assert memory.verify().damage == ()
            for block, payload in kept.items():
                np.testing.assert_array_equal(memory.core.blocks.tensor(block, name), payload)


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_a_tombstone_is_what_the_writer_makes_of_its_best_token(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    writer, trimmer = drawn_writer(model), drawn_trimmer()
    pack = pack_with(tmp_path / "pack", model, writer)
    with everlong.MemoryModel(model, byte_tokenizer(), config=STONES, pack=pack) as mm:
        ids = mm.encode(random_text(SMALL.frame.rolling_tokens + 3 * SMALL.frame.evict_tokens))
        plain = Plain(model, ids, writer)
        reached = 0
        while not mm.frame.os.anchor_zone["tombstones"]:
            mm.frame.extend(ids[reached : reached + 32], "read")
            reached += 32
        ((begin, end, _),) = mm.frame.os.anchor_zone["tombstones"]
        best = int(trimmer.scores(plain.states[begin:end]).argmax()) + begin
        k, v = plain.written(begin, end, [best])
        stones = mm.frame.cache.anchors
        assert (stones.tombstone_k - k).abs().max() < 1e-3
        assert (stones.tombstone_v - v).abs().max() < 1e-3
        with mm.frame.branch():  # where nothing is archived, and spans leave all the same
            mm.frame.extend(ids[: 2 * SMALL.frame.evict_tokens], "generated")
            assert mm.frame.cache.anchors.tombstone_k.shape[2] > 1
            last = mm.frame.cache.anchors.tombstone_k[:, :, -1]
            own = mm.frame.os.anchor_zone["tombstones"][-1]
        assert own[1] - own[0] > 1
        assert torch.isfinite(last).all()
        assert mm.frame.cache.anchors.tombstone_k.shape[2] == 1


def test_a_tombstone_of_tokens_without_states_is_their_mean(tmp_path: Path) -> None:
    model = tiny_model()
    pack = pack_with(tmp_path / "pack", model, drawn_writer(model))
    read = torch.arange(SMALL.frame.rolling_tokens) % 250
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=STONES, pack=pack) as mm:
        mm.frame.extend(read, "read")
    stones = {}
    for writing in (True, False):
        config = STONES.with_part(KvWriter(tombstones=writing))
        with (
            everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=config, pack=pack) as mm,
            mm.frame.branch(),
        ):
            mm.frame.extend(read[: SMALL.frame.evict_tokens + 8], "read")
            stones[writing] = mm.frame.cache.anchors.tombstone_k
    assert stones[True].shape[2] > 0
    assert torch.equal(stones[True], stones[False])


def test_where_nothing_is_said_the_writer_makes_tombstones_if_there_is_one(tmp_path: Path) -> None:
    model = tiny_model()
    whole, trimmer_alone = (
        pack_with(tmp_path / name, model, writer) for name, writer in (("a", drawn_writer(model)), ("b", None))
    )
    ids = torch.arange(SMALL.frame.rolling_tokens + 3 * SMALL.frame.evict_tokens) % 250
    stones = {}
    for pack, said in [(whole, None), (whole, True), (trimmer_alone, None), (None, None)]:
        config = UNSAID.with_part(KvWriter(tombstones=said))
        with everlong.MemoryModel(model, byte_tokenizer(), config=config, pack=pack) as mm:
            mm.frame.extend(ids, "read")
            stones[pack, said] = mm.frame.cache.anchors.tombstone_k
            assert (mm.frame.parts.tombstone_writer is not None) == (pack == whole)
    assert stones[whole, None].shape[2] > 0
    assert torch.equal(stones[whole, None], stones[whole, True])
    assert torch.equal(stones[trimmer_alone, None], stones[None, None])
    assert not torch.equal(stones[whole, None], stones[None, None])


@pytest.mark.parametrize("config", [WRITTEN, STONES])
def test_without_one_there_is_nobody_to_write(config: everlong.MemoryConfig, tmp_path: Path) -> None:
    model = tiny_model()
    pack = pack_with(tmp_path / "pack", model, None)
    with pytest.raises(ValueError, match="kv_writer: nothing was trained for this model; `everlong train kv_writer`"):
        everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=config, pack=pack)
    assert not (tmp_path / "m").exists()
