"""What each codec costs, on a tiny model: the order of the codecs, the command, and what costs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlong import ops
from everlong.cli.app import app
from everlong.codecs import costs, transform
from everlong.codecs.costs import CodecCost, cheapest, contexts_of, cost
from everlong.models.attach import attach
from support import byte_tokenizer, tiny_model


def test_more_bits_are_nearer_and_bytes_are_those_of_the_payload() -> None:
    served = attach(tiny_model(), 256)
    contexts = contexts_of(served, byte_tokenizer(), 2, 256, 32)
    costs = {codec: cost(contexts, codec) for codec in ("int8", "int6", "int4")}
    assert costs["int8"].kl < costs["int6"].kl < costs["int4"].kl
    assert costs["int8"].same_token >= costs["int4"].same_token
    for codec, one in costs.items():
        payload = ops.payload_bytes(256, 64, served.layers, served.kv_heads, served.head_dim, codec)
        assert one.bytes == payload / 256
    # A likelihood cannot be lost by more than all of it, and the mean over the model's own draws is the KL.
    assert all(abs(one.nats_lost) < 1 for one in costs.values())


def test_the_cheapest_is_the_smallest_that_costs_nothing() -> None:
    costs = [CodecCost("a", 9, 1e-5, 0, 1), CodecCost("b", 5, 4e-4, 0, 1), CodecCost("c", 3, 6e-4, 0, 1)]
    assert cheapest(costs) == costs[1]
    assert cheapest(costs[2:]) is None


@pytest.mark.slow
def test_the_doctor_says_what_each_codec_costs(saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_CONTEXT": 256, "_AFTER": 32, "_FITTED": 3, "_HELD_OUT": 1}.items():
        monkeypatch.setattr(transform, name, value)
    monkeypatch.setattr(costs, "STEPS", transform.STEPS[:2])
    result = CliRunner().invoke(app, ["doctor", str(saved_model), "--codec", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    named = [one["codec"] for one in report["codecs"]]
    assert named[: len(costs.CODECS)] == list(costs.CODECS)
    assert len(named) == len(costs.CODECS) + 2
    assert report["cheapest"] in report["codecs"]
    text = CliRunner().invoke(app, ["doctor", str(saved_model), "--codec"])
    assert text.exit_code == 0, text.output
    assert "costs nothing" in text.stdout
