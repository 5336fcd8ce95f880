"""The writer: untrained it is pooling by numpy; its pages, its pack, what it learns from, its training."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch

from everlong.models.pack import PackPart, load_pack, pack_of
from everlong.models.rope import rope_table, rotated
from everlong.parts.latents import LatentSettings
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong.text.control import memory_marks
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong_lab.corpora.record import Record
from everlong_lab.parts.writer.train import Training as WriterTraining
from everlong_lab.parts.writer.train import WriterTrainer, train_on
from everlong_lab.training.distillation import read_evicted
from everlong_lab.training.run import Run
from support import byte_tokenizer, deep_model
from support.texts import starts_of_books

LAYERS, SIZE = (1, 2), 12


def drawn_texts(samples: int = 8) -> list[Record]:
    return evicted_texts(byte_tokenizer(), starts_of_books(), samples=samples)


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
