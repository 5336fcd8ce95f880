"""Sentences that are quoted before a question: the nearest ones, whole, once; and a turn is remembered without them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame.part import Vectors
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.parts.towers.model import LateTowers, TowerSettings
from everlong.parts.towers.runtime import query_vectors
from everlong.retrieval.quotes import WORDS_WEIGHT, Sentence, _sentences, nearest_sentences, quoting, words_of
from everlong.text.prompt import build_prompt
from support import SMALL, byte_tokenizer, tiny_model
from support.memories import answering_of

CONFIG = SMALL.changed(search={"index": ("lexical",)}, answer={"quotes": 1})
LONG = CONFIG.changed(archive={"block_tokens": 256})
WORDS = ["brass", "lantern", "harbour", "violet", "saddle", "mirror", "pepper", "glacier", "trumpet", "walnut"]


def text(sentences: int = 60) -> str:
    """Each sentence has a number of its own."""
    random = np.random.default_rng(4)
    return " ".join(
        f"The {random.choice(WORDS)} of house {number:03d} stands by the {random.choice(WORDS)}."
        for number in range(sentences)
    )


@pytest.fixture
def mm() -> Iterator[everlong.MemoryModel]:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as mm:
        mm.read(text(), source="houses")
        yield mm


def test_the_sentence_with_the_questions_words_is_quoted(mm: everlong.MemoryModel) -> None:
    answer = mm.generate("Where is house 007?", max_new_tokens=4, remember=False)
    (quoted,) = answer.quoted
    assert quoted.startswith("The ")
    assert quoted.endswith(".")
    assert "house 007" in quoted
    assert any(quoted[:20] in recall.text for recall in answer.recalled)


def test_the_model_reads_it_before_the_question(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a prompt of the caller's own that has it there, behind the same pages."""
    question, greedy = "Where is house 007?", {"max_new_tokens": 12, "min_new_tokens": 12, "remember": False}
    prompts: list[str] = []
    extend = mm.frame.extend

    def told(ids: torch.Tensor, origin: str, **how: Any) -> torch.Tensor:
        if origin == "prompt":
            prompts.append(mm.tokenizer.decode(ids))
        return extend(ids, origin, **how)

    monkeypatch.setattr(mm.frame, "extend", told)
    got = mm.generate(question, **greedy)
    assert prompts == [f"{got.quoted[0]}\n\n{question}"]
    mm.config = mm.config.changed(answer={"quotes": 0})
    pages = [page for one in reversed(got.recalled) for page in mm.memory.core.blocks.pages_of(0, *one.span)]
    assert mm.generate(prompts[0], recall=pages, **greedy).token_ids == got.token_ids
    assert mm.generate(question, **greedy).quoted == ()
    assert prompts[1:] == [prompts[0], question]


def test_several_stand_in_order_of_time(mm: everlong.MemoryModel) -> None:
    mm.config = mm.config.changed(answer={"quotes": 3})
    answer = mm.generate("What stands by the saddle?", max_new_tokens=2, remember=False)
    assert len(answer.quoted) == 3
    assert any("saddle" in one for one in answer.quoted)
    sentences = [re.fullmatch(r"\[houses(?:, newest)?\] (The .*)", one) for one in answer.quoted]
    places = [text().index(one[1]) for one in sentences if one]
    assert len(places) == 3
    assert places == sorted(set(places))
    prompt = quoting(mm.tokenizer, answering_of(mm).prompt("What stands by the saddle?", True, None), answer.quoted)
    said = mm.tokenizer.decode(prompt.ids)
    assert "\n".join(answer.quoted) + "\n\nWhat stands by the saddle?" in said
    assert mm.tokenizer.decode(prompt.ids[prompt.question]) == "What stands by the saddle?"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_is_remembered_without_quotes(mm: everlong.MemoryModel, streamed: bool) -> None:
    """Its keys are those of question and answer read alone."""
    question = "Where is house 007?"
    before = mm.stream_tokens
    if streamed:
        said = "".join(mm.stream(question, max_new_tokens=9, min_new_tokens=9))
    else:
        said = mm.generate(question, max_new_tokens=9, min_new_tokens=9).text
    ids = mm.memory.core.blocks.token_ids(0, before, mm.stream_tokens).tolist()
    assert mm.tokenizer.decode(ids) == question + said
    assert [block.role for block in mm.memory.blocks()][-2:] == ["asked", "said"]
    keys = last_keys(mm)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as plain:
        plain.read(text(), source="houses")
        plain.frame.extend(torch.tensor(ids[: len(question)]), "prompt")
        plain.frame.extend(torch.tensor(ids[len(question) :]), "generated")
        plain.frame.end_of_text()
        np.testing.assert_allclose(keys, last_keys(plain), rtol=1e-4, atol=1e-5)


def last_keys(mm: everlong.MemoryModel) -> np.ndarray[Any, Any]:
    core = mm.memory.core
    return np.concatenate([core.blocks.read_keys(page, 1).reshape(-1) for page in core.blocks.pages()[-2:]])


def test_an_answer_that_was_not_taken_to_its_end_is_remembered_as_far_as_it_was_said(mm: everlong.MemoryModel) -> None:
    question = "Where is house 007?"
    before = mm.stream_tokens
    answer = mm.stream(question, max_new_tokens=9, min_new_tokens=9)
    said = next(answer) + next(answer)
    answer.close()
    ids = mm.memory.core.blocks.token_ids(0, before, mm.stream_tokens).tolist()
    assert (question + said).startswith(mm.tokenizer.decode(ids))
    assert len(ids) > len(question)


def test_nothing_is_quoted_of_what_a_question_is_kept_from() -> None:
    """Though it goes on with a sentence of what came back."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as mm:
        mm.read(text(20) + " The amulet of house 900 stands by", source="ours")
        mm.read("SECRET words of another hand. " * 3, source="theirs")
        mm.read(text(), source="houses")
        where = everlong.Where(source="ours")
        (quoted,) = mm.generate("amulet of house 900?", max_new_tokens=2, remember=False, where=where).quoted
        assert quoted.startswith("The amulet of house 900")
        assert "SECRET" not in quoted


def test_what_the_window_holds_is_not_quoted() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as mm:
        mm.read(text(5))
        assert mm.generate("Where is house 003?", max_new_tokens=4).quoted == ()


def test_scores_are_cosines_and_words(tmp_path: Path) -> None:
    """Of every sentence, beside sums over its vectors in fp64."""
    model = tiny_model()
    settings = TowerSettings((1, 2), 64)
    towers = LateTowers(settings)
    Pack(weights_fingerprint(model), "tiny", {"towers": towers.part({})}).save(tmp_path / "pack")
    config = CONFIG.changed(search={"index": ("lexical", "meaning")})
    with everlong.MemoryModel(model, byte_tokenizer(), None, config, pack=tmp_path / "pack") as mm:
        mm.read(text(), source="houses")
        mm.searcher.settle()
        core, meaning = mm.memory.core, mm.frame.parts.get("towers")
        assert meaning is not None
        prompt = answering_of(mm).prompt("Where is house 007?", True, None)
        tapped = mm.searcher.tap(prompt)
        found = mm.searcher.find(prompt, tapped=tapped)
        query = query_vectors(meaning.towers, tapped.states.hidden)
        chosen = nearest_sentences(
            core,
            mm.tokenizer,
            found.offers,
            tapped.token_ids,
            Vectors(query, f"meaning.{meaning.id}", settings.group_tokens),
            99,
        )
        assert len(chosen) > 5
        assert [one.score for one in chosen] == sorted((one.score for one in chosen), reverse=True)
        for one, other in itertools.pairwise(chosen):
            assert one.end <= other.begin or other.end <= one.begin
        rare = dict(zip(tapped.token_ids.tolist(), core.search.idf(tapped.token_ids).tolist(), strict=True))
        page_tokens = config.archive.page_tokens
        for one in chosen[:12]:
            rows = []
            for page in core.blocks.pages():
                if not any(
                    page.block == kept.block and page.page == kept.page for g in found.offers for kept in g.pages
                ):
                    continue
                whole = core.blocks.tensors(page.block)[f"meaning.{meaning.id}"].astype(np.float64)
                first = page.page * page_tokens // settings.group_tokens
                for row in range(-(-(page.end - page.begin) // settings.group_tokens)):
                    middle = page.begin + row * settings.group_tokens + settings.group_tokens // 2
                    if one.begin <= middle < one.end:
                        rows.append(whole[first + row] / np.linalg.norm(whole[first + row]))
            asked = query.astype(np.float64)
            cosine = (asked @ np.array(rows).T).max(1).sum() / np.linalg.norm(asked, axis=1).sum()
            ids = set(core.blocks.token_ids(0, one.begin, one.end).tolist())
            share = sum(value for token, value in rare.items() if token in ids) / sum(rare.values())
            assert one.score == pytest.approx(cosine + WORDS_WEIGHT * share, abs=1e-4)


def test_sentences_that_are_whole_like_the_question_come_first(mm: everlong.MemoryModel) -> None:
    tapped = mm.searcher.tap(prompt := build_prompt(mm.tokenizer, "Where is house 007?"))
    offers, core = mm.searcher.find(prompt, tapped=tapped).offers, mm.memory.core
    compared: list[str] = []

    def alike(texts: Sequence[str], words: str) -> np.ndarray:
        assert words == ""
        compared.extend(texts)
        return np.linspace(-1, 1, len(texts), dtype=np.float32)

    def best(count: int, cosines: Any, **weights: float) -> list[Sentence]:
        none = np.zeros((1, 8), dtype=np.float32)
        near = Vectors(none, "not there", 4)
        return nearest_sentences(core, mm.tokenizer, offers, tapped.token_ids, near, count, cosines, **weights)

    plain = best(5, None)
    chosen = best(5, alike, whole_weight=9.0)
    assert compared == list(words_of(core, mm.tokenizer, plain))  # as many as asked for, and no more
    assert [one.begin for one in chosen] == [one.begin for one in reversed(plain)]
    expected = [one.score + 9.0 * cosine for one, cosine in zip(plain, np.linspace(-1, 1, 5), strict=True)]
    assert [one.score for one in chosen] == pytest.approx(sorted(expected, reverse=True))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="quotes is -1"):
        CONFIG.changed(answer={"quotes": -1})


@pytest.mark.parametrize(
    "sentence",
    [
        "The amulet 900 of Mr. Smith, release 0.5.5, e.g. in append_queue.cc, cost 3.14 crowns.",
        "The amulet 900: https://example.org/a.b?c=1.5, St. Mary's, No. 7 ... or so they say.",
        "Наш amulet 900 у г-на А. Эшби, и 港 тоже 😀, v. 3.2.",
    ],
)
def test_a_quoted_sentence_is_whole(sentence: str) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, LONG, pack=None) as mm:
        mm.read(f"{text(2)} {sentence} {text(40)}", source="houses")
        assert mm.generate("amulet 900?", max_new_tokens=2, remember=False).quoted == (sentence,)


@pytest.mark.parametrize(
    "whole", ["```sh\nAMULET 900. A b. C\nmake all. D\n```", "| name | what |\n|---|---|\n| AMULET 900. | A b. C |"]
)
def test_code_and_tables_are_quoted_whole(whole: str) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, LONG, pack=None) as mm:
        mm.read(f"{text(2)}\n\n{whole}\n\n{text(40)}", source="houses")
        assert mm.generate("AMULET 900?", max_new_tokens=2, remember=False).quoted == (whole,)


def test_what_is_too_long_is_cut_between_lines_or_words(mm: everlong.MemoryModel) -> None:
    for between, long in ((" ", "amulet 900 " * 30), ("\n", "amulet 900\n" * 30)):
        ids = mm.tokenizer(long)["input_ids"]
        pieces = [mm.tokenizer.decode(ids[first:last]) for first, last, _ in _sentences(mm.tokenizer, ids, 0, len(ids))]
        assert "".join(pieces) == long.rstrip()
        assert all(len(piece) <= 96 for piece in pieces)
        assert all(piece.startswith(between) for piece in pieces[1:])
