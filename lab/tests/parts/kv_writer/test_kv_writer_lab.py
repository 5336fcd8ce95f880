"""The KV writer: untrained it is the tokens that the Trimmer keeps; its arithmetic, pack, training and table."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import everlong_lab.parts.writer.measure as writing
from everlong.models.pack import Pack, pack_of
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet, KvWriterSettings
from everlong.parts.latents import LatentSettings
from everlong.parts.trimmer.model import TRIMMER, tokens_to_keep
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong_lab.corpora.record import Record
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.kv_writer.train import KvWriterTrainer, train_on
from everlong_lab.parts.kv_writer.train import Training as KvWriterTraining
from everlong_lab.parts.writer.measure import Measuring, behind_blocks
from everlong_lab.training.distillation import read_evicted
from everlong_lab.training.run import Run
from support import byte_tokenizer, deep_model
from support.parts.small_kv_writer import LAYERS, drawn_trimmer
from support.texts import starts_of_books


def drawn_texts(samples: int = 8) -> list[Record]:
    return evicted_texts(byte_tokenizer(), starts_of_books(), samples=samples)


def small_training(**more: Any) -> KvWriterTraining:
    return KvWriterTraining(**{"steps": 4, "batch": 2, "check_every": 2, "threads": 1, "tokens": (4, 16), **more})


def small_config(model: Any) -> KvWriterSettings:
    own = model.config
    reader = LatentSettings(LAYERS, own.hidden_size, width=32, heads=2, depth=1, inner=32)
    return KvWriterSettings(reader, own.num_hidden_layers, own.num_key_value_heads, own.head_dim, rank=8)


def trainer(folder: pathlib.Path, training: KvWriterTraining, model: Any, **more: Any) -> KvWriterTrainer:
    reads = read_evicted(model, drawn_texts(), LAYERS, folder / "streams", with_kv=True)
    run = Run(model, byte_tokenizer(), folder, **more)
    return KvWriterTrainer(run, reads, drawn_trimmer(model), small_config(model), training)


@pytest.mark.slow
def test_training_goes_on_where_it_was_cut_short_bit_for_bit(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    whole, whole_log = trainer(tmp_path / "whole", small_training(), model).train()

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(step: int, found: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    cut = tmp_path / "cut"
    with pytest.raises(Stopped):
        trainer(cut, small_training(), model, check=stop).train()
    resumed, resumed_log = trainer(cut, small_training(), model).train()
    assert resumed_log.steps == whole_log.steps == 4
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])


@pytest.mark.slow
def test_what_is_learned_brings_the_model_nearer_to_itself(tmp_path: pathlib.Path) -> None:
    """On the text that it learns from, by a model to which it matters what is before a text."""
    model = deep_model()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim == 2 else 1
    (read,) = read_evicted(model, drawn_texts(1), LAYERS, tmp_path, with_kv=True)
    same = dataclasses.replace(read, text=dataclasses.replace(read.text, split="fit"))
    training = small_training(steps=30, check_every=10, learning_rate=5e-3, distractors=(0,), warmup=1)
    run = Run(model, byte_tokenizer(), tmp_path)
    _, learned = KvWriterTrainer(run, [read, same], drawn_trimmer(model), small_config(model), training).train()
    assert min(learned.held_out) < 0.97 * learned.held_out[0]


def packed(model: Any, folder: pathlib.Path) -> Pack:
    size = model.config.hidden_size
    reader = LatentSettings(LAYERS, size, size, width=32, heads=2, inner=32)
    writer = WriterNet.untrained(WriterSettings(reader, opening=(10, 91), closing=(93, 10)))
    torch.nn.init.normal_(writer.rest.weight, std=0.1)
    parts = {TRIMMER: drawn_trimmer(model).part({}), WRITER: writer.part({})}
    run, settings = Run(model, None, folder), {"width": 32, "heads": 2, "inner": 32}
    trained = train_on(run, drawn_texts(), drawn_trimmer(model), small_training(), settings=settings)
    return pack_of(model, {**parts, **trained})


@pytest.mark.slow
def test_every_method_is_what_the_model_says_behind_it(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    pack = packed(model, tmp_path)
    config = Measuring(slots=(32, 64), places=2, beside=tmp_path / "beside")
    untrained = KvWriterNet.untrained(small_config(model))
    Pack(pack.model, "", {KV_WRITER: untrained.part({})}).save(tmp_path / "beside")
    known = list(behind_blocks((model, tokenizer), pack, config, books=starts_of_books()))
    report = known[-1]
    assert report.places == len(known) == 2
    one = dataclasses.replace(config, places=1)
    (first,) = behind_blocks((model, tokenizer), pack, one, books=starts_of_books())
    assert first.said == known[0].said
    assert report.said[writing.ALL]["0"]["kl"] == pytest.approx(0, abs=1e-5)
    assert set(report.said) == {
        writing.NOTHING, writing.ALL, writing.POOLED, writing.DETAILS, writing.STRANGE,
        writing.KEPT, writing.KEPT_THERE, writing.KV, writing.KV_STRANGE, writing.KV_BESIDE, writing.NEWEST,
    }  # fmt: skip
    assert report.said[writing.KV_BESIDE]["32"]["nats"] == pytest.approx(
        report.said[writing.KEPT]["32"]["nats"], abs=1e-4
    )
    step = next(s for s in report.differences if (s["method"], s["slots"]) == (writing.KV, 64))
    expected = report.said[writing.KV]["64"]["nats"] - report.said[step["less"]]["64"]["nats"]
    assert step["nats"] == pytest.approx(expected, abs=1e-9)
    console = Console(record=True, width=200)
    print_report(report, console)
    assert f"{writing.KV} less {writing.KEPT}" in console.export_text()


def test_the_baselines_are_masks_over_the_whole_text(tmp_path: pathlib.Path) -> None:
    """Plain transformers: nothing of the blocks, and the Trimmer's tokens at their places."""
    model, tokenizer = deep_model(), byte_tokenizer()
    arms = writing._Arms.of(model, Pack("", "", {TRIMMER: drawn_trimmer(model).part({})}))
    (place,) = writing._places(model, tokenizer, starts_of_books(), 1, LAYERS, np.random.default_rng(0))
    written = arms.written(place, (32,))
    found = arms.losses(place, written, written)
    following = place.behind
    with torch.no_grad():
        alone = model(torch.cat([place.ids[:SINK_TOKENS], following[:-1]])[None]).logits[0, SINK_TOKENS:]
    assert found[writing.NOTHING, 0].nats == pytest.approx(loss(alone, following), abs=1e-4)

    blocks = place.side_by_side(LAYERS)
    chosen = torch.cat(
        [tokens_to_keep(arms.trimmer.scores(own), 4) + at * BLOCK_TOKENS for at, own in enumerate(blocks)]
    )
    end = SINK_TOKENS + BLOCKS * BLOCK_TOKENS
    seen = torch.ones(end + FOLLOWING, end + FOLLOWING, dtype=torch.bool).tril()
    hidden = torch.ones(end + FOLLOWING, dtype=torch.bool)
    hidden[:SINK_TOKENS] = hidden[end:] = hidden[SINK_TOKENS + chosen] = False
    seen[end:, hidden] = False
    with torch.no_grad():
        logits = model(torch.cat([place.ids[:end], following[:-1]])[None], attention_mask=seen[None, None]).logits
    assert found[writing.KEPT_THERE, 32].nats == pytest.approx(loss(logits[0, end:], following), abs=1e-4)


def loss(logits: torch.Tensor, following: torch.Tensor) -> float:
    return float(-logits.log_softmax(-1).gather(-1, following[1:, None]).mean())


def test_slots_are_shared_by_eight_blocks() -> None:
    with pytest.raises(ValueError, match="multiples"):
        Measuring(slots=(30,))
