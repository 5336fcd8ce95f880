"""The KV writer: untrained it is the tokens that the Trimmer keeps; its arithmetic, pack, training and table."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import everlong.parts.writer.measure as writing
from everlong.cli import app
from everlong.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong.corpora.record import Record
from everlong.errors import EverlongError
from everlong.eval.tables import print_report
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack, load_pack, pack_of, pack_of_model, pack_with
from everlong.models.soft import behind_kv
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet, KvWriterSettings, kv_writer_of
from everlong.parts.kv_writer.train import KvWriterTrainer, train_on
from everlong.parts.kv_writer.train import Training as KvWriterTraining
from everlong.parts.latents import LatentSettings
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, TrimmerSettings, keep
from everlong.parts.writer.measure import Measuring, behind_blocks
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong.training.evicted import read_evicted
from everlong.training.run import Run
from support import byte_tokenizer, deep_model
from support.texts import starts_of_books

LAYERS, SIZE = (1, 2), 12
READER = LatentSettings(LAYERS, SIZE, width=16, heads=2, depth=1, inner=24)
CONFIG = KvWriterSettings(READER, kv_layers=3, kv_heads=2, head_dim=4, rank=5, merging_heads=2)


def drawn_writer(seed: int = 0) -> KvWriterNet:
    """One in which nothing is zero."""
    torch.manual_seed(seed)
    writer = KvWriterNet(CONFIG)
    for parameter in writer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in writer.named_buffers():
        buffer.normal_() if name == "reader.center" else buffer.uniform_(0.5, 2)
    return writer.eval().requires_grad_(requires_grad=False)


def blocks(count: int, length: int, anchors: int, seed: int = 1) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    chosen = torch.stack([torch.randperm(length)[:anchors].sort().values for _ in range(count)])
    k, v = torch.randn(2, count, CONFIG.kv_layers, CONFIG.kv_heads, length, CONFIG.head_dim)
    return torch.randn(count, length, len(LAYERS) * SIZE), k, v, chosen


@pytest.mark.parametrize(("length", "anchors"), [(64, 8), (64, 64), (512, 16), (3, 2), (1, 1)])
def test_untrained_it_gives_the_anchors_own(length: int, anchors: int) -> None:
    states, k, v, chosen = blocks(2, length, anchors)
    for found, rows in zip(KvWriterNet.untrained(CONFIG)(states, k, v, chosen), (k, v), strict=True):
        for block in range(2):
            assert torch.equal(found[block], rows[block][:, :, chosen[block]])


def test_a_batch_is_its_blocks_one_by_one() -> None:
    writer, given = drawn_writer(), blocks(3, 48, 6)
    whole = writer(*given)
    for block in range(3):
        for found, own in zip(whole, writer(*(rows[block : block + 1] for rows in given)), strict=True):
            assert (found[block] - own[0]).abs().max() < 1e-4


def test_what_an_anchor_takes_over_is_a_mean_of_the_block_s_rows() -> None:
    """By its definition in numpy: shares from what the reader gives, mixed for each layer and head, and the rest."""
    writer, (states, k, v, chosen) = drawn_writer(), blocks(1, 20, 4)
    found = writer(states, k, v, chosen)
    read = writer.reader.tokens(states)
    middle = chosen.double() + 0.5
    latents = writer.reader(read, read[:, chosen[0]], middle, torch.full_like(middle, 5.0))[0].double().numpy()
    weights = {name: tensor.double().numpy() for name, tensor in writer.state_dict().items()}
    heads, width = CONFIG.merging_heads, READER.width // CONFIG.merging_heads
    asking, asked = latents @ weights["asking.weight"].T, read[0].double().numpy() @ weights["asked.weight"].T
    rest = latents @ weights["down.weight"].T @ weights["up.weight"].T + weights["up.bias"]
    rest = rest.reshape(4, 2, CONFIG.kv_layers, CONFIG.kv_heads, CONFIG.head_dim)
    shares = np.zeros((heads, 4, 20))
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        slope = np.log1p(np.exp(weights["nearness"][head]))
        for anchor in range(4):
            away = np.abs(np.arange(20) - int(chosen[0, anchor])) / 5
            logits = asked[:, own] @ asking[anchor, own] / np.sqrt(width) - slope * away
            shares[head, anchor] = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    for which, (rows, scale) in enumerate(((k, "k_scale"), (v, "v_scale"))):
        plain = rows[0].double().numpy()
        for layer in range(CONFIG.kv_layers):
            for head in range(CONFIG.kv_heads):
                mix = np.exp(weights["mix"][which, layer, head])
                mixed = np.tensordot(mix / mix.sum(), shares, 1)  # [anchors, tokens]
                own = plain[layer, head, chosen[0].numpy()]
                merged = mixed @ plain[layer, head]
                expected = own + weights["take"][which, layer, head] * (merged - own)
                expected = expected + rest[:, which, layer, head] * weights[scale][layer, head]
                assert np.abs(found[which][0, layer, head].numpy() - expected).max() < 1e-4


def test_a_pack_gives_it_back(tmp_path: pathlib.Path) -> None:
    writer, given = drawn_writer(), blocks(1, 48, 6)
    Pack("weights", "name", {KV_WRITER: writer.part({})}).save(tmp_path)
    again = kv_writer_of(load_pack(tmp_path))
    assert again is not None
    assert again.settings == writer.settings
    for found, own in zip(again(*given), writer(*given), strict=True):
        assert (found - own).abs().max() < 0.05
    assert kv_writer_of(Pack("weights", "name", {})) is None


# --- training


def drawn_texts(samples: int = 8) -> list[Record]:
    return evicted_texts(byte_tokenizer(), starts_of_books(), samples=samples)


def drawn_trimmer(model: Any) -> TrimmerNet:
    torch.manual_seed(0)
    trimmer = TrimmerNet(TrimmerSettings(LAYERS, model.config.hidden_size, units=0))
    return trimmer.eval().requires_grad_(requires_grad=False)


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


def test_a_text_behind_its_own_keys_is_the_text() -> None:
    model, ids = deep_model(), torch.randint(97, 123, (60,))
    with torch.no_grad():
        out = model(ids[None], use_cache=True)
        k, v = (
            torch.stack([getattr(layer, name)[0, :, :40] for layer in out.past_key_values.layers])
            for name in ("keys", "values")
        )
        found = behind_kv(model, k, v, ids[40:], 7)
    assert (found[0] - out.logits[0, -7:]).abs().max() < 1e-4


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


# --- from books to a table


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
    found = arms.said(place, written, written)
    following = place.behind
    with torch.no_grad():
        alone = model(torch.cat([place.ids[:SINK_TOKENS], following[:-1]])[None]).logits[0, SINK_TOKENS:]
    assert found[writing.NOTHING, 0].nats == pytest.approx(loss(alone, following), abs=1e-4)

    blocks = place.side_by_side(LAYERS)
    chosen = torch.cat([keep(arms.trimmer.scores(own), 4) + at * BLOCK_TOKENS for at, own in enumerate(blocks)])
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


def test_a_model_without_a_pack_has_an_empty_one(tmp_path: pathlib.Path) -> None:
    model = deep_model()
    Pack(weights_fingerprint(model), "", {}).save(tmp_path)
    assert not pack_of_model(model, tmp_path).parts
    with pytest.raises(EverlongError, match="train kv-writer"):
        pack_with(KV_WRITER, "KV writer", model, tmp_path)


@pytest.mark.slow
def test_from_the_command_line_to_three_tables(tmp_path: pathlib.Path) -> None:
    model, folder, pack = deep_model(), str(tmp_path / "model"), str(tmp_path / "pack")
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    Pack(weights_fingerprint(model), "tiny", {TRIMMER: drawn_trimmer(model).part({})}).save(pack)
    texts = []
    for book in starts_of_books()[:2]:
        (tmp_path / f"{book.name}.txt").write_text(book.text, encoding="utf-8")
        texts += ["--text", str(tmp_path / f"{book.name}.txt")]
    given = ["--model", folder, "--pack", pack, *texts, "--work", str(tmp_path / "work")]

    def run(*arguments: str) -> Any:
        found = CliRunner().invoke(app.app, [*arguments, *given, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    small = ["--samples", "8", "--steps", "2", "--tokens", "4,8", "--out", pack]
    made = run("train", "writer", "--told", "2", "--stories", "0", "--why", "1", "--again", "1", *small)
    assert made["steps"] == 2
    assert run("train", "kv-writer", *small)["data"] == {"train": 7, "fit": 1}
    assert set(load_pack(pack).parts) == {TRIMMER, WRITER, KV_WRITER}
    again = ["--why", "1", "--again", "1", "--fitted", "0", "--tokens", "4"]
    reports = run("eval", "writer", "--places", "2", "--slots", "32", *again)
    assert set(reports) == {"behind blocks", "why, to generated blocks", "again"}
    assert reports["behind blocks"]["places"] == 2
