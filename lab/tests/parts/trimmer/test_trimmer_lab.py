"""The Trimmer: its arithmetic against numpy in fp64, what it learns from, its pack, its training, its evaluation."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong_lab.parts.trimmer.measure as trimming
from everlong.data import Book
from everlong.errors import EverlongError
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack, load_pack, pack_of, pack_with
from everlong.models.rope import rope_table
from everlong.parts.trimmer.model import TRIMMER, TrimmerSettings
from everlong.pictures import draw_report
from everlong_lab.cli.from_dataclass import parameters_of, settings_of
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.planted import draw_planted, with_statements
from everlong_lab.corpora.record import Record, block_of
from everlong_lab.corpora.trimming import trim_texts
from everlong_lab.parts.trimmer.measure import Measuring, chosen, losses, measure, prose_streams
from everlong_lab.parts.trimmer.scores import H2O, KEY_NORM, expected_attention, scored_stream
from everlong_lab.parts.trimmer.train import Training, fit, train_on, worth
from everlong_lab.training.attention_targets import AttendedText, attended, attended_texts
from everlong_lab.training.run import Run
from support import byte_tokenizer, tiny_model
from support.parts.trimmer import LAYERS, SETTINGS, WIDTH, drawn_trimmer, eager_attentions
from support.rng import no_global_draws


def small_books(count: int = 3) -> list[Book]:
    def paragraph(n: int, word: str) -> str:
        return f"{word} {n} goes on and on. So does this sentence, and that is all there is to it."

    return [
        Book(f"{author}--one", "\n\n".join(paragraph(n, author) for n in range(160)))
        for author in ("ann", "ben", "cid", "dot")[:count]
    ]


def test_planted_facts_are_where_they_are_said_to_be() -> None:
    random, tokenizer = np.random.default_rng(0), byte_tokenizer()
    facts = draw_planted(random, 4)
    assert len({fact.question for fact in facts}) == 4
    for fact in draw_planted(random, 20):
        assert "{" not in fact.statement + fact.question + fact.answer
        assert fact.answer.lower() in fact.statement.lower()
    text = torch.tensor(tokenizer(small_books()[0].text)["input_ids"])
    statements = [fact.statement for fact in facts]
    block, spans, used = with_statements(tokenizer, text, statements, 900, random)
    assert len(block) == 900
    assert [tokenizer.decode(block[first:last]).strip() for first, last in spans] == statements
    rest = torch.cat(
        [block[last:first] for (_, last), (first, _) in zip([(0, 0), *spans], [*spans, (900, 0)], strict=True)]
    )
    assert torch.equal(rest, text[:used])
    for first, _ in spans:
        assert tokenizer.decode(block[first - 1 : first]) == "."
    with pytest.raises(ValueError, match="tokens"):
        with_statements(tokenizer, text, statements, 200, random)
    with pytest.raises(ValueError, match="20"):
        draw_planted(random, 21)


def drawn_texts(count: int = 3) -> list[Record]:
    return trim_texts(byte_tokenizer(), small_books(), None, samples=count, stories=0, seed=1)


def test_targets_are_the_attention_that_transformers_gives_back() -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    text = next(text for text in drawn_texts(6) if text.questions)
    states, targets = attended(model, byte_tokenizer(), text, LAYERS)
    assert len(states) == len(targets) == text.blocks * BLOCK_TOKENS
    end = SINK_TOKENS + text.blocks * BLOCK_TOKENS
    every = eager_attentions(model, text.ids)
    rows = slice(len(text.ids) - 128, len(text.ids))
    mass = torch.stack([layer[:, rows, SINK_TOKENS:end].mean((0, 1)) for layer in every]).mean(0)
    assert (targets[:, 1] - mass.log()).abs().max() < 1e-2
    # A block repeated behind itself, sinks before it: the same positions, the other block masked.
    block = block_of(text.questions[0])
    first = SINK_TOKENS + block * BLOCK_TOKENS
    own = slice(first - SINK_TOKENS, first - SINK_TOKENS + BLOCK_TOKENS)
    assert not targets[own].isnan().any()
    with torch.no_grad():
        expected = model(text.ids[None], output_hidden_states=True).hidden_states
    wide = torch.cat([expected[layer][0, SINK_TOKENS:end] for layer in LAYERS], dim=-1)
    assert (states - wide).abs().max() < 1e-4
    unasked = set(range(text.blocks)) - {block_of(one) for one in text.questions}
    for other in unasked:
        assert targets[other * BLOCK_TOKENS : (other + 1) * BLOCK_TOKENS, 2].isnan().all()


def test_states_are_cached_and_go_on_where_they_were_cut_short(tmp_path: pathlib.Path) -> None:
    model, tokenizer, texts = tiny_model("llama", num_hidden_layers=4), byte_tokenizer(), drawn_texts()

    def stop(what: str, done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attended_texts(model, tokenizer, texts, LAYERS, tmp_path, progress=stop)
    done: list[int] = []
    found = attended_texts(model, tokenizer, texts, LAYERS, tmp_path, progress=lambda _, at, of: done.append(at))
    assert done == [3]
    states, targets = attended(model, byte_tokenizer(), texts[0], LAYERS)
    assert (found[0].states.float() - states).abs().max() < 0.02
    assert torch.equal(found[0].targets.isnan(), targets.isnan())
    assert (found[0].targets - targets).nan_to_num().abs().max() < 0.05
    with pytest.raises(EverlongError, match="layers"):
        attended_texts(model, tokenizer, texts, (1,), tmp_path)
    with pytest.raises(EverlongError, match="texts"):
        attended_texts(model, tokenizer, texts[1:], LAYERS, tmp_path)


def test_worth_is_the_log_of_a_weighted_sum_of_what_was_measured() -> None:
    targets = torch.tensor([[-1.0, -6.0, -2.0], [-1.0, -6.0, math.nan]])
    expected = [
        math.log(1 * math.exp(-1) + 50 * math.exp(-6) + 2 * math.exp(-2)),
        math.log(math.exp(-1) + 50 * math.exp(-6)),
    ]
    names = [parameter.name for parameter in parameters_of(Training)]

    def chosen_by(weights: str) -> Training:
        defaults = {parameter.name: parameter.default for parameter in parameters_of(Training)}
        found = settings_of(Training, {**defaults, "term_weights": weights})
        assert isinstance(found, Training)
        return found

    assert "term_weights" in names
    assert chosen_by("1,50,2").term_weights == (1.0, 50.0, 2.0)
    for wrong in ("1,50", "1,-5,2", "0,0,1", "a,b,c"):
        with pytest.raises(ValueError, match=r"term.weights"):
            chosen_by(wrong)
    assert worth(targets, (1.0, 50.0, 2.0)).tolist() == pytest.approx(expected, abs=1e-5)


def drawn_attended(count: int = 16, seed: int = 0) -> list[AttendedText]:
    """What a token is worth is a line of its state, and a bend that only a hidden layer sees."""
    torch.manual_seed(seed)
    line, bend = torch.randn(WIDTH) / WIDTH**0.5, torch.randn(WIDTH) / WIDTH**0.5
    texts = []
    for number in range(count):
        states = torch.randn(2 * BLOCK_TOKENS, WIDTH)
        logs = states @ line + (states @ bend).abs()
        targets = torch.stack([logs, logs - 50, torch.full_like(logs, math.nan)], dim=-1)
        text = Record(f"book {number}", "book", "fit" if number % 4 == 3 else "train", torch.zeros(1100), ())
        texts.append(AttendedText(text, states.bfloat16(), targets))
    return texts


@pytest.mark.slow
def test_the_ridge_is_numpy_s_and_the_hidden_layer_adds_to_it() -> None:
    texts, training = drawn_attended(), Training(ridge=2.0, steps=200, threads=1, learning_rate=5e-3)
    with no_global_draws():
        plain, plainly = fit(texts, dataclasses.replace(SETTINGS, units=0), training)
    train = [text for text in texts if text.text.split == "train"]
    x = plain.normal(torch.cat([text.states for text in train])).double().numpy()
    y = torch.cat([worth(text.targets, training.term_weights) for text in train]).double().numpy()
    x1 = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    penalty = np.diag([2.0 * len(x) / 1000] * WIDTH + [0.0])
    expected = np.linalg.solve(x1.T @ x1 + penalty, x1.T @ y)
    found = torch.cat([plain.linear.weight[0], plain.linear.bias]).detach().numpy()
    assert np.abs(found - expected).max() < 1e-4
    (deep, deeply), (again, _) = (fit(texts, dataclasses.replace(SETTINGS, units=32), training) for _ in range(2))
    assert deeply.log[0]["R2"] == pytest.approx(plainly.log[0]["R2"], abs=1e-6)
    assert max(found["R2"] for found in deeply.log) > plainly.log[0]["R2"] + 0.05
    for name, tensor in deep.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    with pytest.raises(ValueError, match="none"):
        fit(texts[:3], SETTINGS, training)


@pytest.mark.slow
def test_the_command_s_way_from_books_to_a_pack_and_a_table(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    texts = trim_texts(tokenizer, small_books(), None, samples=8, stories=0, seed=0)
    training = Training(layers=LAYERS, steps=4, threads=1)
    pack = pack_of(model, train_on(Run(model, tokenizer, tmp_path / "work"), texts, training))
    pack.save(tmp_path / "pack")
    made = load_pack(tmp_path / "pack").parts[TRIMMER].made
    assert made["data"]["blocks"] == 14
    assert {"R2", "repeated", "continued"} <= set(made["figures"]["fit"])
    Pack(weights_fingerprint(model), "", {}).save(tmp_path / "empty")
    with pytest.raises(EverlongError, match="train trimmer"):
        pack_with(TRIMMER, "Trimmer", model, tmp_path / "empty")
    config = Measuring(budgets=(32, 64), places=2, fact_blocks=0, story_blocks=0)
    known: list[Any] = []
    monkeypatch.setattr(trimming, "books_of", lambda files: small_books())
    monkeypatch.setattr(trimming, "store_report", lambda said, file: known.append(said))
    report = measure((model, tokenizer), config, pack=tmp_path / "pack")
    # What was known after the first place is what fewer places give.
    first = dataclasses.replace(config, places=1)
    kept = known.copy()
    fewer = measure((model, tokenizer), first, pack=tmp_path / "pack")
    assert (kept[0]["trimming"], kept[0]["differences"]) == (fewer.trimming, fewer.differences)
    assert kept[-1] == report.to_dict()
    assert report.sizes == {trimming.PROSE: 2}
    assert report.trimming["prose"]["all kept"]["0"]["kl"] == pytest.approx(0, abs=1e-6)
    assert set(report.trimming["prose"]["Trimmer"]) == {"32", "64"}
    for budget in ("32", "64"):
        assert "Trimmer" not in report.differences["prose"][budget]["kl"]["best"]
    pictures = draw_report(report.to_dict(), tmp_path)
    assert sorted(path.name for path in pictures) == ["kept-prose.png", "kept-prose.svg"]


@pytest.mark.slow
def test_losses_are_those_of_a_masked_forward() -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    trimmer = drawn_trimmer(settings=TrimmerSettings(LAYERS, model.config.hidden_size, units=0))
    ids, blocks, (asked,) = next(iter(prose_streams(tokenizer, small_books(), 1, np.random.default_rng(0))))
    stream = scored_stream(model, ids, blocks, {"Trimmer": trimmer}, np.random.default_rng(0))
    found = losses(model, stream, asked, (32,))
    whole = torch.cat([ids, asked.ids])
    targets = asked.ids[1:]
    with torch.no_grad():
        teacher = model(whole[None]).logits[0, len(ids) : -1].log_softmax(-1)
        for name, kept in chosen(stream, 32).items():
            assert len(kept) == 4 * 32
            if not name.endswith(trimming.OVER_ALL):
                assert torch.equal(torch.bincount((kept - SINK_TOKENS) // BLOCK_TOKENS), torch.full((4,), 32))
            seen = torch.ones(len(whole), len(whole), dtype=torch.bool).tril()
            dropped = torch.ones(len(whole), dtype=torch.bool)
            dropped[:SINK_TOKENS] = dropped[SINK_TOKENS + 4 * BLOCK_TOKENS :] = dropped[kept] = False
            seen[len(ids) :, dropped] = False
            own = model(whole[None], attention_mask=seen[None, None]).logits[0, len(ids) : -1].log_softmax(-1)
            nats = (teacher - own).gather(1, targets[:, None]).mean()
            kl = torch.nn.functional.kl_div(own, teacher, log_target=True, reduction="batchmean")
            assert found[name, 32].nats == pytest.approx(float(nats), abs=1e-4)
            assert found[name, 32].kl == pytest.approx(float(kl), abs=1e-4)
    assert found["all kept", 0].kl == 0


@pytest.mark.slow
def test_what_others_keep_is_by_their_definitions() -> None:
    model, tokenizer = tiny_model("llama", num_hidden_layers=4), byte_tokenizer()
    ids, blocks, _ = next(iter(prose_streams(tokenizer, small_books(), 1, np.random.default_rng(0))))
    stream = scored_stream(model, ids, blocks, {}, np.random.default_rng(0))
    end = SINK_TOKENS + blocks * BLOCK_TOKENS
    received = torch.stack([layer[:, :, SINK_TOKENS:end].sum((0, 1)) for layer in eager_attentions(model, ids)]).sum(0)
    share = stream.scores[H2O].double() / received
    assert (share / share.mean() - 1).abs().max() < 1e-3
    norms = sum(layer.keys[0, :, SINK_TOKENS:end].norm(dim=-1).sum(0) for layer in stream.read.cache.layers)
    assert (stream.scores[KEY_NORM] + norms).abs().max() < 1e-3 * norms.abs().max()


def test_expected_attention_is_the_mean_over_gaussian_queries() -> None:
    """Of queries that all are one vector, the attention that this vector pays from the mean of the places to come."""
    rope = rope_table(tiny_model("llama").config)
    torch.manual_seed(0)
    half, rows = len(rope.inv_freq), 40
    plain, keys, values = torch.randn(2, 2 * half), torch.randn(1, 6, 2 * half), torch.randn(1, 6, 2 * half)

    def turned(vector: np.ndarray, place: int) -> np.ndarray:
        pair = (vector[:half] + 1j * vector[half:]) * np.exp(1j * place * rope.inv_freq.numpy())
        return np.concatenate([pair.real, pair.imag])

    q = torch.stack(
        [torch.stack([torch.from_numpy(turned(h.double().numpy(), p)) for p in range(rows)]) for h in plain]
    )
    found = expected_attention(q.float(), keys, values, rope)[0].numpy()
    expected = np.zeros(6)
    for head in plain.double().numpy():
        ahead = np.mean([turned(head, rows + p) for p in range(512)], axis=0)
        scores = keys[0].double().numpy() @ ahead / math.sqrt(2 * half)
        shares = np.exp(scores - scores.max())
        expected += shares / shares.sum() / 2
    assert np.abs(found - expected * np.linalg.norm(values[0].numpy(), axis=-1)).max() < 1e-3


def test_the_shipped_pack_has_one() -> None:
    from everlong.models.pack import shipped_packs

    (pack,) = (pack for pack in shipped_packs() if pack.model_name == "smollm2")
    assert "trimmer" in pack.parts
