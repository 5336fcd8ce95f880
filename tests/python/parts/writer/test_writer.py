"""The writer: untrained it is pooling by numpy; its pages, its pack, what it learns from, its training."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong.corpora.record import Record
from everlong.models.pack import Pack, PackPart, load_pack, pack_of
from everlong.models.rope import rope_table, rotated, unrotated
from everlong.models.soft import behind_vectors, embedded, frozen
from everlong.parts.latents import LatentSettings, _order, runs_of
from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings, writer_of
from everlong.parts.writer.train import Training as WriterTraining
from everlong.parts.writer.train import WriterTrainer, train_on
from everlong.text.control import memory_marks
from everlong.training.evicted import read_evicted
from everlong.training.run import Run
from support import byte_tokenizer, deep_model, tiny_model
from support.examples import examples
from support.texts import starts_of_books

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


# --- what it learns from


def drawn_texts(samples: int = 8) -> list[Record]:
    return evicted_texts(byte_tokenizer(), starts_of_books(), samples=samples)


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


def test_what_is_taught_is_what_the_model_says_with_all_in_sight(tmp_path: pathlib.Path) -> None:
    model, (text, *_) = deep_model(), drawn_texts(1)
    (read,) = read_evicted(model, [text], LAYERS, tmp_path, with_kv=True)
    with torch.no_grad():
        out = model(text.ids[None], output_hidden_states=True)
    ends = [SINK_TOKENS + blocks * BLOCK_TOKENS for blocks in range(1, BLOCKS + 1)]
    wide = torch.cat([out.hidden_states[layer][0, SINK_TOKENS : ends[-1]] for layer in LAYERS], dim=-1)
    assert (read.states().flatten(0, 1).float() - wide).abs().max() < 2e-2
    for blocks in (1, BLOCKS):
        end = ends[blocks - 1]
        assert torch.equal(text.behind(blocks)[: FOLLOWING + 1], text.ids[end - 1 : end + FOLLOWING])
        whole = out.logits[0, end - 1 : end - 1 + FOLLOWING].log_softmax(-1)
        taught = read.taught(blocks)
        assert (taught.logs - whole.gather(-1, taught.tokens)).abs().max() < 1e-2
        assert float(taught.divergence(whole)) == pytest.approx(0, abs=1e-3)
        # Every token but those that are named counts as one.
        other = torch.randn_like(whole).log_softmax(-1)
        named = torch.zeros_like(whole, dtype=torch.bool).scatter(-1, taught.tokens, value=True)
        p, q = whole.double().exp(), other.double().exp()
        rest_p, rest_q = ((own * ~named).sum(-1) for own in (p, q))
        expected = ((p * (p / q).log() * named).sum(-1) + rest_p * (rest_p / rest_q).log()).mean()
        assert float(taught.divergence(other)) == pytest.approx(float(expected), rel=2e-2)


def test_keys_and_values_of_a_block_are_the_model_s_own_un_rotated(tmp_path: pathlib.Path) -> None:
    model, (text, *_) = deep_model(), drawn_texts(1)
    (read,) = read_evicted(model, [text], LAYERS, tmp_path, with_kv=True)
    with torch.no_grad():
        cache = model(text.ids[None], use_cache=True).past_key_values
    first = SINK_TOKENS + 3 * BLOCK_TOKENS
    k, v = read.kv(3)
    table = rope_table(model.config)
    for at, layer in enumerate(cache.layers):
        own = layer.keys[0, :, first : first + BLOCK_TOKENS]
        turned = rotated(k[at], torch.arange(first, first + BLOCK_TOKENS), table)
        assert (turned - own).norm() < 0.05 * own.norm()  # in 8 bits
        values = layer.values[0, :, first : first + BLOCK_TOKENS]
        assert (v[at] - values).norm() < 0.05 * values.norm()
    sink_k, _ = read.sinks()
    assert (sink_k[0] - cache.layers[0].keys[0, :, :SINK_TOKENS]).abs().max() < 1e-5


def test_reading_goes_on_where_it_was_cut_short(tmp_path: pathlib.Path) -> None:
    model, texts = deep_model(), drawn_texts(3)
    told: list[int] = []
    read_evicted(model, texts[:2], LAYERS, tmp_path, progress=lambda what, done, of: told.append(done))
    read_evicted(model, texts, LAYERS, tmp_path, progress=lambda what, done, of: told.append(done))
    assert told == [1, 2, 3]


# --- training


def small_training(**more: Any) -> WriterTraining:
    bare = {"again": 0.0, "why": 0.0, "lora": 0}
    return WriterTraining(**{"steps": 4, "batch": 2, "check_every": 2, "threads": 1, "tokens": (4, 8), **bare, **more})


def small_config(model: Any) -> WriterSettings:
    size = model.config.hidden_size
    opening, closing = memory_marks(byte_tokenizer())
    return WriterSettings(LatentSettings(LAYERS, size, size, width=32, heads=2, inner=32), 8, 64, opening, closing)


def trainer(folder: pathlib.Path, training: WriterTraining, model: Any, **more: Any) -> WriterTrainer:
    reads = read_evicted(model, drawn_texts(), LAYERS, folder / "streams")
    return WriterTrainer(Run(model, byte_tokenizer(), folder, **more), reads, small_config(model), training)


def test_vectors_that_are_embeddings_are_the_tokens() -> None:
    model, ids = deep_model(), torch.randint(97, 123, (40,))
    with torch.no_grad():
        expected = model(ids[None]).logits[:, -10:]
        found = behind_vectors(model, ids[:7], embedded(model, ids[7:20])[None], ids[20:], 10)
    assert (found - expected).abs().max() < 1e-5
    vectors = embedded(model, ids[7:20])[None].requires_grad_()
    with frozen(model):
        behind_vectors(model, ids[:7], vectors, ids[20:], 10).sum().backward()
    assert vectors.grad is not None
    assert float(vectors.grad.abs().sum()) > 0
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
def test_training_goes_on_where_it_was_cut_short_bit_for_bit(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    whole, whole_log, _ = trainer(tmp_path / "whole", small_training(again=0.5), model).train()

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(step: int, found: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    cut = tmp_path / "cut"
    with pytest.raises(Stopped):
        trainer(cut, small_training(again=0.5), model, check=stop).train()
    resumed, resumed_log, _ = trainer(cut, small_training(again=0.5), model).train()
    assert resumed_log.steps == whole_log.steps == 4
    for name, tensor in whole.writer.state_dict().items():
        assert torch.equal(tensor, resumed.writer.state_dict()[name])
    assert resumed_log.held_out == whole_log.held_out


@pytest.mark.slow
def test_what_is_learned_brings_the_model_nearer_to_itself(tmp_path: pathlib.Path) -> None:
    """On the text that it learns from, by a model to which it matters what is before a text."""
    model, (text, *_) = deep_model(), drawn_texts(1)
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim == 2 else 1
    (read,) = read_evicted(model, [text], LAYERS, tmp_path)
    same = dataclasses.replace(read, text=dataclasses.replace(text, split="fit"))
    training = small_training(steps=30, check_every=10, learning_rate=5e-3, missing=0.0, distractors=(0,), warmup=1)
    run = Run(model, byte_tokenizer(), tmp_path)
    _, learned, _ = WriterTrainer(run, [read, same], small_config(model), training).train()
    assert min(learned.held_out) < 0.97 * learned.held_out[0]


@pytest.mark.slow
def test_checkpointing_activations_changes_nothing_but_memory(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    plain, _, _ = trainer(tmp_path / "plain", small_training(steps=2), model).train()
    again, _, _ = trainer(tmp_path / "again", small_training(steps=2, gradient_checkpointing=True), model).train()
    assert not model.training
    for name, tensor in plain.writer.state_dict().items():
        assert (tensor - again.writer.state_dict()[name]).abs().max() < 1e-4


def test_without_texts_to_hold_out_nothing_is_trained(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    reads = read_evicted(model, drawn_texts(2), LAYERS, tmp_path)
    with pytest.raises(ValueError, match="none"):
        WriterTrainer(Run(model, byte_tokenizer(), tmp_path), reads, small_config(model), small_training())


def test_d_stands_between_marks_that_the_tokenizer_has() -> None:
    tokenizer = byte_tokenizer()
    opening, closing = memory_marks(tokenizer)
    assert tokenizer.decode(opening) + tokenizer.decode(closing) == "\n\n[]\n\n"
    tokenizer.add_special_tokens({"extra_special_tokens": ["<MEM_START>", "<MEM_END>"]})
    assert memory_marks(tokenizer) == tuple((tokenizer.convert_tokens_to_ids(m),) for m in ("<MEM_START>", "<MEM_END>"))


@pytest.mark.slow
def test_from_books_to_a_pack(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    run, settings = Run(model, byte_tokenizer(), tmp_path / "work"), {"width": 32, "heads": 2, "inner": 32}
    parts = train_on(run, drawn_texts(), small_training(layers=LAYERS), settings=settings)
    pack_of(model, parts).save(tmp_path / "pack")
    part = load_pack(tmp_path / "pack").parts[WRITER]
    assert part.made["data"] == {"train": 7, "fit": 1}
    assert part.made["steps"] == 4
    figures = part.made["figures"]["held out, in nats a token"]
    assert figures["trained"] <= figures["at first"] == part.made["log"][0]["held out"]
    assert WriterNet.of_part(part).settings.opening == memory_marks(byte_tokenizer())[0]


@pytest.mark.slow
def test_a_training_goes_on_from_a_pack_s_writer(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    shared: dict[str, Any] = {"settings": {"width": 32, "heads": 2, "inner": 32}}

    def train(folder: str, training: WriterTraining, **more: Any) -> PackPart:
        training = dataclasses.replace(training, layers=LAYERS)
        return train_on(Run(model, tokenizer, tmp_path / folder), drawn_texts(), training, **{**shared, **more})[WRITER]

    first = train("a", small_training(lora=2))
    again = train("b", small_training(lora=2, steps=0), begun=first)
    # Nothing was learned since: it is what it was, and says where it comes from.
    assert again.tensors.keys() == first.tensors.keys()
    for name, tensor in first.tensors.items():
        torch.testing.assert_close(again.tensors[name], tensor, rtol=1e-5, atol=0)
    assert again.made["begun with"]["id"] == first.id
    assert again.made["begun with"]["steps"] == first.made["steps"] > 0
    for wrong, said in ((small_training(lora=0), "must both have maps"), (small_training(lora=3), "has maps of")):
        with pytest.raises(ValueError, match=said):
            train("b", wrong, begun=first)
    other = {"width": 16, "heads": 2, "inner": 32}
    with pytest.raises(ValueError, match="writer has another shape"):
        train("b", small_training(lora=2), begun=first, settings=other)
