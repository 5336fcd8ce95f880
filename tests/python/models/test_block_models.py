"""All that everlong does with a model, over blocks of each format: as with its weights unpacked, within rounding."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.doctor import examine
from everlong.models import load
from everlong.models.block_layers import formats_of
from everlong.models.early_exit import early_exit_states
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.soft_tokens import after_soft_tokens, embedded, frozen
from support.gguf_files import HALVES, write_gguf
from support.settings import TINY_MEMORY, changed

WORDS = ("the", "thing", "river", "stone", "maple", "thin", "lantern", "harbor", "winter", "in", "other", "café")
QUESTIONS = ["which river?", "the thin maple", "a lantern in winter"]
# What coding in 8 bits may do to these models: to a log-probability, and to a vector as a share of its length.
NATS, SHARE = 0.15, 0.04


@dataclasses.dataclass(frozen=True)
class Both:
    """A file's model over its blocks, and the same file unpacked in fp32."""

    blocks: Any
    unpacked: Any
    tokenizer: Any


@pytest.fixture(name="both", scope="module", params=sorted(HALVES), ids=lambda format: format.name)
def both_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EVERLONG_CACHE", str(folder / "cache"))
        file = str(write_gguf(folder / "tiny.gguf", format=request.param, width=256, context=2048))
        (blocks, tokenizer), (unpacked, _) = load(file), load(file, "float32")
    assert formats_of(blocks)
    assert not formats_of(unpacked)
    return Both(blocks, unpacked, tokenizer)


def text(seed: int, words: int = 110) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def opened(model: Any, tokenizer: Any, memory: pathlib.Path | None = None, **settings: Any) -> everlong.MemoryModel:
    return everlong.MemoryModel(model, tokenizer, memory, config=changed(TINY_MEMORY, **settings))


def nll(mm: everlong.MemoryModel) -> torch.Tensor:
    """Return the nats of each token of a text that follows the memory, some of which comes back for it."""
    return torch.tensor(mm.perplexity(text(99, 40), policy="prompt").token_nll)


@torch.inference_mode()
def regret(model: Any, prompt: torch.Tensor, answer: torch.Tensor) -> float:
    """Return by how many nats a model likes its own best token more than that of an answer [n], at most."""
    logs = model(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float((logs.max(-1).values - logs.gather(1, answer[:, None])[:, 0]).max())


def share(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_the_doctor_finds_nothing_wrong(both: Both) -> None:
    report = examine(both.blocks, both.tokenizer, tokens=128)
    assert report.healthy
    assert {check.verdict for check in report.checks if check.name in ("frame", "archive fp32")} == {"exact"}


def test_a_memory_predicts_as_that_of_the_unpacked_model(both: Both) -> None:
    found = []
    for model in (both.blocks, both.unpacked):
        with opened(model, both.tokenizer) as mm:
            assert mm.read(text(1)).tokens > 400, "more than the frame keeps"
            found.append(nll(mm))
    assert (found[0] - found[1]).abs().max() < NATS
    assert (found[0] - found[1]).abs().mean() < NATS / 5


def test_a_saved_memory_and_its_fork_go_on_with_either_model(both: Both, tmp_path: pathlib.Path) -> None:
    with opened(both.blocks, both.tokenizer, tmp_path / "memory") as mm:
        mm.read(text(1))
        expected = nll(mm)
        mm.memory.fork(tmp_path / "fork").close()
    for name in ("memory", "fork"):
        for model in (both.blocks, both.unpacked):
            with opened(model, both.tokenizer, tmp_path / name) as mm:
                assert (nll(mm) - expected).abs().max() < NATS
    with opened(both.blocks, both.tokenizer, tmp_path / "fork") as mm:
        mm.read(text(2))
    with opened(both.blocks, both.tokenizer, tmp_path / "memory") as mm:
        assert (nll(mm) - expected).abs().max() < NATS, "the fork's reading is its own"


def test_questions_at_once_are_answered_as_one_after_another(both: Both) -> None:
    answers = []
    for at_once in (1, 3):
        with opened(both.blocks, both.tokenizer, at_once=at_once) as mm:
            mm.read(text(1))
            answers.append(mm.answer_many(QUESTIONS, max_new_tokens=6, eos_token_id=-1))
    assert [one.token_ids for one in answers[0]] == [one.token_ids for one in answers[1]]
    assert {one.tokens for one in answers[0]} == {6}
    assert any(one.recalled for one in answers[0])
    with opened(both.unpacked, both.tokenizer, at_once=3) as mm:
        mm.read(text(1))
        other = mm.answer_many(QUESTIONS, max_new_tokens=6, eos_token_id=-1)
    assert [one.recalled for one in other] == [one.recalled for one in answers[0]]


def test_memories_at_once_answer_as_alone(both: Both) -> None:
    def memories() -> list[everlong.MemoryModel]:
        made = [opened(both.blocks, both.tokenizer) for _ in range(2)]
        for seed, mm in enumerate(made):
            mm.read(text(seed))
        return made

    how: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": -1}
    alone = memories()
    expected = [mm.generate(QUESTIONS[0], **how).token_ids for mm in alone]
    together = memories()
    found = everlong.generate_many([(mm, QUESTIONS[0]) for mm in together], 6, eos_token_id=-1)
    assert [answer.token_ids for answer in found] == expected
    for mm in (*alone, *together):
        mm.close()


def test_transformers_generate_decodes_over_the_frame(both: Both) -> None:
    with opened(both.blocks, both.tokenizer) as mm:
        prompt = dict(mm.tokenizer(text(3, 20), return_tensors="pt", return_token_type_ids=False))
        how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        plain = mm.model.generate(**prompt, **how)[0]
        ours = mm.model.generate(**prompt, custom_generate=mm.decode, remember=False, **how)[0]
    ids = prompt["input_ids"][0]
    assert torch.equal(ours, plain)
    assert regret(both.unpacked, ids, ours[len(ids) :]) < NATS


def test_a_forward_that_ends_early_has_the_states_of_a_whole_one(both: Both) -> None:
    ids = torch.tensor(both.tokenizer(text(4, 20))["input_ids"])
    found = early_exit_states(both.blocks, ids, [1, 2])
    with torch.inference_mode():
        whole = both.blocks(ids[None], output_hidden_states=True).hidden_states
    expected = early_exit_states(both.unpacked, ids, [1, 2])
    for layer in (1, 2):
        assert torch.equal(found[layer], whole[layer][0])
        assert share(found[layer], expected[layer]) < SHARE


def test_adapters_are_trained_beside_the_blocks(both: Both) -> None:
    """Gradients of the maps of the first layer have come through all blocks behind it."""
    ids = torch.tensor([both.tokenizer(text(5, 12))["input_ids"]])
    grads = []
    for model in (both.blocks, both.unpacked):
        maps = LowRankMaps(MapSettings(), mapped_layers(model))
        for up in maps.up:
            torch.nn.init.normal_(up, std=0.02, generator=torch.Generator().manual_seed(len(up)))
        with frozen(model), AttachedMaps(maps, model).active():
            torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).backward()
        grads.append({name: maps.down[i].grad for i, name in enumerate(maps.names)})
        assert all(parameter.grad is None for parameter in model.parameters())
    for name, expected in grads[1].items():
        found = grads[0][name]
        assert found is not None, name
        assert expected is not None, name
        assert share(found, expected) < 2 * SHARE, name


def test_soft_tokens_are_trained_before_the_blocks(both: Both) -> None:
    before, behind = (torch.tensor(both.tokenizer(text(seed, 6))["input_ids"]) for seed in (6, 7))
    grads = []
    for model in (both.blocks, both.unpacked):
        vectors = embedded(model, before)[None].clone().requires_grad_()
        with frozen(model):
            logits = after_soft_tokens(model, before, vectors, behind, 8)
            torch.nn.functional.cross_entropy(logits[0, :-1], behind[-7:]).backward()
        assert vectors.grad is not None
        grads.append(vectors.grad)
    assert share(grads[0], grads[1]) < 2 * SHARE


def test_the_blocks_themselves_have_no_gradient_and_say_so(both: Both) -> None:
    weight = both.blocks.model.layers[0].mlp.up_proj.weight
    assert not weight.requires_grad
    with pytest.raises(RuntimeError, match="floating point"):
        weight.requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        both.blocks.requires_grad_()
