"""Perplexity by policy: the full-attention reference, and a whole run on a tiny model."""

import dataclasses
import functools
import io
import json
import math
import pathlib
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from everlong import UnsupportedModelError
from everlong.cli.app import app
from everlong.models.provenance import provenance
from everlong_lab.data.books import books_in
from everlong_lab.eval import ppl
from everlong_lab.eval.by_position import BIN_TOKENS, means_by_position
from everlong_lab.eval.ppl import POLICIES, PplConfig, full_attention_losses, run_ppl
from everlong_lab.eval.tables import print_report
from support import TINY_MEMORY, WINDOW, byte_tokenizer, tiny_model, tiny_text_model

MEMORY = TINY_MEMORY.changed(answer={"recent_every": 64, "recent_blocks": 1})


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> pathlib.Path:
    for number in range(2):
        sentences = (f"Line {n} of book {number} says {n * n}. " for n in range(120))
        (tmp_path / f"book-{number}.txt").write_text("".join(sentences), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("prefix", "tokens"), [(700, 0), (3_000, 0), (700, 300), (0, 0), (700, 1)])
def test_full_attention_is_one_plain_forward_over_what_fits(prefix: int, tokens: int) -> None:
    model = tiny_model()
    ids = torch.randint(0, 256, (prefix + 90,), generator=torch.Generator().manual_seed(5)).tolist()
    losses = full_attention_losses(model, ids[:prefix], ids[prefix:], tokens)
    seen = max(90, min(prefix + 90, tokens or WINDOW))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids[-seen:]])).logits[0, -90:-1].double()
    expected = -torch.log_softmax(logits, dim=-1)[torch.arange(89), torch.tensor(ids[-89:])]
    torch.testing.assert_close(losses.double(), expected, atol=1e-4, rtol=0)


def test_a_whole_run(corpus: pathlib.Path) -> None:
    config = PplConfig(places=3, places_per_book=2, prefix_tokens=1_000, between_tokens=300, scored_tokens=150, seed=2)
    lines: list[str] = []
    report = run_ppl((tiny_model(), byte_tokenizer()), config, corpus=corpus, memory_config=MEMORY, log=lines.append)
    read_back = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert {*POLICIES, "full", "recovered_fraction", "places", "config", "model"} <= set(read_back)
    assert read_back["made_with"] == [provenance(tiny_model())]
    assert (read_back["config"]["dtype"], read_back["config"]["memory"]["archive"]["codec"]) == ("float32", "fp32")
    assert set(read_back["recovered_fraction"]) == {"mean", "stderr"}
    assert len(report.places) == len(lines) == 3
    assert {place.source for place in report.places} == {"book-0", "book-1"}
    first, second = (place.first_token for place in report.places[:2])
    assert second - first == config.between_tokens
    for policy in (*POLICIES, "full", "bf16"):
        mean = sum(getattr(place, policy) for place in report.places) / 3
        assert getattr(report, policy) == pytest.approx(math.exp(mean))
    assert len({report.window, report.recent, report.random, report.full, report.bf16}) == 5
    # MEMORY archives in fp32: bf16 costs little, and the mean of the differences is the difference of the means.
    assert abs(report.codec_loss["mean"]) < 0.05
    assert report.codec_loss["mean"] == pytest.approx(math.log(report.prompt) - math.log(report.bf16), abs=1e-9)
    for policy, bins in report.by_position.items():
        # 149 scored tokens at most: text cut out of a book may come out in other tokens.
        assert len(bins) == 4
        assert sum(bins) / 4 == pytest.approx(math.log(getattr(report, policy)), rel=0.2)
    gains = [sum(place.window - getattr(place, key) for place in report.places) for key in ("prompt", "full")]
    if gains[1] > 0:
        assert report.recovered_fraction["mean"] == pytest.approx(gains[0] / gains[1])
    else:
        assert report.recovered_fraction["mean"] is None

    console = Console(record=True, width=100, file=io.StringIO())
    print_report(report, console)
    assert f"{report.window:.3f}" in console.export_text()

    one = run_ppl(
        (tiny_model(), byte_tokenizer()), dataclasses.replace(config, places=1), corpus=corpus, memory_config=MEMORY
    )
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["codec_loss"]["stderr"] is None
    print_report(one, console)


@pytest.mark.slow
def test_a_zone_of_chosen_tokens_is_measured_by_who_chose(corpus: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = PplConfig(
        places=3, places_per_book=2, prefix_tokens=1_000, between_tokens=300, scored_tokens=150, seed=2,
        kept_tokens=64, kept_by=("newest", "random"),
    )  # fmt: skip
    model = tiny_model(), byte_tokenizer()
    report = run_ppl(model, config, corpus=corpus, memory_config=MEMORY, out=tmp_path)
    plain = run_ppl(model, dataclasses.replace(config, kept_tokens=0, kept_by=()), corpus=corpus, memory_config=MEMORY)
    assert [dataclasses.replace(place, kept={}) for place in report.places] == list(plain.places)
    assert len({report.window, *report.kept.values()}) == 3, "what is kept is seen, and it matters who chose it"
    for kind in config.kept_by:
        losses = [place.kept[kind] for place in report.places]
        assert report.kept[kind] == pytest.approx(math.exp(sum(losses) / 3))
        for policy in (*POLICIES, "full"):
            least = math.log(getattr(report, policy)) - math.log(report.kept[kind])
            assert report.kept_gain[kind][policy]["mean"] == pytest.approx(least)
        gains = report.kept_gain[kind]["window"]
        assert gains["mean"] == pytest.approx(math.log(report.window) - math.log(report.kept[kind]))
        by_book = [0.5 * sum(place.window - place.kept[kind] for place in report.places if place.source == book)
                   for book in [report.places[0].source]]  # fmt: skip
        alone = report.places[-1].window - report.places[-1].kept[kind]
        assert gains["stderr"] == pytest.approx(abs(by_book[0] - alone) / 2)
    console = Console(record=True, width=100, file=io.StringIO())
    print_report(report, console)
    assert "64 kept tokens: random" in console.export_text()
    assert run_ppl(model, config, corpus=corpus, memory_config=MEMORY, out=tmp_path) == report
    with pytest.raises(ValueError, match="together, or neither"):
        PplConfig(kept_tokens=64)


def test_the_command_prints_json_and_nothing_else(
    corpus: pathlib.Path, saved_model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = functools.partial(PplConfig, places_per_book=1, prefix_tokens=1_000, between_tokens=300, scored_tokens=150)
    monkeypatch.setattr(ppl, "PplConfig", short)
    settings = [
        f"--set={group}.{name}={getattr(getattr(MEMORY, group), name)}"
        for group, names in (
            ("frame", ("tokens", "recalled_tokens", "rolling_tokens", "evict_tokens")),
            ("archive", ("block_tokens", "codec")),
        )
        for name in names
    ]
    arguments = ["eval", "ppl", "--model", str(saved_model), "--places", "1", "--corpus", str(corpus)]
    rest = ["--set=search.index=lexical", "--dtype", "float32", "--json"]
    result = CliRunner().invoke(app, [*arguments, *settings, *rest])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [place["source"] for place in report["places"]] in (["book-0"], ["book-1"])
    assert {*POLICIES, "full"} <= set(report)


def test_losses_by_position_are_means_over_places_of_what_all_of_them_fill() -> None:
    short = [float(n) for n in range(2 * BIN_TOKENS + 6)]
    long = [10.0 * n for n in range(2 * BIN_TOKENS)] + [1e6] * (BIN_TOKENS + 5)
    # Of 0 to 31 and of 32 to 63 the means are 15.5 and 47.5; of the other place ten times as much.
    assert means_by_position([short, long]) == [5.5 * 15.5, 5.5 * 47.5]
    assert means_by_position([short[:-6]]) == [15.5, 47.5]
    assert means_by_position([long, short[: BIN_TOKENS - 1]]) == []


def test_full_attention_sees_no_more_than_was_read(corpus: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PplConfig(places=2, places_per_book=2, prefix_tokens=500, between_tokens=200, scored_tokens=64)
    seen: list[int] = []

    def noting(model: object, prefix: list[int], *how: Any, **more: Any) -> torch.Tensor:
        seen.append(len(prefix))
        return full_attention_losses(model, prefix, *how, **more)

    monkeypatch.setattr(ppl, "full_attention_losses", noting)
    report = run_ppl((tiny_model(), byte_tokenizer()), config, corpus=corpus, memory_config=MEMORY)
    assert report.places[0].first_token > 500
    assert seen == [500, 700]


def test_same_seed_same_places(corpus: pathlib.Path) -> None:
    config = PplConfig(places=2, prefix_tokens=300, scored_tokens=60, seed=2)
    first, second = (
        run_ppl((tiny_model(), byte_tokenizer()), config, corpus=corpus, memory_config=MEMORY) for _ in range(2)
    )
    assert first == second

    def places(seed: int) -> list[tuple[str, int]]:
        parts = ppl._choose(books_in(corpus), byte_tokenizer(), dataclasses.replace(config, seed=seed))
        return [(part.book.name, token) for part in parts for token in part.firsts]

    assert [(place.source, place.first_token) for place in first.places] == places(2)
    assert len({tuple(places(seed)) for seed in range(8)}) > 4, "another seed, other places"


def test_a_run_that_was_cut_short_goes_on(
    corpus: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PplConfig(places=3, places_per_book=2, prefix_tokens=300, between_tokens=200, scored_tokens=60, seed=2)
    scored: list[str] = []
    score = ppl._score

    def run(out: pathlib.Path | None, most: int = 9, **changes: Any) -> ppl.PplReport:
        def noting(network: Any, tokenizer: Any, memory: Any, config: PplConfig, part: Any) -> Any:
            if len(scored) == most:
                raise KeyboardInterrupt
            scored.append(part.book.name)
            return score(network, tokenizer, memory, config, part)

        scored.clear()
        monkeypatch.setattr(ppl, "_score", noting)
        changed = dataclasses.replace(config, **changes)
        return run_ppl((tiny_model(), byte_tokenizer()), changed, corpus=corpus, memory_config=MEMORY, out=out)

    at_once = run(None)
    assert len(scored) == 2
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(out, most=1)
    with (out / ppl.FILE).open("a") as file:
        file.write('{"number": 1, "los')
    with monkeypatch.context() as patch:
        patch.setattr(ppl, "provenance", lambda _: {"everlong": "9.9.9"})
        on = run(out)
    assert on.made_with == [*at_once.made_with, {"everlong": "9.9.9"}]
    assert dataclasses.replace(on, made_with=at_once.made_with) == at_once
    assert scored == [at_once.places[-1].source]
    assert run(out) == on
    assert scored == []
    with pytest.raises(ValueError, match=r"other settings \(seed: 2 then, 3 now.*--out"):
        run(out, seed=3)


def test_books_that_are_too_short_are_said(corpus: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="books of 1,000,512 tokens"):
        run_ppl((tiny_model(), byte_tokenizer()), PplConfig(prefix_tokens=1_000_000), corpus=corpus)


@pytest.mark.parametrize(
    "settings",
    [{"places": 0}, {"prefix_tokens": 0}, {"scored_tokens": 1}, {"memory_policy": "no"}, {"between_tokens": 1}],
)
def test_bad_settings_are_said(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"positive|no policy|between_tokens is 1"):
        PplConfig(**settings)


def test_a_model_without_a_window_is_refused_before_it_reads(
    corpus: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppl, "_score", lambda *_: pytest.fail("it was read"))
    model = tiny_text_model("bloom"), byte_tokenizer()
    config = PplConfig(places=1, prefix_tokens=300, scored_tokens=60)
    memory = MEMORY.changed(answer={"recall_mode": "text"})
    with pytest.raises(UnsupportedModelError, match="bloom: its config has no max_position_embeddings"):
        run_ppl(model, config, corpus=corpus, memory_config=memory)
