"""lm-eval's model `everlong`: it says what the model alone says while a prompt fits the frame, and finds behind it."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import REPOSITORY, byte_tokenizer, random_text, tiny_model
from support.chatting import FACTS, TEMPLATE

pytest.importorskip("lm_eval", reason="the package lm-eval is not installed")

from lm_eval.api.registry import get_model

from everlong.integrations.lm_eval import EverlongLM, config_of, split

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> EverlongLM:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return EverlongLM(
        str(folder),
        frame_tokens=1024,
        settings="search.index=lexical;answer.quotes=0",
        dtype="float32",
        device="cuda:0",
    )


def requests(*given: Any) -> list[Any]:
    return [SimpleNamespace(args=one) for one in given]


def plain_log_probs(lm: EverlongLM, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(lm.model(torch.tensor([ids])).logits[0].double(), dim=-1)


def test_it_is_registered_and_has_an_entry_point() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    ((name, value),) = settings["project"]["entry-points"]["lm_eval.models"].items()
    assert importlib.metadata.EntryPoint(name, value, "lm_eval.models").load() is EverlongLM
    assert get_model("everlong") is EverlongLM
    assert get_model("hf") is not EverlongLM


@given(st.text("ab \n", max_size=40), st.sampled_from(["\nQuestion: x?", "\n\nWhat?", "\nQ: y\nA:", ""]))
def test_text_and_question_are_the_prompt(text: str, question: str) -> None:
    read, asked = split(text + question, 2000)
    assert read + asked == text + question
    if question.startswith("\nQ"):
        assert asked == question[1:]


def test_the_question_is_the_last_and_no_longer_than_it_may_be() -> None:
    assert split("text\nQuestion: one?\nmore\nQuestion: two?\nAnswer:", 100)[1] == "Question: two?\nAnswer:"
    assert split("first\n\nsecond part\nstill", 100)[1] == "second part\nstill"
    assert split("no break", 100) == ("", "no break")
    assert split("x" * 50 + "\nQuestion: " + "y" * 90, 40)[1] == "y" * 40


def test_a_prompt_that_fits_is_answered_as_by_the_model_alone(lm: EverlongLM) -> None:
    prompts = [
        f"{random_text(200, seed=seed)}\nQuestion: {random_text(20, seed=seed + 50)}\nAnswer:" for seed in (1, 2)
    ]
    answers = lm.generate_until(requests(*((prompt, {"max_gen_toks": 8, "until": []}) for prompt in prompts)))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([lm.tokenizer(prompt)["input_ids"]])
        out = lm.model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=256)
        assert answer == lm.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_likelihoods_are_the_models_own(lm: EverlongLM) -> None:
    pairs = [(f"{random_text(150, seed=3)}\nQuestion: which?", " one"), ("a b c ", "d e"), ("", "first words")]
    for (prompt, continuation), (total, greedy) in zip(pairs, lm.loglikelihood(requests(*pairs)), strict=True):
        blank = prompt[len(prompt.rstrip()) :]  # lm-eval counts it to the continuation
        before = lm.tokenizer(prompt.rstrip())["input_ids"] or [lm.tokenizer.eos_token_id]
        ids = lm.tokenizer(blank + continuation)["input_ids"]
        told = plain_log_probs(lm, [*before, *ids])[len(before) - 1 : -1]
        wanted = told.gather(1, torch.tensor(ids)[:, None]).sum()
        assert total == pytest.approx(float(wanted), abs=2e-3)
        assert greedy == bool((told.argmax(dim=-1) == torch.tensor(ids)).all())
    best = int(plain_log_probs(lm, lm.tokenizer("a b c")["input_ids"])[-1].argmax())
    if best < 128:
        assert lm.loglikelihood(requests(("a b c", chr(best))))[0][1]


def test_rolling_is_the_models_own_within_the_frame_and_finite_behind_it(lm: EverlongLM) -> None:
    short, long = random_text(300, seed=5), random_text(5000, seed=6)
    (total, far) = lm.loglikelihood_rolling(requests((short,), (long,)))
    ids = [lm.tokenizer.eos_token_id, *lm.tokenizer(short)["input_ids"]]
    told = plain_log_probs(lm, ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    assert total == pytest.approx(float(told), abs=1e-2)
    assert -20 * 5000 < far < 0


def test_the_answers_end_at_their_stops_and_what_is_far_is_recalled(lm: EverlongLM) -> None:
    text = f"{random_text(900, seed=1)}\n{FACTS['garden']}\n{random_text(2500, seed=2)}"
    prompt = f"{text}\nQuestion: does 48213 open the garden shed?"
    with lm.reading(prompt) as (mm, question, chat):
        assert question == "Question: does 48213 open the garden shed?"
        assert not chat
        assert "48213" in mm.generate(question, 1, chat=False, remember=False).recalled[0].text
        same = mm
    with lm.reading(f"{prompt} Again?") as (mm, question, _):
        assert mm is same
    whole = lm.generate_until(requests((prompt, {"max_gen_toks": 12, "until": []})))[0]
    stop = whole[3:5]
    cut = lm.generate_until(requests((prompt, {"max_gen_toks": 12, "until": [stop]})))[0]
    assert cut == whole[: whole.index(stop)]


def test_a_chat_template_makes_the_question_a_users_turn(lm: EverlongLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm.tokenizer, "chat_template", TEMPLATE)
    text = random_text(100, seed=7)
    prompt = lm.apply_chat_template([{"role": "user", "content": f"{text}\nQuestion: which?"}])
    with lm.reading(prompt) as (mm, question, chat):
        assert (question, chat) == ("Question: which?", True)
        assert [mm.text(block.id) for block in mm.memory.blocks()] == [f"{text}\n"]
        expected = mm.generate(question, 6, remember=False, do_sample=False).text
    assert lm.generate_until(requests((prompt, {"max_gen_toks": 6, "until": []}))) == [expected]
    assert lm.loglikelihood(requests((prompt, " one")))[0][0] < 0


def test_the_frame_has_the_size_that_is_asked_for() -> None:
    for tokens in (512, 1024, 4096, 16_384):
        assert config_of(tokens).frame.tokens == tokens
    assert config_of(None, "search.groups=2;answer.quotes=0").search.groups == 2


def test_tasks_run_by_name(lm: EverlongLM, tmp_path: Path) -> None:
    """A task of a user's own file, without a download."""
    evaluator = pytest.importorskip("lm_eval.evaluator")
    manager = pytest.importorskip("lm_eval.tasks").TaskManager(include_defaults=False)
    rows = [json.dumps({"text": random_text(30, seed=n), "asked": "what?", "right": "x"}) for n in range(2)]
    (tmp_path / "own.jsonl").write_text("\n".join(rows) + "\n")
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "own.jsonl")}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}\nQuestion: {{asked}}",
        "doc_to_target": "{{right}}",
        "generation_kwargs": {"max_gen_toks": 4, "until": []},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    done = evaluator.simple_evaluate(model=lm, tasks=[task], task_manager=manager, bootstrap_iters=0)
    assert done["results"]["own"]["exact_match,none"] == 0.0
    assert [len(sample["resps"][0]) for sample in done["samples"]["own"]] == [1, 1]
