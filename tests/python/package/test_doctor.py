"""The doctor on models that are served, on one that is broken, and on one that is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from everlong import doctor
from everlong.cli import main
from everlong.cli.app import app, print_json
from everlong.doctor import _text_ids, compare, examine
from everlong.errors import UnsupportedModelError
from everlong.models.provenance import provenance
from support import TINY_KINDS, byte_tokenizer, tiny_model, tiny_text_model
from support.models import ROPE


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_exact_parts_are_exact_and_lossy_codecs_are_said_to_be(kind: str, rope: str) -> None:
    report = examine(tiny_model(kind, rope), byte_tokenizer(), tokens=256)
    verdicts = {check.name: check.verdict for check in report.checks}
    assert report.healthy
    assert report.rope == {"nested": "by layer kind", "nested proportional": "by layer kind", "partial": "default"}.get(
        rope, rope
    )
    assert verdicts["frame"] == "exact"
    assert verdicts["archive fp32"] == "exact"
    assert verdicts["archive e4m3"] == "approximate"
    assert all(verdict == "exact" for name, verdict in verdicts.items() if name.startswith("moved"))


@pytest.fixture
def displaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back comes one position too far."""
    from everlong.kv_cache.buffers import Buffers

    whole = Buffers.write_pages

    def displaced(self: Buffers, payload: torch.Tensor, placements: torch.Tensor, **how: object) -> None:
        placements = placements.clone()
        placements[:, 5] += 1
        whole(self, payload, placements, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Buffers, "write_pages", displaced)


@pytest.mark.usefixtures("displaced")
@pytest.mark.parametrize("tokens", [64, 256])
def test_a_frame_that_computes_something_else_is_found(tokens: int) -> None:
    """The control: one shifted position in what comes back, and the doctor must not call it healthy."""
    report = examine(tiny_model(), byte_tokenizer(), tokens=tokens)
    assert not report.healthy
    wrong = {check.name.split()[0] for check in report.checks if check.verdict == "wrong"}
    assert wrong == {"archive", "moved"}


def test_a_model_in_16_bits_is_examined_without_a_warning() -> None:
    model = tiny_model()
    for parameter in model.parameters():  # its rotary frequencies stay as they are
        parameter.data = parameter.data.bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert examine(model, byte_tokenizer(), tokens=128).dtype == "bfloat16"


def test_layers_without_rotation_are_listed() -> None:
    report = examine(tiny_model("smollm3", "default"), byte_tokenizer(), tokens=64)
    assert sum(report.layers.values()) == 3
    assert report.layers["full_attention, no RoPE"] >= 1


@pytest.mark.usefixtures("displaced")
@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_line_fails_where_something_is_wrong(saved_model: Path, as_json: bool) -> None:
    arguments = ["doctor", str(saved_model), "--dtype", "float32", "--tokens", "128"]
    result = CliRunner().invoke(app, [*arguments, "--json"] if as_json else arguments)
    assert result.exit_code == 1
    if as_json:
        assert "wrong" in {check["verdict"] for check in json.loads(result.stdout)["checks"]}
    else:
        assert "Do not use everlong with this model." in result.stdout


def test_the_command_line_fails_where_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_text_model("gpt2").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(sys, "argv", ["everlong", "doctor", str(tmp_path), "--dtype", "float32"])
    capsys.readouterr()  # how far saving was
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"loading {tmp_path}\neverlong: gpt2: ")
    assert told.err.count("\n") == 2


def test_a_model_without_rotary_positions_is_refused() -> None:
    config = transformers.GPT2Config(vocab_size=257, n_embd=32, n_layer=1, n_head=2, n_positions=512)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match=r"gpt2: .*By text alone it works"):
        examine(model, byte_tokenizer())


def test_the_text_is_as_long_as_is_asked_for() -> None:
    assert len(_text_ids(byte_tokenizer(), 200_000)) == 200_000  # more than one book has


def test_comparison_of_logits() -> None:
    expected = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    same = compare(expected + 5.0, expected)  # a constant added to all logits changes no probability
    assert same.logit == pytest.approx(5.0)
    assert same.kl == pytest.approx(0.0, abs=1e-12)
    assert same.agreement == 1.0
    other = compare(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), expected)
    # Half of KL((1/4, 3/4) || (1/2, 1/2)).
    assert other.kl == pytest.approx((0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2)
    assert other.agreement == 0.5
    unknown = compare(torch.full((2, 2), math.nan), expected)
    assert math.isnan(unknown.kl)
    assert math.isnan(unknown.logit)


def test_a_codec_that_makes_numbers_of_nothing_is_found(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    restored = doctor._restored

    def broken(model, tokenizer, ids, codec, *, moved):
        return restored(model, tokenizer, ids, codec, moved=moved) * (math.nan if codec == "e4m3" else 1)

    monkeypatch.setattr(doctor, "_restored", broken)
    report = examine(tiny_model(), byte_tokenizer(), tokens=128)
    assert [check.name for check in report.checks if check.verdict == "wrong"] == ["archive e4m3"]
    print_json(dataclasses.asdict(report))
    shown = json.loads(capsys.readouterr().out)
    assert [check["difference"]["kl"] for check in shown["checks"] if check["verdict"] == "wrong"] == [None]


def test_doctor_on_the_command_line(saved_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", str(saved_model), "--dtype", "float32", "--tokens", "128", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["made_with"] == provenance(tiny_model())
    assert report["layers"] == {"full_attention": 3}
    # k and v of 3 layers, 2 heads of 16, and cos and sin, for as many tokens as the model's window; sinks on top.
    assert report["frame_bytes"] == (report["frame_tokens"] + 16) * (2 * 3 * 2 * 16 * 4 + 2 * 8 * 4)
    assert len(report["checks"]) >= 5
    shown = CliRunner().invoke(app, ["doctor", str(saved_model), "--dtype", "float32", "--tokens", "128"])
    assert shown.exit_code == 0
    assert "exact" in shown.stdout


@pytest.mark.parametrize(
    ("original", "tokens"),
    [(512, 320), (512, 384), (512, 512), (480, 320), (496, 448), (240, 64), (239, 64), (128, 64)],
)
def test_a_text_about_as_long_as_a_short_longrope_table_is_measured_by_one_table(original: int, tokens: int) -> None:
    """Text and frames have the short factors or the long ones, whichever they are; and so has the yardstick."""
    rope = {**ROPE["longrope"], "original_max_position_embeddings": original}
    model = tiny_model("phi3", "longrope", rope_parameters=rope, original_max_position_embeddings=original)
    report = examine(model, byte_tokenizer(), tokens=tokens)
    assert report.healthy
    assert report.tokens == tokens
    assert report.rounding.logit < 1e-4  # of one table in chunks; two of them are 0.5 apart
