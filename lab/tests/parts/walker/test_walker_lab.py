"""The Walker: walks through memories with planted chains, its training, its place in recall, its trace."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import everlong._core as _core
from everlong.cli.app import app
from everlong.data import shipped_books
from everlong.errors import EverlongError
from everlong.models.pack import load_pack, pack_of
from everlong.parts.walker.model import FEATURES, WALKER, WalkerNet, walker_of
from everlong_lab.corpora.chains import MOST_HOPS, draw_chains
from everlong_lab.corpora.multi_hop import multi_hop_text
from everlong_lab.corpora.walks import draw_walk_texts
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.walker.measure import BEAM, FLAT, LEARNED, METHODS, TWICE, bootstrap, measure_walker
from everlong_lab.parts.walker.memories import WalkMemory, read_walk_texts
from everlong_lab.parts.walker.train import GROUP_TOKENS, Training, gold_found, train_on, walk_for
from everlong_lab.training.run import Run
from support import byte_tokenizer, tiny_model
from support.parts.walker import some_walker
from support.rng import no_global_draws

TRAINING = Training(rounds=1, epochs=2, reinforce_rounds=1, walks=2)


def texts(count: int = 2, chains: int = 6) -> Any:
    return draw_walk_texts(
        byte_tokenizer(), shipped_books()[:2], texts=count, tokens=6000, chains=chains, split="train", seed=3
    )


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> list[WalkMemory]:
    return read_walk_texts(None, byte_tokenizer(), None, texts(), tmp_path_factory.mktemp("walks"))


def test_chains_of_the_splits_share_no_name_and_no_statement() -> None:
    random = np.random.default_rng(5)
    words: dict[str, set[str]] = {}
    for split in ("train", "test"):
        chains = draw_chains(random, [1 + at % MOST_HOPS for at in range(24)], split)
        assert [chain.hops for chain in chains] == [1 + at % MOST_HOPS for at in range(24)]
        assert len({chain.question for chain in chains}) == 24
        words[split] = {
            word.strip(".,?'s") for c in chains for s in c.statements for word in s.split() if word[0].isupper()
        }
        for chain in chains:
            assert chain.answer in chain.statements[-1]
            for statement in chain.statements[1:]:  # what leads on is in the statement before, and not in the question
                named = [
                    w for w in statement.split() if w[0].isupper() and w.strip(".,") not in ("The", "In", "As", "All")
                ]
                assert named
    with pytest.raises(ValueError, match="1 to 3"):
        draw_chains(random, [4], "train")
    with pytest.raises(ValueError, match="no more names"):
        draw_chains(random, [3] * 200, "train")


def test_a_statement_leads_on_by_a_name_that_the_question_does_not_have() -> None:
    for split in ("train", "test"):
        for chain in draw_chains(np.random.default_rng(2), [3] * 12, split):
            for before, after in zip(chain.statements, chain.statements[1:], strict=False):
                shared = {
                    word.strip(".,")
                    for word in before.split()
                    if word.strip(".,") in after.replace(",", " ").replace(".", " ").split()
                }
                bridge = {word for word in shared if word[0].isupper()} - set(chain.question.split())
                assert bridge, (before, after)


def test_gold_pages_have_the_statements(memories: list[WalkMemory]) -> None:
    tokenizer = byte_tokenizer()
    for memory in memories:
        for question, asked in zip(memory.questions, memory.text.questions, strict=True):
            for page, (first, last) in zip(question.gold, asked.spans, strict=True):
                statement = tokenizer.decode(memory.text.ids[first:last].tolist()).strip()
                around = memory.core.blocks.token_ids(
                    0, max(0, page.begin - 64), min(len(memory.text.ids), page.end + 64)
                )
                assert statement[:40] in tokenizer.decode(around.tolist())


def test_the_teacher_walks_to_gold_and_ends_there(memories: list[WalkMemory]) -> None:
    policy = some_walker().policy()
    ended = 0
    for question in memories[0].questions:
        result = walk_for(memories[0], question, policy, 8, by="teacher", learn=True)
        assert result.walk is not None
        for step in result.walk.steps:
            if step.right.any():
                assert step.right[step.taken]
        if result.walk.stopped:
            ended += 1
            assert all(gold_found(result, question))
    assert ended > 0


def test_a_walk_is_the_same_every_time_and_keeps_its_budget(memories: list[WalkMemory]) -> None:
    policy = some_walker(1).policy()
    question = memories[1].questions[2]
    for loads in (1, 3, 5):
        first, again = (walk_for(memories[1], question, policy, loads).walk for _ in range(2))
        assert first is not None
        assert again is not None
        assert len(first.loads) <= loads
        assert first.loads == again.loads
        assert [step.logits.tolist() for step in first.steps] == [step.logits.tolist() for step in again.steps]
        for at, origin in enumerate(first.came_from):
            assert -1 <= origin < at
    drawn = [walk_for(memories[1], question, policy, 3, by="draw", seed=seed).walk for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert drawn[0].loads == drawn[1].loads
    assert len({tuple((page.block, page.page) for page in walk.loads) for walk in drawn if walk is not None}) > 1


def test_what_a_walk_loads_comes_back_first_and_the_search_fills_up(memories: list[WalkMemory]) -> None:
    question = memories[0].questions[1]
    result = walk_for(memories[0], question, some_walker().policy(), 3)
    assert result.walk is not None
    pages = {(page.block, page.page) for group in result.groups for page in group.pages}
    for load in result.walk.loads:
        assert (load.block, load.page) in pages
    assert len(result.groups) <= 3


def test_training_goes_on_from_kept_vectors_and_makes_a_part(tmp_path: Path) -> None:
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    drawn = texts(2, 3)
    with no_global_draws():
        packs = [pack_of(model, train_on(Run(model, tokenizer, tmp_path / "work"), drawn, TRAINING)) for _ in range(2)]
    assert packs[0].parts[WALKER].id == packs[1].parts[WALKER].id
    packs[0].save(tmp_path / "pack")
    walker = walker_of(load_pack(tmp_path / "pack"))
    assert walker is not None
    features = torch.rand(9, len(FEATURES))
    assert torch.equal(walker(features), WalkerNet.of_part(packs[1].parts[WALKER])(features))
    assert set(packs[0].parts[WALKER].made["figures"]["fit"]) >= {"all found", "1 facts"}


def test_the_measurement_asks_everybody_alike(memories: list[WalkMemory]) -> None:
    report = measure_walker(some_walker(), memories, loads=(2, 3))
    kinds = sorted({question.hops for memory in memories for question in memory.questions})
    assert {(row.method, row.loads, row.hops) for row in report.measured} == {
        (method, loads, hops) for method in METHODS for loads in (2, 3) for hops in kinds
    }
    for hops in kinds:
        asked = sum(question.hops == hops for memory in memories for question in memory.questions)
        for method in METHODS:
            found = [report.of(method, loads, hops) for loads in (2, 3)]
            assert len(found[0]) == asked
            # More loads find no less; what the search does in the second half depends on the first.
            assert method in (TWICE, LEARNED, BEAM) or not (found[0] & ~found[1]).any()
    # Flat and found by hand.
    memory, question = memories[0], memories[0].questions[0]
    groups = memory.core.search.find(**question.request(), max_groups=2, token_budget=2 * GROUP_TOKENS).groups
    held = [any(page == gold for group in groups for page in group.pages) for gold in question.gold]
    assert report.of(FLAT, 2, 1)[0] == all(held)
    json.dumps(report.to_dict())
    print_report(report, Console(file=io.StringIO()))


def test_a_bootstrap_is_as_wide_as_a_mean_is_unsure() -> None:
    random = np.random.default_rng(0)
    values = (random.random(400) < 0.3).astype(float)
    low, high = bootstrap(values)
    spread = 1.96 * values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - spread, abs=0.01)
    assert high == pytest.approx(values.mean() + spread, abs=0.01)


@pytest.mark.slow
def test_the_command_trains_and_the_evaluation_takes_what_it_made(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    model = ["--model", str(tmp_path / "model"), "--dtype", "float32"]
    sizes = ["--tokens", "6000", "--chains", "3", "--texts", "2"]
    train = ["train", "walker", *model, *sizes, "--words-alone", "1", "--minutes", "0.02", "--pack", "none"]
    folders = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "pack")]
    trained = CliRunner().invoke(app, [*train, *folders, "--json"])
    assert trained.exit_code == 0, trained.output
    assert WALKER in load_pack(tmp_path / "pack").parts
    measure = ["eval", "walker", *model, *sizes, "--pack", str(tmp_path / "pack"), "--loads", "2", "--json"]
    measured = CliRunner().invoke(app, [*measure, "--work", str(tmp_path / "eval")])
    assert measured.exit_code == 0, measured.output
    report = json.loads(measured.stdout)
    assert {row["method"] for row in report["shares"]} == set(METHODS)


def test_what_was_forgotten_is_on_no_way(memories: list[WalkMemory], tmp_path: Path) -> None:
    again = read_walk_texts(None, byte_tokenizer(), None, texts(), tmp_path)[0]
    question = again.questions[2]
    policy = some_walker().policy()
    gone = question.gold[0].block
    again.core.blocks.forget([gone])
    report = again.core.search.find(
        **question.request(),
        max_groups=6,
        token_budget=6 * GROUP_TOKENS,
        walk=_core.Walk(policy, loads=6, keep_all=True),
    ).walk
    assert report is not None
    assert all(page.block != gone for step in report.steps for page in step.pages)


def test_questions_of_musique_and_hotpotqa_have_their_passages(tmp_path: Path) -> None:
    passages = [
        ("Mill", "The mill belongs to Orla Vesk."),
        ("Orla Vesk", "Orla Vesk lives in Brunnow."),
        ("Rain", "Wet."),
    ]
    musique = {
        "question": "Where does the owner of the mill live?",
        "answer": "Brunnow",
        "paragraphs": [
            {"title": title, "paragraph_text": text, "is_supporting": title != "Rain"} for title, text in passages
        ],
    }
    hotpot = {
        "question": "Where does the owner of the mill live?",
        "answer": "Brunnow",
        "supporting_facts": [["Mill", 0], ["Orla Vesk", 0]],
        "context": [[title, [text[:4], text[4:]]] for title, text in passages],
    }
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in passages))
    for said in (musique, hotpot):
        (tmp_path / "asked.jsonl").write_text(json.dumps(said) + "\n")
        text = multi_hop_text(byte_tokenizer(), tmp_path / "asked.jsonl", corpus)
        (asked,) = text.questions
        assert asked.answers == ("Brunnow",)
        for (first, last), statement in zip(asked.spans, [one for _, one in passages[:2]], strict=True):
            assert statement in byte_tokenizer().decode(text.ids[first:last].tolist())
    corpus.write_text(json.dumps({"title": "Mill", "text": "Another text."}) + "\n")
    with pytest.raises(EverlongError, match="has no passage 'Mill'"):
        multi_hop_text(byte_tokenizer(), tmp_path / "asked.jsonl", corpus)
    (tmp_path / "asked.jsonl").write_text("{}")
    with pytest.raises(EverlongError, match="no questions and passages"):
        multi_hop_text(byte_tokenizer(), tmp_path / "asked.jsonl", corpus)
