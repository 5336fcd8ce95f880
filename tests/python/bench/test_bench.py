"""What a memory costs, measured on tiny models: what the figures are of, and that nothing is left behind. No times."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import everlong
from everlong.bench import BenchReport, asking, decoding, reading, run_bench, run_cold
from everlong.bench.grown_memory import book_ids, grow, read_seed
from everlong.cli.app import app, main
from everlong.errors import CapacityError, UnsupportedModelError
from everlong.models.provenance import provenance
from support import OWN_STATE, TINY_MEMORY, byte_tokenizer, tiny_model, tiny_text_model

SIZES = (6_000, 4_000)
CONFIG = TINY_MEMORY.changed(search={"index": ("heads", "lexical")})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def hooks(model: torch.nn.Module) -> list[Any]:
    every = [(module._forward_hooks, module._forward_pre_hooks, module.forward) for module in model.modules()]
    return [(list(after), list(before), forward) for after, before, forward in every]


def require_figures(report: BenchReport) -> None:
    read = report.reading
    assert read.everlong_tokens_per_second > 0
    assert read.ratio == pytest.approx(read.everlong_tokens_per_second / read.anchor_tokens_per_second)
    for row, cost, size in zip(report.decoding, report.asking, sorted(SIZES), strict=True):
        assert size <= row.memory_tokens == cost.tokens < size + 1_000
        assert row.everlong_tokens_per_second > 0
        assert row.ratio == pytest.approx(row.everlong_tokens_per_second / row.anchor_tokens_per_second)
        assert cost.restored_tokens > 0
        assert min(cost.search_ms, cost.restore_ms, cost.question_ms) > 0


def test_a_report_says_what_stands_beside_what(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", str(temporary.parent / "cache"))
    monkeypatch.setattr(everlong.retrieval.profile, "FEWEST_PAGES", 1)
    monkeypatch.setattr(everlong.retrieval.profile, "LEAST_RANK", 0)
    model = tiny_model()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    unhooked, attention = hooks(model), model.config._attn_implementation
    report = run_bench(model, byte_tokenizer(), name="tiny", tokens=1_600, sizes=SIZES)
    require_figures(report)
    fitting = everlong.MemoryConfig.fitting(2048)
    assert report.reading.chunk_tokens == fitting.frame.chunk_tokens
    assert report.reading.span_tokens == fitting.frame.sink_tokens + fitting.frame.rolling_tokens
    assert report.reading.tokens == 1_536  # whole chunks
    assert (report.model, report.dtype, report.made_with) == ("tiny", "float32", provenance(model))
    # k and v of 3 layers, 2 heads of 16, and cos and sin.
    assert report.frame_bytes == (2048 + fitting.frame.sink_tokens) * (2 * 3 * 2 * 16 * 4 + 2 * 8 * 4)
    assert 2 * 3 * 2 * 16 < report.disk_token_bytes < 10 * 2 * 3 * 2 * 16  # e4m3, and what stands around it
    assert hooks(model) == unhooked
    assert model.config._attn_implementation == attention
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not list(temporary.iterdir())
    assert not (temporary.parent / "cache").exists()


def test_a_cold_report_says_where_a_first_token_waits(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own parts are the whole, and what came back did so in order of layers, each part once."""
    monkeypatch.setattr(everlong.retrieval.profile, "FEWEST_PAGES", 1)
    monkeypatch.setattr(everlong.retrieval.profile, "LEAST_RANK", 0)
    monkeypatch.setattr("everlong.frame.pages._PART_BYTES", 1)
    monkeypatch.setattr("everlong.bench.cold._QUESTION_TOKENS", 80)  # bytes: some whole words
    report = run_cold(tiny_model(), byte_tokenizer(), name="tiny", sizes=(14_000, 12_000), rounds=1)
    for asked, size in zip(report.asking, (12_000, 14_000), strict=True):
        assert size <= asked.tokens < size + 1_000
        for way in (asked.by_layer, asked.at_once, asked.warm):
            parts = dataclasses.astuple(way)
            assert sum(parts[1:]) == pytest.approx(parts[0])
            assert min(parts) >= 0
        assert [(part.first_layer, part.last_layer) for part in asked.arrived] == [(0, 0), (1, 1), (2, 2)]
        assert sum(part.bytes for part in asked.arrived) == asked.bytes > 0
        for part in asked.arrived:
            assert 0 <= part.started <= part.read <= part.written
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rope"), OWN_STATE)
def test_models_with_layers_of_their_own_state_are_measured(kind: str, rope: str, temporary: Path) -> None:
    require_figures(run_bench(tiny_model(kind, rope), byte_tokenizer(), tokens=512, sizes=SIZES))
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE])
def test_every_chunk_of_the_anchor_sees_the_span_alone(kind: str, rope: str) -> None:
    """Also where a cache cannot be cropped, and however often it is gone on from."""
    model, ids = tiny_model(kind, rope), torch.arange(160) * 37 % 256
    cache = reading.prefilled(model, ids[:96])
    answers: list[torch.Tensor] = []
    listener = model.register_forward_hook(lambda _module, _args, out: answers.append(out.logits[0, -1].clone()))
    for _ in range(2):
        reading.baseline_seconds(model, cache, ids[96:], 32)
    listener.remove()
    assert cache.get_seq_length() == 96
    assert len(answers) == 4
    with torch.no_grad():
        for answer, chunk in zip(answers, (*ids[96:].split(32), *ids[96:].split(32)), strict=True):
            alone = model(input_ids=torch.cat([ids[:96], chunk])[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(answer, alone, rtol=1e-3, atol=1e-3)


def test_a_grown_memory_is_copies_of_what_was_read(tmp_path: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIG) as mm:
        read_seed(mm, 2_000)
        assert grow(mm, 1_000) == 2_000
        held = grow(mm, 5_000)
        assert 5_000 <= held == mm.memory.stats().tokens < 5_000 + CONFIG.archive.block_tokens
        own = mm.memory.blocks(source="book")
        copies = mm.memory.blocks(source="copy")
        assert [block.payload_bytes for block in copies[:3]] == [block.payload_bytes for block in own[1:4]]
        assert mm.memory.verify().damage == ()
        cost = asking.measure(mm, held, rounds=1)
        assert cost.restored_tokens > 0
        assert cost.scanned_bytes > 0
        length = decoding.resident_tokens(mm)
        ids = book_ids(mm, length + 4)
        for _ in range(2):  # what was fed is forgotten again
            assert len(decoding.frame_seconds(mm, ids[:4])) == 4
            assert decoding.resident_tokens(mm) == length
        assert len(decoding.baseline_seconds(mm.model, ids, length)) == 4


def test_what_cannot_be_measured_is_refused_in_one_line(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^bench measures memories of keys and values: gpt2: ") as told:
        run_bench(tiny_text_model(), byte_tokenizer(), sizes=SIZES)
    # By text alone it would be read, by commands that can be told so; this one cannot.
    assert "MemoryConfig" not in str(told.value)
    assert str(told.value).endswith(
        ". `everlong read` and `everlong ask` serve it by text alone with --set answer.recall_mode=text"
    )
    with pytest.raises(UnsupportedModelError, match="training mode"):
        run_bench(tiny_model().train(), byte_tokenizer(), sizes=SIZES)
    with pytest.raises(ValueError, match="at least one size"):
        run_bench(tiny_model(), byte_tokenizer(), sizes=())
    with pytest.raises(ValueError, match=r"the shipped books have 1,1.*: fewer --tokens"):
        run_bench(tiny_model(), byte_tokenizer(), tokens=2_000_000)
    with pytest.raises(CapacityError, match="smaller --sizes"):
        run_bench(tiny_model(), byte_tokenizer(), sizes=(10**13,))
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_bench_on_the_command_line(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    command = ["bench", "--model", str(tmp_path / "model"), "--dtype", "float32", "--tokens", "512", "--sizes", "4000"]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) == {field.name for field in dataclasses.fields(BenchReport)}
    speeds = {"everlong_tokens_per_second", "anchor_tokens_per_second", "ratio"}
    assert set(report["reading"]) == {"tokens", "chunk_tokens", "span_tokens"} | speeds
    assert [set(row) for row in report["decoding"]] == [{"memory_tokens", "frame_tokens"} | speeds]
    assert [set(row) for row in report["asking"]] == [{field.name for field in dataclasses.fields(asking.QuestionCost)}]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "threads, torch" in shown.stdout.splitlines()[0]
    for what in ("reading", "decoding", "search", "restore", "its own forward", "frame on the device", "on disk"):
        assert what in shown.stdout


def test_a_model_that_is_served_by_text_alone_is_one_line_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_text_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(sys, "argv", ["everlong", "bench", "--model", str(tmp_path / "model"), "--dtype", "float32"])
    capsys.readouterr()
    with pytest.raises(SystemExit, match="1"):
        main()
    loading, told = capsys.readouterr().err.splitlines()
    assert loading.startswith("loading ")
    assert told.startswith("everlong: bench measures memories of keys and values: gpt2: ")
