"""Detail Tokens: written with a block, and back in the frame as the soft tokens that they are.

The references are plain transformers over `inputs_embeds`, and numpy's own means.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.cache_utils import DynamicCache

import everlong
import everlong._core as _core
from everlong.cli.memory import citation
from everlong.config.memory import BRACKET_TOKENS
from everlong.frame.offers import offers_of
from everlong.frame.part import LoadContext, Offer
from everlong.models.attach import attach
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import Pack
from everlong.models.releases import cache_argument
from everlong.models.trimmed_cache import read_whole
from everlong.parts.latents import LatentSettings
from everlong.parts.writer import Writer
from everlong.parts.writer.detail_writers import MeanPool
from everlong.parts.writer.model import WriterNet, WriterSettings
from everlong.parts.writer.runtime import BlockDetails
from everlong.retrieval.older_blocks import OlderBlocks
from everlong.text.control import memory_marks
from support import SMALL, TOLERANCE, byte_tokenizer, random_text, tiny_model, tiny_text_model
from support.processes import killed, tell_and_wait

N = 6
TENSOR = f"details.mean-{N}"
WRITING = SMALL.changed(search={"index": ("lexical",)}).with_part(Writer(tokens=N))
DETAILED = WRITING.changed(answer={"recall_mode": "detail"})
SHAPES = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")]
MARK = "0123456789"
TEXT = f"{random_text(300)}{MARK}{random_text(1200, seed=3)}"


def embeddings_of(model: Any, ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """[n, hidden size], of the space that `inputs_embeds` are in."""
    with torch.no_grad():
        rows = model.get_input_embeddings()(torch.as_tensor(np.asarray(ids), dtype=torch.int64))
    return np.asarray(rows.double())


def pooled(embeddings: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """The means of equal runs, by their definition."""
    length = len(embeddings)
    count = min(count, length)
    return np.stack(
        [np.mean(embeddings[i * length // count : (i + 1) * length // count], axis=0) for i in range(count)]
    )


def soft_tokens(model: Any, core: Any, blocks: list[int]) -> torch.Tensor:
    """D of each between its marks, as they are to stand in the frame: [slots, hidden size] fp32."""
    tokenizer = byte_tokenizer()
    around = [
        embeddings_of(model, tokenizer.encode(mark, add_special_tokens=False)).mean(axis=0, keepdims=True)
        for mark in ("\n\n[", "]\n\n")
    ]
    rows = []
    for block in blocks:
        info = core.blocks.info(block)
        ids = core.blocks.token_ids(info.stream, info.begin, info.end)
        details = pooled(embeddings_of(model, ids), N).astype(np.float16).astype(np.float64)
        rows += [around[0], details, around[1]]
    return torch.from_numpy(np.concatenate(rows)).float()


@given(length=st.integers(1, 70), count=st.integers(1, 40), seed=st.integers(0, 3))
def test_a_writer_that_was_never_trained_means_equal_runs(length: int, count: int, seed: int) -> None:
    embeddings = np.random.default_rng(seed).normal(size=(length, 5))
    got = MeanPool(count).details(torch.zeros(length, 0), torch.from_numpy(embeddings).float())
    np.testing.assert_allclose(got.numpy(), pooled(embeddings, count), atol=1e-6)
    if count <= length:  # whatever the runs, each token weighs in one of them alone
        sizes = np.diff([i * length // count for i in range(count + 1)])
        assert set(sizes) <= {length // count, -(-length // count)}
        np.testing.assert_allclose((got.numpy() * sizes[:, None]).sum(axis=0), embeddings.sum(axis=0), atol=1e-4)


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_details_are_written_with_each_block_and_told(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.read(TEXT)
        core, stats = mm.memory.core, mm.memory.stats()
        written = 0
        for block in mm.memory.blocks():
            details = core.blocks.tensor(block.id, TENSOR)
            ids = core.blocks.token_ids(0, *block.span)
            assert details.dtype == np.float16
            np.testing.assert_allclose(details, pooled(embeddings_of(model, ids), N), atol=2e-3)
            written += details.nbytes
        assert written == stats.detail_bytes > 0
        assert stats.detail_token_bytes == written / stats.tokens
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        assert memory.stats().detail_bytes == written
        assert not memory.verify().damage


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("qwen3", "yarn"), ("smollm3", "default")])
def test_recalled_details_are_a_plain_forward_over_soft_tokens(kind: str, rope: str) -> None:
    """Sinks, blocks as soft tokens where rolling begins, then text: transformers over `inputs_embeds` of just that."""
    model, rest = tiny_model(kind, rope), random_text(30, seed=2)
    with everlong.MemoryModel(model, byte_tokenizer(), config=DETAILED) as mm:
        mm.read(TEXT)
        core, frame = mm.memory.core, mm.frame
        blocks = [7, 2, 4]
        with frame.branch():
            frame.begin_prompt()
            frame.bring_back(details(mm, blocks))
            assert frame.os.recalled_tokens == len(blocks) * (N + BRACKET_TOKENS)
            assert frame.zones.resident_tokens == SMALL.frame.sink_tokens + frame.os.recalled_tokens
            rest_ids = mm.encode(rest)
            got = frame.extend(rest_ids, "prompt", logits=True)
        sinks, own = (
            embeddings_of(model, ids) for ids in (core.blocks.token_ids(0, 0, SMALL.frame.sink_tokens), rest_ids)
        )
        soft = soft_tokens(model, core, blocks)
    embeds = torch.cat([torch.from_numpy(sinks).float(), soft, torch.from_numpy(own).float()])
    rolling = SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens
    positions = [*range(SMALL.frame.sink_tokens), *range(rolling - len(soft), rolling + len(rest_ids))]
    first = frame.served.first_position
    with torch.no_grad():
        expected = model(inputs_embeds=embeds[None], position_ids=torch.tensor([positions]) + first).logits[0]
    assert (got - expected[-len(rest_ids) :]).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), [*SHAPES, ("qwen3_next", "partial")])
def test_details_in_a_frame_know_nothing_of_the_newest_text(kind: str, rope: str) -> None:
    """Layers that are not archived begin with them, and afterwards have their state of the newest text again."""
    model = tiny_model(kind, rope)
    with everlong.MemoryModel(model, byte_tokenizer(), config=DETAILED) as mm:
        mm.read(TEXT)
        frame, cache = mm.frame, mm.frame.cache
        with frame.branch():
            frame.begin_prompt()
            own = cache.own.tensors()
            frame.bring_back(details(mm, [3, 8]))
            sinks, after = SMALL.frame.sink_tokens, cache.own.tensors()
            k, v = (x[:, None, :, cache.begin : cache.rolling_slot].clone() for x in (cache.k, cache.v))
        soft, served = soft_tokens(model, mm.memory.core, [3, 8]), frame.served
    assert own.keys() == after.keys()
    assert all(torch.equal(own[name], after[name]) for name in own)
    alone = DynamicCache(config=model.config)
    for layer, index in enumerate(served.archived):
        alone.layers[index].update(k[layer, ..., :sinks, :], v[layer, ..., :sinks, :])
    first = SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens - len(soft) + served.first_position
    positions = torch.arange(first, first + len(soft))
    with torch.no_grad():
        model(inputs_embeds=soft[None], position_ids=positions[None], **{cache_argument(model): alone})
    for layer, index in enumerate(served.archived):
        torch.testing.assert_close(alone.layers[index].keys, k[layer], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(alone.layers[index].values, v[layer], atol=TOLERANCE, rtol=0)


def test_both_is_details_and_then_pages_as_they_were_archived() -> None:
    model = tiny_model()
    kv, both = (DETAILED.changed(answer={"recall_mode": mode}) for mode in ("kv", "both"))
    with everlong.MemoryModel(model, byte_tokenizer(), config=kv) as mm:
        mm.read(TEXT)
        pages = mm.memory.core.blocks.pages_of(0, 700, 760)
        with mm.frame.branch():
            mm.frame.begin_prompt()
            mm.frame.recall(pages)
            count = mm.frame.os.recalled_tokens
            end = mm.frame.cache.rolling_slot
            expected = mm.frame.cache.k[:, :, end - count : end].clone()
    with everlong.MemoryModel(model, byte_tokenizer(), config=both) as mm:
        mm.read(TEXT)
        frame, cache = mm.frame, mm.frame.cache
        with frame.branch():
            frame.begin_prompt()
            # Block 6 is the pages' own: as details it stands beside them.
            named = offers_of(pages, "named", [1.5] * len(pages), pages)
            frame.bring_back([*details(mm, [2, 6, 9]), *named])
            slots = 3 * (N + BRACKET_TOKENS)
            assert frame.os.recalled_tokens == count + slots
            assert torch.equal(cache.k[:, :, end - count : end], expected / 1.5)
            restored = [event for event in mm.trace() if event["what"] == "restore"][-1]["restored"]
            assert [(run["block"], run.get("detail_slots", 0)) for run in restored][:3] == [(2, 8), (6, 8), (9, 8)]
            assert {run["block"] for run in restored[3:]} == {page.block for page in pages}
            values = cache.v[:, :, end - count - slots : end - count].clone()
            frame.bring_back(details(mm, [2, 6, 9]))
            # What they hold is theirs and the sinks': pages stand behind them. Where they stand is another matter.
            torch.testing.assert_close(values[0], cache.v[0, :, end - slots : end])


def details(mm: everlong.MemoryModel, blocks: Iterable[int]) -> list[Offer]:
    """Offers of whole blocks, as their Detail Tokens."""
    core = mm.memory.core
    infos = [core.blocks.info(block) for block in blocks]
    pages = [core.blocks.pages_of(info.stream, info.begin, info.end)[0] for info in infos]
    return [Offer(0.0, page, ("named",), as_details=True) for page in pages]


def ask(mm: everlong.MemoryModel) -> everlong.Answer:
    return mm.generate(f"what stands at {MARK} and {TEXT[800:820]}", max_new_tokens=8, remember=False)


@pytest.mark.parametrize("mode", ["detail", "both"])
@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_a_question_brings_details_back_and_the_next_process_does_alike(
    kind: str, rope: str, mode: str, tmp_path: Path
) -> None:
    """Bit for bit as the one after it, and told to whoever asks."""
    config = DETAILED.changed(answer={"recall_mode": mode}).with_part(Writer(tokens=N, blocks=5))

    def recalled(mm: everlong.MemoryModel, answer: everlong.Answer) -> tuple[torch.Tensor, torch.Tensor]:
        cache = mm.frame.cache
        with mm.frame.branch():
            mm.frame.begin_prompt()
            mm.frame.bring_back(details(mm, [one.block_id for one in answer.recalled if one.as_details]))
            return cache.k[:, :, cache.begin : cache.end].clone(), cache.v[:, :, cache.begin : cache.end].clone()

    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(TEXT)
        first = ask(mm)
        soft = [one for one in first.recalled if one.as_details]
        assert len({one.block_id for one in soft}) == len(soft) == 5
        assert all(one.text == mm.text(one.block_id) for one in soft)
        assert MARK in soft[0].text
        assert MARK in soft[0].passage
        assert f"block {soft[0].block_id}, as Detail Tokens]" in citation(soft[0])
        assert any(not one.as_details for one in first.recalled) == (mode == "both")
        event = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0][-1]
        runs = [run for run in event["restored"] if "detail_slots" in run]
        assert [run["block"] for run in runs] == [one.block_id for one in reversed(soft)]
        assert {run["detail_slots"] for run in runs} == {N + BRACKET_TOKENS}
        assert (len(event["restored"]) > len(runs)) == (mode == "both")
        before = recalled(mm, first)
    reopened = []
    for _ in range(2):
        with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), tmp_path / "m", config=config) as mm:
            again = ask(mm)
            assert (again.token_ids, again.recalled) == (first.token_ids, first.recalled)
            reopened.append(recalled(mm, again))
    assert all(map(torch.equal, *reopened))
    for was, is_now in zip(before, reopened[0], strict=True):  # but for the sinks, which went through the archive
        torch.testing.assert_close(is_now, was, atol=1e-5, rtol=1e-5)


def test_details_may_take_the_whole_recalled_zone() -> None:
    """There is no room for pages then, and none come back."""
    config = DETAILED.changed(answer={"recall_mode": "both"}, frame={"recalled_tokens": 2 * (N + BRACKET_TOKENS)})
    with everlong.MemoryModel(
        tiny_model(), byte_tokenizer(), config=config.with_part(Writer(tokens=N, blocks=2))
    ) as mm:
        mm.read(TEXT)
        answer = ask(mm)
        assert answer.recalled
        assert all(one.as_details for one in answer.recalled)
        assert answer.confidence is None  # no index looked for a page that holds the answer
        assert mm.recall(f"what stands at {MARK}")


def test_details_of_older_blocks_are_made_in_the_background(tmp_path: Path) -> None:
    """As they would have been while reading: nothing but the ids is in them. Another N is another writer."""
    plain = SMALL.changed(search={"index": ("lexical",)})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=plain) as mm:
        mm.read(TEXT[:900])
        assert mm.memory.stats().detail_bytes == 0
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.searcher.settle()
        old = {block.id for block in mm.memory.blocks()}
        assert mm.memory.stats().detail_token_bytes > 0
        mm.read(TEXT[900:], source="more")
        late = {b.span: mm.memory.core.blocks.tensor(b.id, TENSOR) for b in mm.memory.blocks() if b.id in old}
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=DETAILED) as mm:
        mm.read(TEXT[:900])
        for block in mm.memory.blocks():
            np.testing.assert_array_equal(late[block.span], mm.memory.core.blocks.tensor(block.id, TENSOR))
    fewer = DETAILED.with_part(Writer(tokens=3))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=fewer) as mm:
        mm.searcher.settle()
        assert all("details.mean-3" in mm.memory.core.blocks.tensors(block.id) for block in mm.memory.blocks())


def test_a_block_without_details_comes_back_in_pages(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.read(TEXT)
        core = mm.memory.core
        core.blocks.put_tensors(2, {TENSOR: np.zeros((0, 3), dtype=np.float16)})  # damaged by whoever wrote it
        pages = [*core.blocks.pages_of(0, 200, 256), *core.blocks.pages_of(0, 700, 760)]
        with mm.frame.branch():
            mm.frame.begin_prompt()
            mm.frame.recall(pages)
            (*_, restore) = (event for event in mm.trace() if event["what"] == "restore")
        assert [(run["block"], "detail_slots" in run) for run in restore["restored"]] == [(6, True), (2, False)]


def test_details_go_with_their_block_and_their_memory(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.read(TEXT[:700], source="one")
        mm.read(TEXT[700:], source="two")
        kept = {b.id: mm.memory.core.blocks.tensor(b.id, TENSOR) for b in mm.memory.blocks(source="two")}
        before = mm.memory.stats()
        mm.memory.forget(source="one")
        assert mm.memory.stats().detail_bytes == sum(details.nbytes for details in kept.values()) < before.detail_bytes
        with pytest.raises(everlong.MemoryNotFoundError):
            mm.memory.core.blocks.tensor(1, TENSOR)
        mm.memory.compact()
        mm.memory.fork(tmp_path / "fork").close()
        mm.memory.export(tmp_path / "file")
    everlong.Memory.import_file(tmp_path / "file", tmp_path / "imported").close()
    for folder in ("m", "fork", "imported"):
        with everlong.Memory.open(tmp_path / folder, read_only=True) as memory:
            assert memory.verify().damage == ()
            for block, details in kept.items():
                np.testing.assert_array_equal(memory.core.blocks.tensor(block, TENSOR), details)


def test_what_came_back_as_details_is_protected() -> None:
    """For T_protect generated tokens whatever else is due waits, as for pages."""
    config = DETAILED.changed(answer={"policy": ("prompt", "periodic"), "periodic_every": 2, "protect_tokens": 6})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(TEXT)
        mm.generate(TEXT[300:330], max_new_tokens=8)
        end = mm.frame.os.stream_end
        events = [event for event in mm.trace() if event["what"] in ("recall", "recall waits")]
        (prompt, *_), waits = events, [event for event in events if event["what"] == "recall waits"]
        (first_again, *_) = (event for event in events if event["what"] == "recall" and event["trigger"] == "periodic")
        assert prompt["trigger"] == "prompt"
        assert [event["trigger"] for event in waits][:1] == ["periodic"]
        assert first_again["stream_position"] - (end - 8) >= 6


def read_with_details(folder: Path, blocks: int, pipe: Connection) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=DETAILED) as mm:

        def archived(*of_block: object) -> None:
            if mm.frame.archive.blocks == blocks:
                tell_and_wait(pipe, blocks)

        mm.frame.observe(archived)
        mm.read(TEXT, source="book")


def fill_older_blocks(folder: Path, blocks: int, pipe: Connection) -> None:
    """Waits once details of so many older blocks were put, wherever the disk is."""
    with everlong.Memory.open(folder) as memory:
        model = tiny_model()
        served = attach(model, DETAILED.frame.tokens)
        opening = LoadContext(model, byte_tokenizer(), served, None, memory.core, folder, DETAILED)
        writer = BlockDetails(MeanPool(N), opening, Writer(tokens=N))
        older = OlderBlocks(
            memory.core,
            model,
            writer.write_block,
            lambda: writer.needs,
            lambda: writer.missing_blocks(memory.core)[:blocks],
        )
        older.fill(lambda: False)
        tell_and_wait(pipe, blocks)


@pytest.mark.parametrize(("work", "blocks"), [(read_with_details, 1), (read_with_details, 7), (fill_older_blocks, 4)])
def test_a_process_that_is_killed_leaves_no_block_with_half_its_details(work: Any, blocks: int, tmp_path: Path) -> None:
    if work is fill_older_blocks:
        plain = SMALL.changed(search={"index": ("lexical",)})
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=plain) as mm:
            mm.read(TEXT, source="book")
    assert killed(work, tmp_path / "m", blocks) == blocks
    with everlong.Memory.open(tmp_path / "m") as memory:
        assert memory.verify().damage == ()
        having = [TENSOR in memory.core.blocks.tensor_shapes(block.id) for block in memory.blocks()]
        assert having == ([True] * blocks + [False] * (len(having) - blocks) if work is fill_older_blocks else having)
        assert work is fill_older_blocks or all(having)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=DETAILED) as mm:
        mm.read(TEXT, source="book")
        mm.searcher.settle()
        assert mm.memory.verify().damage == ()
        for block in mm.memory.blocks():
            ids = mm.memory.core.blocks.token_ids(0, *block.span)
            details = mm.memory.core.blocks.tensor(block.id, TENSOR)
            np.testing.assert_allclose(details, pooled(embeddings_of(mm.model, ids), N), atol=2e-3)


def test_a_memory_of_text_alone_has_no_details(tmp_path: Path) -> None:
    """Said before there is a folder."""
    by_text = WRITING.changed(answer={"recall_mode": "text"})
    for config in (by_text, by_text.changed(frame={"tombstones": 0})):
        with pytest.raises(ValueError, match="writer needs the model's keys and states, and a memory of text alone"):
            everlong.MemoryModel(tiny_text_model("gpt2"), byte_tokenizer(), tmp_path / "m", config=config)
    assert not (tmp_path / "m").exists()
    with pytest.raises(ValueError, match="recall_mode='detail' brings back Detail Tokens: expected a part that writes"):
        SMALL.changed(answer={"recall_mode": "detail"})
    with pytest.raises(ValueError, match=r"those of a block \(257\) in frame\.recalled_tokens \(256\)"):
        SMALL.changed(answer={"recall_mode": "both"}, parts=[Writer(tokens=255)])


@given(
    pages=st.lists(st.integers(0, 11), max_size=8, unique=True),
    blocks=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 30)), max_size=8),
)
def test_details_and_pages_share_the_zone(pages: list[int], blocks: list[tuple[int, int]]) -> None:
    """Without a gap before rolling, details first and whole, the last ones before the first ones."""
    config = _core.MemoryOsConfig(
        frame_tokens=256, sink_tokens=4, recalled_tokens=40, rolling_tokens=40, evict_tokens=8, block_tokens=16
    )
    os = _core.MemoryOs(config)
    for _ in range(6):
        os.observe(20, "read")
    rolling = os.rolling[0]
    stored = [_core.PageRef(1 + at // 2, at % 2, 0, 8 * at, 8 * at + 8, sink_tokens=4 * (at == 0)) for at in range(12)]
    whole = [(_core.PageRef(block, 0, 0, 16 * (block - 1), 16 * block), slots) for block, slots in blocks]
    details = [_core.Offer(block, "details", slots=slots) for block, slots in whole]
    placements = os.recall([*details, *(_core.Offer(stored[at]) for at in pages)])
    behind = os.next_position() - (120 - rolling)
    assert all(p.position + sum(q.tokens for q in placements[at:]) == behind for at, p in enumerate(placements))
    assert os.recalled_tokens == sum(p.tokens for p in placements) <= 40
    assert [p.details for p in placements] == sorted((p.details for p in placements), reverse=True)
    # By the rule: what has left, each once; half of the zone is theirs beside pages, and what pages leave.
    once = list({block: slots for block, slots in reversed(blocks) if 16 * (block - 1) < rolling}.items())
    first = [(block, next(s for b, s in blocks if b == block)) for block, _ in once]
    order = sorted(first, key=lambda one: [b for b, _ in blocks].index(one[0]))
    room = 40 if not pages else 20
    reserved = 0
    for _, slots in reversed(order):
        if reserved + slots > room:
            break
        reserved += slots
    wanted = sum(max(0, min(rolling, page.end) - max(4, page.begin)) for page in (stored[at] for at in pages))
    left = 40 - min(wanted, 40 - reserved)
    fit: list[tuple[int, int]] = []
    for block, slots in reversed(order):
        if slots > left:
            break
        left -= slots
        fit.insert(0, (block, slots))
    assert [(p.page.block, p.tokens) for p in placements if p.details] == fit
    assert sum(p.tokens for p in placements if not p.details) == min(wanted, 40 - reserved)


def test_a_pack_s_writer_takes_the_place_of_means(tmp_path: Path) -> None:
    """Detail Tokens in a memory are what the writer makes of the states that the block was read with."""
    model = tiny_model()
    size = model.config.hidden_size
    reader = LatentSettings((1, 2), size, size, width=16, depth=1, inner=16, heads=2)
    writer = WriterNet.untrained(WriterSettings(reader), seed=3)
    torch.manual_seed(1)
    for weights in (writer.counts.weight, writer.louder.weight, writer.rest.weight):
        torch.nn.init.normal_(weights, std=0.3)
    part = writer.part({})
    Pack(weights_fingerprint(model), "", {"writer": part}).save(tmp_path / "pack")
    with everlong.MemoryModel(model, byte_tokenizer(), config=DETAILED, pack=str(tmp_path / "pack")) as mm:
        mm.read("A line of text that is read, and another one. " * 4)
        core = mm.memory.core
        block = core.blocks.infos()[0]
        (name,) = [key for key in core.blocks.tensors(block.id) if key.startswith("details")]
        assert part.id in name
        found = torch.from_numpy(core.blocks.tensors(block.id)[name].astype(np.float32))
        ids = torch.from_numpy(core.blocks.token_ids(block.stream, block.begin, block.end).astype(np.int64))
    whole = read_whole(model, ids, (1, 2))  # the first block: nothing stood before it
    states = torch.cat([whole.hidden[1], whole.hidden[2]], dim=-1)
    expected = WriterNet.of_part(part).details(states, model.get_input_embeddings()(ids).detach(), min(N, len(ids)))
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
    means = MeanPool(N).details(states[:, :0], model.get_input_embeddings()(ids).detach())
    assert float((found - means).abs().max()) > 0.05


@pytest.mark.parametrize("rank", [0, 2])
def test_a_trained_writer_s_details_stand_in_the_frame_as_they_did_in_training(rank: int, tmp_path: Path) -> None:
    """All blocks between one pair of marks; what was trained to read them is at work on them and on what is asked, and
    on nothing else. Of plain transformers with these maps in its weights.
    """
    model, size = tiny_model(), tiny_model().config.hidden_size
    opening, closing = memory_marks(byte_tokenizer())
    reader = LatentSettings((1, 2), size, size, width=16, depth=1, inner=16, heads=2)
    writer = WriterNet.untrained(WriterSettings(reader, opening=opening, closing=closing))
    lora = LowRankMaps(MapSettings(2), mapped_layers(model)) if rank else None
    torch.manual_seed(1)
    for up in lora.up if lora is not None else ():
        up.data.normal_(std=0.05)
    Pack(weights_fingerprint(model), "", {"writer": writer.part_with(lora, {})}).save(tmp_path / "pack")
    with everlong.MemoryModel(model, byte_tokenizer(), config=DETAILED, pack=tmp_path / "pack") as mm:
        mm.read(TEXT)
        core, frame = mm.memory.core, mm.frame
        assert (frame.parts.adapter is not None) == (rank > 0)
        blocks = [7, 2, 4]
        with frame.branch():
            frame.begin_prompt()
            frame.bring_back(details(mm, blocks))
            marks = len(opening) + len(closing)
            assert frame.os.recalled_tokens == len(blocks) * N + marks
            rest_ids = mm.encode(random_text(30, seed=2))
            got = frame.extend(rest_ids, "prompt", logits=True)
        tensor = next(name for name in core.blocks.tensors(2) if name.startswith("details"))
        soft = torch.from_numpy(np.concatenate([core.blocks.tensor(block, tensor) for block in blocks])).float()
        sinks = torch.from_numpy(core.blocks.token_ids(0, 0, SMALL.frame.sink_tokens)).long()
    own = copy.deepcopy(tiny_model())
    table = own.get_input_embeddings()
    cache = DynamicCache(config=own.config)
    with torch.no_grad():
        own(sinks[None], **{cache_argument(own): cache}, use_cache=True)
        if lora is not None:
            kept = LowRankMaps.of_part(lora.part({}))
            for name, down, up in zip(kept.names, kept.down, kept.up, strict=True):
                own.get_submodule(name).weight += kept.settings.scale * up @ down
        embeds = torch.cat([table(torch.tensor(opening)), soft, table(torch.tensor(closing)), table(rest_ids)])
        rolling = SMALL.frame.sink_tokens + SMALL.frame.recalled_tokens
        positions = torch.arange(rolling - len(embeds) + len(rest_ids), rolling + len(rest_ids))
        out = own(inputs_embeds=embeds[None], position_ids=positions[None], **{cache_argument(own): cache})
    assert (got - out.logits[0, -len(rest_ids) :]).abs().max() <= 10 * TOLERANCE


def test_means_that_are_to_come_back_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="no writer was trained for this model"):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=DETAILED).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = DETAILED.changed(answer={"recall_mode": "kv"})
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=stored).close()
