"""How large a memory is by the shape of a model, against memories that are coded, on tiny models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from everlong.bench import archive_size
from everlong.bench.archive_size import CodecSize, SizeReport, made_up
from everlong.cli.app import app
from everlong.codecs import transform
from everlong.codecs.coded_context import through_memory
from everlong.codecs.transform_tables import tables_file
from everlong.models.geometry import Geometry
from support import byte_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_CONTEXT": 512, "_AFTER": 32, "_FITTED": 3, "_HELD_OUT": 4}.items():
        monkeypatch.setattr(transform, name, value)


def test_a_model_is_as_large_by_made_up_numbers_as_by_its_own() -> None:
    fit = transform.fit_bases(tiny_model(), byte_tokenizer())
    bases, k, v = made_up(fit, Geometry(*fit.shape), torch.Generator().manual_seed(0))
    for step in (0.4, 0.1):
        tables = tables_file(bases, step, "made up", fit.shape)
        got_k, got_v, size = through_memory(k, v, "", tables, weights="made up")
        assert size == pytest.approx(fit.judge(fit.tables(step))[0], rel=0.1)
        # What comes back is as near as the step says: the tables are those of these numbers.
        for got, x in ((got_k, k), (got_v, v)):
            assert float((got - x).pow(2).mean().sqrt()) < 0.5 * step


def test_groups_of_fewer_layers_code_in_more_bytes() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    wide, narrow = (transform.fit_bases(model, tokenizer, layers_of_group=count) for count in (3, 1))
    assert (len(wide.bases), len(narrow.bases)) == (2, 6)
    assert wide.judge(wide.tables(0.1))[0] < narrow.judge(narrow.tables(0.1))[0]


def test_the_command_needs_no_weights_of_the_model(saved_model: Path, tmp_path: Path) -> None:
    tiny_model("qwen3", num_hidden_layers=5).config.save_pretrained(tmp_path)
    command = ["bench", "--model", str(tmp_path), "--codecs", "--like", str(saved_model)]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) == {field.name for field in dataclasses.fields(SizeReport)}
    assert report["geometry"] == {"layers": 5, "kv_heads": 2, "head_dim": 16}
    sizes = {one["codec"]: CodecSize(**one) for one in report["codecs"]}
    # 5 layers of 2 heads of 16 numbers, K and V; one fp32 a channel of 64 tokens and a bf16 centre; one fp32 a token.
    assert sizes["e4m3"].bytes == 5 * 2 * (2 * 16 + 6 * 16 / 64 + 4)
    finer = [sizes[f"transform, step {step:g}"] for step in archive_size._STEPS]
    assert [one.bytes for one in finer] == sorted(one.bytes for one in finer)
    assert all(one.kl_of_like is not None and one.tables_bytes > 0 for one in finer)
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "5 archived layers, 2 KV heads of 16" in shown.stdout
    assert "an estimate" in shown.stdout
