"""The KV writer: untrained it is the tokens that the Trimmer keeps; its arithmetic, pack, training and table."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from everlong.cli import app
from everlong.errors import EverlongError
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack, load_pack, pack_of_model, pack_with
from everlong.models.soft_tokens import after_kv
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet, kv_writer_of
from everlong.parts.trimmer.model import TRIMMER
from everlong.parts.writer.model import WRITER
from support import byte_tokenizer, deep_model
from support.parts.small_kv_writer import CONFIG, READER, blocks, drawn_trimmer
from support.texts import starts_of_books


def drawn_writer(seed: int = 0) -> KvWriterNet:
    """One in which nothing is zero."""
    torch.manual_seed(seed)
    writer = KvWriterNet(CONFIG)
    for parameter in writer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in writer.named_buffers():
        buffer.normal_() if name == "reader.center" else buffer.uniform_(0.5, 2)
    return writer.eval().requires_grad_(requires_grad=False)


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


def test_a_text_behind_its_own_keys_is_the_text() -> None:
    model, ids = deep_model(), torch.randint(97, 123, (60,))
    with torch.no_grad():
        out = model(ids[None], use_cache=True)
        k, v = (
            torch.stack([getattr(layer, name)[0, :, :40] for layer in out.past_key_values.layers])
            for name in ("keys", "values")
        )
        found = after_kv(model, k, v, ids[40:], 7)
    assert (found[0] - out.logits[0, -7:]).abs().max() < 1e-4


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
