"""The writer: untrained it is pooling by numpy; its pages, its pack, what it learns from, its training."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.models.pack import Pack, load_pack
from everlong.models.rope import rope_table, rotated, unrotated
from everlong.models.soft_tokens import after_soft_tokens, embedded, frozen
from everlong.parts.latents import LatentSettings, _order, runs_of
from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings, writer_of
from everlong.text.control import memory_marks
from support import byte_tokenizer, deep_model, tiny_model
from support.examples import examples

LAYERS, SIZE = (1, 2), 12

READER = LatentSettings(LAYERS, SIZE, embedding_size=10, width=16, heads=2, depth=2, inner=24)

CONFIG = WriterSettings(READER, tokens=8, page_tokens=16, opening=(5, 6), closing=(7,))


def drawn_writer(seed: int = 0, config: WriterSettings = CONFIG) -> WriterNet:
    """One in which nothing is zero."""
    torch.manual_seed(seed)
    writer = WriterNet(config)
    for parameter in writer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    writer.reader.center.normal_()
    writer.reader.scale.uniform_(0.5, 2)
    writer.reader.embedding_scale.fill_(0.3)
    return writer.eval().requires_grad_(requires_grad=False)


def block(length: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(length, len(LAYERS) * SIZE), torch.randn(length, READER.embedding_size)


@examples(30)
@given(st.integers(1, 300), st.integers(1, 40))
def test_runs_are_equal_and_follow_one_another(length: int, count: int) -> None:
    runs = runs_of(length, count)
    sizes = (runs[:, 1] - runs[:, 0]).tolist()
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert int(runs[0, 0]) == 0
    assert int(runs[-1, 1]) == length
    if length >= count:
        assert runs[1:, 0].tolist() == runs[:-1, 1].tolist()


@pytest.mark.parametrize(("length", "tokens"), [(512, 32), (512, 5), (4096, 32), (7, 3), (3, 8), (1, 1)])
def test_untrained_it_is_the_mean_of_equal_runs(length: int, tokens: int) -> None:
    states, embeddings = block(length)
    found = WriterNet.untrained(CONFIG).details(states, embeddings, tokens)
    plain = embeddings.double().numpy()
    bounds = [(i * length // tokens, max(i * length // tokens + 1, (i + 1) * length // tokens)) for i in range(tokens)]
    expected = np.stack([plain[first:last].mean(0) for first, last in bounds])
    assert np.abs(found.detach().numpy() - expected).max() < 1e-5


def test_an_untrained_writer_is_the_same_each_time_and_disturbs_nobody_s_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second = WriterNet.untrained(CONFIG), WriterNet.untrained(CONFIG)
    assert torch.equal(torch.rand(1), expected)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])


def test_a_batch_is_its_blocks_one_by_one() -> None:
    writer = drawn_writer()
    blocks = [block(48, seed) for seed in range(3)]
    states, embeddings = (torch.stack(rows) for rows in zip(*blocks, strict=True))
    found = writer.details_of(states, embeddings)
    assert found.shape == (3, CONFIG.tokens, READER.embedding_size)
    for row, own in zip(found, blocks, strict=True):
        assert (row - writer.details(*own)).abs().max() < 1e-5
    assert (found[0] - found[1]).abs().max() > 0.1


def test_what_is_learned_sees_places_and_all_of_the_block() -> None:
    writer, (states, embeddings) = drawn_writer(), block(64)
    plain = writer.details(states, embeddings)
    other = states.clone()
    other[60] += 3
    assert (writer.details(other, embeddings)[0] - plain[0]).abs().max() > 1e-5
    same = writer.details(states[:1].expand(64, -1), embeddings[:1].expand(64, -1))
    assert (same[0] - same[7]).abs().max() > 1e-3


def test_heads_may_tell_where_in_its_run_a_token_stands() -> None:
    """Waves of the place in a run, by their definition, and nothing of tokens outside of it."""
    offsets = torch.tensor([-0.7, -0.5, -0.25, 0.0, 0.4, 0.6])
    found = _order(offsets, 2)
    assert found is not None
    for offset, row in zip(offsets.tolist(), found.tolist(), strict=True):
        waves = [math.sin(math.pi * offset), math.sin(2 * math.pi * offset)]
        waves += [math.cos(2 * math.pi * offset), math.cos(4 * math.pi * offset)]
        assert row == pytest.approx(waves if abs(offset) <= 0.5 else [0.0] * 4, abs=1e-5)
    assert _order(offsets, 0) is None
    ordered = WriterNet.untrained(dataclasses.replace(CONFIG, reader=dataclasses.replace(READER, order=2)))
    torch.nn.init.normal_(ordered.rest.weight)
    states, embeddings = block(64)
    plain = ordered.details(states, embeddings)
    with torch.no_grad():
        for each in ordered.reader.blocks:
            each.cross.order.zero_()
    assert (ordered.details(states, embeddings) - plain).abs().max() > 1e-3


def test_it_may_begin_with_the_words_that_a_trimmer_keeps() -> None:
    torch.manual_seed(0)
    trimmer = TrimmerNet(TrimmerSettings(LAYERS, SIZE, units=0))
    trimmer.center.normal_()
    trimmer.scale.uniform_(0.5, 2)
    writer, (states, embeddings) = WriterNet.untrained(CONFIG), block(64)
    writer.reader.center.normal_()
    writer.reader.scale.uniform_(0.5, 2)
    writer.count_as(trimmer, 1e4)
    best = trimmer.scores(states).view(CONFIG.tokens, -1).argmax(-1) + torch.arange(0, 64, 64 // CONFIG.tokens)
    assert (writer.details(states, embeddings) - embeddings[best]).abs().max() < 1e-4
    with pytest.raises(ValueError, match="layers"):
        writer.count_as(TrimmerNet(TrimmerSettings((1,), SIZE, units=0)), 1.0)


def test_pages_share_d_out_among_them() -> None:
    writer = drawn_writer()
    for length, tokens in ((64, 8), (60, 8), (64, 2), (512, 32)):
        pages = -(-length // CONFIG.page_tokens)
        runs = runs_of(length, tokens)
        for page in range(pages):
            first, last = page * CONFIG.page_tokens, min(length, (page + 1) * CONFIG.page_tokens)
            own = range(tokens)[writer.of_page(length, page, tokens)]
            for at, (begin, end) in enumerate(runs.tolist()):
                overlaps = begin < last and end > first
                assert not overlaps or at in own or end - first <= 1 or last - begin <= 1
            assert own


def test_a_pack_gives_it_back(tmp_path: pathlib.Path) -> None:
    writer, (states, embeddings) = drawn_writer(), block(48)
    Pack("weights", "name", {WRITER: writer.part({"data": {}})}).save(tmp_path)
    again = writer_of(load_pack(tmp_path))
    assert again is not None
    assert again.settings == writer.settings
    assert (again.details(states, embeddings) - writer.details(states, embeddings)).abs().max() < 0.05
    assert torch.equal(
        again.details(states, embeddings), WriterNet.of_part(writer.part({})).details(states, embeddings)
    )
    assert writer_of(Pack("weights", "name", {})) is None


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        WriterNet.untrained(CONFIG).details(*block(0))
    with pytest.raises(ValueError, match="multiple"):
        LatentSettings(LAYERS, SIZE, 10, width=15, heads=4)


@pytest.mark.parametrize("kind", ["llama", "glm"])
def test_keys_are_turned_to_a_place_and_back(kind: str) -> None:
    table = rope_table(tiny_model(kind).config)
    keys, positions = torch.randn(2, 5, 16), torch.tensor([0, 3, 4, 900, 901])
    turned = rotated(keys, positions, table)
    assert (unrotated(turned, positions, table) - keys).abs().max() < 1e-4
    for at, position in enumerate(positions.tolist()):
        for pair, rate in enumerate(table.inv_freq.tolist()):
            columns = (2 * pair, 2 * pair + 1) if table.interleaved else (pair, pair + len(table.inv_freq))
            plain = np.asarray([complex(*row) for row in keys[:, at, list(columns)].double().tolist()])
            expected = plain * np.exp(1j * position * rate)
            own = [complex(*row) for row in turned[:, at, list(columns)].double().tolist()]
            assert np.abs(np.asarray(own) - expected).max() < 1e-4


def test_vectors_that_are_embeddings_are_the_tokens() -> None:
    model, ids = deep_model(), torch.randint(97, 123, (40,))
    with torch.no_grad():
        expected = model(ids[None]).logits[:, -10:]
        found = after_soft_tokens(model, ids[:7], embedded(model, ids[7:20])[None], ids[20:], 10)
    assert (found - expected).abs().max() < 1e-5
    vectors = embedded(model, ids[7:20])[None].requires_grad_()
    with frozen(model):
        after_soft_tokens(model, ids[:7], vectors, ids[20:], 10).sum().backward()
    assert vectors.grad is not None
    assert float(vectors.grad.abs().sum()) > 0
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_d_stands_between_marks_that_the_tokenizer_has() -> None:
    tokenizer = byte_tokenizer()
    opening, closing = memory_marks(tokenizer)
    assert tokenizer.decode(opening) + tokenizer.decode(closing) == "\n\n[]\n\n"
    tokenizer.add_special_tokens({"extra_special_tokens": ["<MEM_START>", "<MEM_END>"]})
    assert memory_marks(tokenizer) == tuple((tokenizer.convert_tokens_to_ids(m),) for m in ("<MEM_START>", "<MEM_END>"))
