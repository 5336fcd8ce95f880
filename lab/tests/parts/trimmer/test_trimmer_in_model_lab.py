"""The Trimmer's second stage: masks against cut caches and finite differences, its texts, its training."""

from __future__ import annotations

import dataclasses
import io
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from transformers.cache_utils import DynamicCache

import everlong_lab.parts.trimmer.in_model as trimmer_in_model
from everlong.data import Book
from everlong.errors import EverlongError
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import Pack, load_pack, pack_of
from everlong.models.releases import cache_argument
from everlong.models.trimmed_cache import WholeText, cut_cache, go_on, read_whole
from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.scenarios import FAMILIES, Scenario, Target, draw_scenarios
from everlong_lab.corpora.trimming import trim_texts
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.trimmer.in_model import (
    Choice,
    InModelTrainer,
    InModelTraining,
    key_weights,
    logits_under,
)
from everlong_lab.parts.trimmer.masked import MaskedAttention
from everlong_lab.parts.trimmer.measure import Measuring, measure
from everlong_lab.parts.trimmer.scores import scores_of
from everlong_lab.parts.trimmer.top_k import gumbel, relaxed_top_k, straight_through_top_k
from everlong_lab.parts.trimmer.train import Training, train_on
from everlong_lab.training.run import Run
from support import byte_tokenizer, tiny_model

LAYERS = (1, 2)

# A window that all keys lie in: what slides out of a layer is not for anyone to choose.
SHAPES = [("llama", {}), ("qwen3", {}), ("gemma3", {"rope": "nested", "sliding_window": 128})]

_STEP = 0.02  # of a logit: norms of these models are computed in fp32, so that a smaller one drowns in rounding


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Any:
    kind, changes = request.param
    return tiny_model(kind, **changes)


def drawn_ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(seed))


def said(model: Any, whole: WholeText, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log probabilities [B, S, V] of ids [S] behind a text whose keys have weights [B, n]."""
    return logits_under(model, whole, weights, Target(torch.cat([ids, ids[-1:]]), 1))[0]


@pytest.mark.parametrize("model", SHAPES, indirect=True)
def test_masked_keys_are_as_good_as_none(model: Any) -> None:
    """Logical trimming (weights) and physical trimming (a cache without the tokens): the same logits."""
    ids, behind = drawn_ids(50, 1), drawn_ids(9, 2)
    whole = read_whole(model, ids)
    random = np.random.default_rng(3)
    kept = torch.stack([torch.from_numpy(np.sort(random.permutation(50)[:20])) for _ in range(3)])
    weights = torch.zeros(3, 50).scatter(1, kept, 1.0)
    cut = go_on(model, whole.cache, kept, behind[None].expand(3, -1), 50)
    before = model.config._attn_implementation
    with torch.no_grad():
        own = said(model, whole, weights, behind)
    torch.testing.assert_close(own, torch.log_softmax(cut.float(), dim=-1), atol=1e-4, rtol=0)
    assert model.config._attn_implementation == before


@given(st.integers(2, 40), st.data())
def test_so_many_are_kept_and_they_are_the_largest(tokens: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, tokens - 1))
    logits = torch.tensor(data.draw(st.lists(st.floats(-5, 5), min_size=tokens, max_size=tokens))).requires_grad_()
    hard = straight_through_top_k(logits, count, 0.5)
    assert float(hard.detach().sum()) == pytest.approx(count, abs=1e-4)
    kept = hard.detach() > 0.5
    assert float(logits.detach()[kept].min()) >= float(logits.detach()[~kept].max())
    soft = relaxed_top_k(logits, count, 0.5).detach()
    assert float(soft[kept].min()) >= 0.5 - 1e-6
    assert float(soft[~kept].max()) <= 0.5 + 1e-6


def test_none_or_all_is_no_choice() -> None:
    for count in (0, 5):
        with pytest.raises(ValueError, match="some and not all"):
            straight_through_top_k(torch.zeros(5), count, 1.0)


def test_noise_draws_from_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0])
    drawn = (logits + gumbel((40_000, 3), torch.Generator().manual_seed(0))).argmax(dim=-1)
    shares = torch.bincount(drawn, minlength=3) / 40_000
    torch.testing.assert_close(shares, torch.softmax(logits, dim=0), atol=0.01, rtol=0)


@pytest.mark.parametrize("model", SHAPES, indirect=True)
def test_the_gradient_is_that_of_the_relaxed_choice(model: Any) -> None:
    """Of the loss by logits: finite differences of the forward with relaxed weights, through all layers; and
    straight through: the derivative by hard weights, times that of the relaxed choice.
    """
    model = model.double()
    ids, behind, count, temperature = drawn_ids(14, 4), drawn_ids(5, 5), 5, 0.7
    whole = read_whole(model, ids)
    logits = torch.randn(14, generator=torch.Generator().manual_seed(6)).double()
    middle = logits.sort(descending=True).values[count - 1 : count + 1].mean()

    def loss(weights: torch.Tensor) -> torch.Tensor:
        out = _plain(model, whole, weights, behind)
        return -torch.log_softmax(out, dim=-1)[0].gather(1, behind[:, None].roll(-1)).mean()

    own = logits.clone().requires_grad_()
    torch.autograd.backward(loss(relaxed_top_k(own, count, temperature)[None]))
    steps = torch.zeros(14, 2).double()
    for at in range(14):
        for side, sign in enumerate((1, -1)):
            moved = logits.clone()
            moved[at] += sign * _STEP
            with torch.no_grad():
                # The middle is given: it is no variable of the relaxed choice.
                steps[at, side] = loss(torch.sigmoid((moved - middle) / temperature)[None])
    differences = (steps[:, 0] - steps[:, 1]) / (2 * _STEP)
    assert own.grad is not None
    torch.testing.assert_close(own.grad, differences, atol=float(differences.abs().max()) * 0.01, rtol=0)

    through = logits.clone().requires_grad_()
    hard = straight_through_top_k(through, count, temperature)
    torch.autograd.backward(loss(hard[None]))
    by_weight = hard.detach().clone().requires_grad_()
    torch.autograd.backward(loss(by_weight[None]))
    soft = relaxed_top_k(logits, count, temperature)
    assert by_weight.grad is not None
    assert through.grad is not None
    torch.testing.assert_close(through.grad, by_weight.grad * soft * (1 - soft) / temperature, atol=1e-9, rtol=1e-6)
    assert float(by_weight.grad[soft < 0.5].abs().max()) > 0, "what is not kept has a gradient, too"


def _plain(model: Any, whole: WholeText, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    cache: DynamicCache = cut_cache(model, whole.cache, torch.arange(weights.shape[1])[None])
    with MaskedAttention(model, weights):
        out = model(
            input_ids=ids[None],
            **{cache_argument(model): cache},
            position_ids=weights.shape[1] + torch.arange(len(ids))[None],
            use_cache=True,
        )
    logits: torch.Tensor = out.logits
    return logits


def books() -> list[Book]:
    sentences = [f"Line {n} of this book says {n * n} and then nothing more. " for n in range(6_000)]
    return [Book(f"book {at}", "\n\n".join(sentences[at::2])) for at in range(2)]


def test_every_family_has_what_it_says() -> None:
    tokenizer = byte_tokenizer()
    scenarios = draw_scenarios(tokenizer, books(), 32, seed=3)
    assert [one.origin for one in scenarios[:4]] == list(FAMILIES)
    assert {one.origin for one in scenarios if one.split == "fit"} == set(FAMILIES)
    for one in scenarios:
        assert one.blocks == 2
        assert (len(one.ids) - SINK_TOKENS) % BLOCK_TOKENS == (0 if one.origin == "redundancy" else 256)
        told = tokenizer.decode(one.ids[SINK_TOKENS : SINK_TOKENS + 2 * BLOCK_TOKENS].tolist())
        for target in one.targets:
            assert 0 < target.first < len(target.ids)
            scored = tokenizer.decode(target.ids[target.first :].tolist())
            if one.origin == "dependence":
                statements = scored.partition("before: ")[2].strip()
                halves = [told[:BLOCK_TOKENS], told[BLOCK_TOKENS:]]
                assert any(statements.startswith(part) for part in _paragraphs(halves[0]))
                assert any(statements.endswith(part) for part in _paragraphs(halves[1]))
            if one.origin == "redundancy":
                assert scored.rstrip(".") in told
        if one.origin == "switch":
            assert tokenizer.decode(one.targets[1].ids[1:].tolist()).strip() in told[:BLOCK_TOKENS]
        if one.origin != "redundancy":
            assert one.targets[0].ids[0] == one.ids[-1], "what follows is predicted by the newest token"
    again = draw_scenarios(tokenizer, books(), 32, seed=3)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(scenarios, again, strict=True))


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if len(part.strip()) > 12 and "Line" not in part]


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return draw_scenarios(byte_tokenizer(), books(), 36, seed=1)


def fresh(model: Any) -> TrimmerNet:
    torch.manual_seed(0)
    return TrimmerNet(TrimmerSettings(LAYERS, model.config.hidden_size, units=4)).requires_grad_(requires_grad=False)


def small(steps: int) -> InModelTraining:
    return InModelTraining(steps=steps, batch=2, budgets=(32, 128), learning_rate=3e-3, check_every=2, seed=5)


@pytest.mark.slow
def test_the_loss_falls_on_what_it_is_trained_on(scenarios: list[Scenario]) -> None:
    model = tiny_model()
    same = [*scenarios[:2], *(dataclasses.replace(one, name=f"{one.name} again", split="fit") for one in scenarios[:2])]
    training = dataclasses.replace(small(24), ce=0.0, attention_kl=0.0, masks=4, learning_rate=1e-2)
    losses = InModelTrainer(model, same, training).train(fresh(model))[1].held_out
    assert min(losses[1:]) < 0.9 * losses[0]


@pytest.mark.slow
def test_a_cut_run_goes_on_bit_for_bit(scenarios: list[Scenario], tmp_path: pathlib.Path) -> None:
    model = tiny_model()
    weights = [weight.clone() for weight in model.parameters()]
    some = scenarios[:4] + [one for one in scenarios if one.split == "fit"][:2]
    begun = fresh(model)
    at_once, learned = InModelTrainer(model, some, small(6)).train(begun)
    losses = learned.held_out
    assert InModelTrainer(model, some, small(6)).held_out(at_once) == pytest.approx(min(losses), abs=1e-6)
    assert all(map(torch.equal, weights, model.parameters()))
    assert all(weight.requires_grad for weight in model.parameters())

    InModelTrainer(model, some, small(4), checkpoints=tmp_path).train(begun)
    on, resumed = InModelTrainer(model, some, small(6), checkpoints=tmp_path).train(begun)
    assert resumed.held_out == losses
    for name, tensor in on.state_dict().items():
        assert torch.equal(tensor, at_once.state_dict()[name]), name
    with pytest.raises(EverlongError, match="of other scenarios"):
        InModelTrainer(model, some[1:], small(6), checkpoints=tmp_path).train(begun)


def test_it_learns_to_keep_what_is_asked_for(scenarios: list[Scenario]) -> None:
    """A model of which the answer is known: what follows is predicted by one token of the block, and by no other.

    The gradient by the weight of the token that lowers the loss is negative: its score rises.
    """
    model = tiny_model()
    one = next(own for own in scenarios if own.origin == "prose")
    whole = read_whole(model, one.ids, LAYERS)
    scores = torch.zeros(1, 2 * BLOCK_TOKENS).requires_grad_()
    noise = torch.rand(1, 2 * BLOCK_TOKENS, generator=torch.Generator().manual_seed(0)) * 0.1
    weights = key_weights(scores + noise, one, Choice(16, "block"), 0.5)
    said_so, _ = logits_under(model, whole, weights, one.targets[0])
    right = one.targets[0].ids[1:]
    torch.autograd.backward(-said_so[0].gather(1, right[:, None]).mean())
    assert scores.grad is not None
    missing = (weights.detach()[0, SINK_TOKENS : SINK_TOKENS + 2 * BLOCK_TOKENS] < 0.5).nonzero()[:, 0]
    order = scores.grad[0][missing].argsort()
    losses = {}
    for name, tokens in (("helps", missing[order[:40]]), ("harms", missing[order[-40:]])):
        more = weights.detach().clone()
        more[0, SINK_TOKENS + tokens] = 1
        with torch.no_grad():
            own, _ = logits_under(model, whole, more, one.targets[0])
        losses[name] = float(-own[0].gather(1, right[:, None]).mean())
    assert losses["helps"] < losses["harms"]


@pytest.mark.slow
def test_an_adapter_learns_with_it_and_is_at_work_in_the_student_alone(
    scenarios: list[Scenario], tmp_path: pathlib.Path
) -> None:
    model = tiny_model()
    some = [*scenarios[:2], dataclasses.replace(scenarios[0], name="again", split="fit")]
    ids = drawn_ids(40, 9)
    before = read_whole(model, ids, rows=40).logits

    def train(steps: int, checkpoints: pathlib.Path | None = None) -> tuple[TrimmerNet, LowRankMaps]:
        adapter = LowRankMaps(MapSettings(rank=2), mapped_layers(model), seed=1)
        trainer = InModelTrainer(model, some, small(steps), adapter=adapter, checkpoints=checkpoints)
        return trainer.train(fresh(model))[0], adapter

    trimmer, adapter = train(4)
    assert max(float(up.abs().max()) for up in adapter.up) > 0
    assert torch.equal(read_whole(model, ids, rows=40).logits, before)
    with AttachedMaps(adapter, model).active():
        assert not torch.equal(read_whole(model, ids, rows=40).logits, before)
    # What the teacher says was computed without it, whichever step asks first.
    alone = InModelTrainer(model, some, small(1))._reading(trimmer, some[0]).teacher
    trainer = InModelTrainer(model, some, small(1), adapter=adapter)
    assert all(map(torch.equal, trainer._reading(trimmer, some[0]).teacher, alone))

    train(2, tmp_path)
    _, on = train(4, tmp_path)
    assert all(map(torch.equal, on.up, adapter.up))
    with pytest.raises(EverlongError, match="of other adapter"):
        InModelTrainer(model, some, small(4), checkpoints=tmp_path).train(fresh(model))


def test_a_topic_that_is_over_may_lose_all(scenarios: list[Scenario]) -> None:
    one = next(own for own in scenarios if own.origin == "switch")
    scores = torch.cat([torch.zeros(BLOCK_TOKENS), torch.ones(BLOCK_TOKENS)])[None]
    kept = key_weights(scores, one, Choice(64, "stream"), 0.5)
    own = kept[0, SINK_TOKENS : SINK_TOKENS + 2 * BLOCK_TOKENS].view(2, -1).sum(dim=1).tolist()
    assert own == [0, 128]
    assert key_weights(scores, one, Choice(64, "block"), 0.5)[0].sum() == 128 + SINK_TOKENS + 256
    assert trimmer_in_model._over(one) == "stream"


def test_scores_are_the_trimmers_own() -> None:
    trimmer = TrimmerNet(TrimmerSettings((1,), 6, units=0, age_weight=0.5))
    states = torch.randn(2 * BLOCK_TOKENS, 6, generator=torch.Generator().manual_seed(2))
    scores = scores_of(trimmer, states, SINK_TOKENS + 2 * BLOCK_TOKENS + 100)
    torch.testing.assert_close(scores[:BLOCK_TOKENS], trimmer.scores(states[:BLOCK_TOKENS], BLOCK_TOKENS + 100))
    torch.testing.assert_close(scores[BLOCK_TOKENS:], trimmer.scores(states[BLOCK_TOKENS:], 100))


@pytest.mark.slow
def test_from_books_to_a_pack_with_both_and_a_table(
    scenarios: list[Scenario], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    texts = trim_texts(tokenizer, books(), None, samples=8, stories=0, seed=0)
    first = Training(layers=LAYERS, steps=2, threads=1)

    def train(out: pathlib.Path, *second: Any, with_adapter: bool = False) -> Pack:
        training = dataclasses.replace(first, in_model=4 if second else 0, with_adapter=with_adapter)
        pack_of(model, train_on(Run(model, tokenizer, tmp_path / "work"), texts, training, *second)).save(out)
        return load_pack(out)

    same = [*scenarios[:2], dataclasses.replace(scenarios[0], name="again", split="fit")]
    alone = train(tmp_path / "alone")
    both = train(tmp_path / "both", same, small(4), with_adapter=True)
    assert set(both.parts) == {"trimmer", "adapter"}
    assert both.parts["trimmer"].made["through the model"]["steps"] == 4
    assert "through the model" not in alone.parts["trimmer"].made
    with pytest.raises(ValueError, match="through the model"):
        train(tmp_path / "none", with_adapter=True)
    config = Measuring(budgets=(32,), places=1, fact_blocks=1, story_blocks=0, beside=(tmp_path / "alone",))
    monkeypatch.setattr("everlong_lab.parts.trimmer.measure.books_of", lambda files: books())
    report = measure((model, tokenizer), config, pack=tmp_path / "both")
    for ground in ("prose", "facts"):
        found = report.trimming[ground]
        own, helped = found["Trimmer"]["32"], found["Trimmer, with the adapter"]["32"]
        assert own["nats"] != helped["nats"]
        assert (
            found["all kept, with the adapter"]["0"]["kl"] > found["all kept"]["0"]["kl"] == pytest.approx(0, abs=1e-6)
        )
        assert report.differences[ground]["32"]["kl"]["best"] in found
        assert not report.differences[ground]["32"]["kl"]["best"].startswith("Trimmer")
    console = Console(record=True, width=160, file=io.StringIO())
    print_report(report, console)
    assert "all kept, with the adapter" in console.export_text()


def test_bad_settings_are_said(scenarios: list[Scenario]) -> None:
    for wrong in ({"budgets": (0,)}, {"budgets": ()}, {"budgets": (512,)}, {"steps": 0}):
        with pytest.raises(ValueError, match=r"budgets are|must be positive"):
            InModelTraining(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of the two has none"):
        InModelTrainer(tiny_model(), [dataclasses.replace(scenarios[0], split="train")], InModelTraining())
