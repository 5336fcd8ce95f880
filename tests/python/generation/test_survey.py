"""A survey answers from its notes, cites them, and leaves everything as it was."""

from __future__ import annotations

import pytest
import torch

import everlong
from everlong.generation.answer_generator import AnswerGenerator
from everlong.text.prompt import Prompt
from support import SMALL, byte_tokenizer, tiny_model
from support.memories import answering_of

FILLER = "The sea was wide and the wind went on. Nobody came to the house. " * 12
TEXT = f"The captain has 3 ships. {FILLER}The captain lost 1 of his ships. {FILLER}"
QUESTION = "How many ships has the captain?"
LINES = ("The captain has 3 ships.", "The captain lost 1 of his ships.")


def spy_on_prompts(monkeypatch: pytest.MonkeyPatch) -> list[Prompt]:
    """Return what will have the prompts that are answered."""
    prompts: list[Prompt] = []
    answer = AnswerGenerator.answer

    def told(self: AnswerGenerator, prompt: Prompt, *given: object) -> object:
        prompts.append(prompt)
        return answer(self, prompt, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(AnswerGenerator, "answer", told)
    return prompts


def opened() -> everlong.MemoryModel:
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL)
    mm.read(TEXT, source="log")
    return mm


def test_the_answer_is_that_of_the_notes_and_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = spy_on_prompts(monkeypatch)
    with opened() as mm:
        surveyed = mm.survey(QUESTION, 8)
        said = mm.tokenizer.decode(prompts[0].ids.tolist())
        notes, _, rest = said.partition("\n\n")
        assert tuple(notes.splitlines())[-2:] == LINES
        assert rest.startswith("The words that occur most often")
        assert QUESTION in rest.split("\n\n")[1]
        assert surveyed.quoted == LINES
        # The same prompt behind the same window has the same answer.
        monkeypatch.undo()
        with mm.frame.branch():
            assert tuple(answering_of(mm).answer(prompts[0], 8, [], everlong.Where(), None, {})) == surveyed.token_ids


def test_notes_of_several_sources_stand_below_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = spy_on_prompts(monkeypatch)
    with opened() as mm:
        mm.read(f"The captain has 9 ships. {FILLER}", source="letter")
        mm.survey(QUESTION, 4)
        said = mm.tokenizer.decode(prompts[0].ids.tolist())
    of_log, of_letter = said.split("\n\n")[:2]
    assert tuple(of_log.splitlines())[-3:] == ("log:", *LINES)
    assert of_letter.splitlines() == ["letter:", "The captain has 9 ships."]


def test_names_of_sources_count_as_notes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = spy_on_prompts(monkeypatch)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        for number in range(8):
            mm.read(f"The captain has {number} ships. ", source=f"the {number}. of many letters to the captain")
        assert len(mm.survey(QUESTION, 4, note_tokens=200).quoted) == 3
        assert mm.survey(QUESTION, 4, note_tokens=1).quoted == ()
    with_notes, without = (len(prompt.ids) for prompt in prompts)
    assert 0 < with_notes - without <= 200


def test_it_cites_the_lines_best_first() -> None:
    with opened() as mm:
        recalled = mm.survey(QUESTION, 4).recalled
        assert {one.text for one in recalled} == set(LINES)
        assert [one.score for one in recalled] == sorted((one.score for one in recalled), reverse=True)
        for one in recalled:
            assert one.source == "log"
            assert one.found_by == ("survey",)
            begin, end = one.span
            assert TEXT[begin:end] == one.text


def test_it_leaves_everything_as_it_was() -> None:
    with opened() as mm, opened() as other:
        mm.survey(QUESTION, 8)
        assert mm.stream_tokens == other.stream_tokens
        assert [one.id for one in mm.memory.core.blocks.infos()] == [one.id for one in other.memory.core.blocks.infos()]
        for one in (mm, other):
            one.frame.clear_recalled()
        ids = torch.tensor([65, 66], dtype=torch.int64)
        with mm.frame.branch(), other.frame.branch():
            assert torch.equal(mm.frame.extend(ids, "prompt")[-1], other.frame.extend(ids, "prompt")[-1])


def test_progress_counts_every_token_and_where_chooses() -> None:
    told: list[tuple[int, int | None]] = []
    with opened() as mm:
        mm.read(f"The captain has 9 ships. {FILLER}", source="other")
        mm.survey(QUESTION, 4, progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (mm.stream_tokens, mm.stream_tokens)
        there = mm.survey(QUESTION, 4, where=everlong.Where(source="other"))
        assert there.quoted == ("The captain has 9 ships.",)
        assert {one.source for one in there.recalled} == {"other"}


def test_an_empty_memory_is_answered_without_notes() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        answer = mm.survey(QUESTION, 4)
        assert (answer.recalled, answer.quoted, answer.tokens) == ((), (), 4)


@pytest.mark.parametrize("note_tokens", [0, -1])
def test_notes_need_room(note_tokens: int) -> None:
    with opened() as mm, pytest.raises(ValueError, match="note_tokens"):
        mm.survey(QUESTION, 4, note_tokens=note_tokens)
