"""An answer in steps (MemoryModel.in_steps): what is computed is the same, whatever else the model does in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from everlong import MemoryModel, Where
from everlong.generation.answer_generator import prompt_of
from everlong.retrieval.question_states import tap_question, tap_question_in_steps
from everlong.serve.stop_strings import StopStrings
from everlong.text.encoding import decode_text
from support import SMALL, random_text, tiny_model
from support.service import chat_tokenizer

CHUNK = SMALL.frame.chunk_tokens
TEXT = random_text(1500)
LONG = [{"role": "user", "content": f"{random_text(1300, seed=7)} {TEXT[300:330]}"}]
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def opened(model: Any, **changes: Any) -> MemoryModel:
    mm = MemoryModel(model, chat_tokenizer(), config=SMALL.changed(**changes))
    mm.read(TEXT, source="book")
    return mm


@pytest.fixture(scope="module")
def model() -> Any:
    """A model that says letters, without an end."""
    made = tiny_model()
    letters = set(chat_tokenizer()(LETTERS)["input_ids"])
    made.generation_config.eos_token_id = None
    made.generation_config.suppress_tokens = [token for token in range(257) if token not in letters]
    return made


@pytest.fixture
def mm(model: Any) -> Iterator[MemoryModel]:
    with opened(model) as made:
        yield made


def said(mm: MemoryModel) -> str:
    """Return all that stands in the stream behind the text that was read."""
    ids = [
        token
        for block in sorted(mm.memory.core.blocks.infos(), key=lambda block: block.begin)
        if block.role != "read"
        for token in mm.memory.core.blocks.token_ids(block.stream, block.begin, block.end).tolist()
    ]
    return decode_text(mm.tokenizer, ids)


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("quotes", [0, 1])
@pytest.mark.parametrize("where", [Where(), Where(source="book")])
def test_it_says_what_stream_says(model: Any, quotes: int, where: Where, *, remember: bool) -> None:
    how: dict[str, Any] = {"max_new_tokens": 12, "remember": remember, "where": where}
    with opened(model, answer={"quotes": quotes}) as one, opened(model, answer={"quotes": quotes}) as other:
        for question in (LONG, [{"role": "user", "content": "And then?"}]):
            pieces = list(one.in_steps(question, **how))
            assert "".join(pieces) == "".join(other.stream(messages=question, **how))
            assert one.last_recalled == other.last_recalled
            assert one.stream_tokens == other.stream_tokens
        assert said(one) == said(other)


def test_a_step_computes_a_chunk_or_a_token(mm: MemoryModel) -> None:
    chunks: list[int] = []
    pieces = list(mm.in_steps(LONG, 12, progress=chunks.append, remember=False))
    prompt = prompt_of(mm.tokenizer, LONG, first=False)
    assert sum(chunks) == len(prompt.ids)
    assert max(chunks) <= CHUNK
    assert len(pieces) >= len(prompt.ids) // CHUNK + 12
    forwards: list[int] = []
    with mm.model.register_forward_pre_hook(
        lambda module, args, named: forwards.append(named["input_ids"].shape[1]), with_kwargs=True
    ):
        for _ in mm.in_steps(LONG, 4, remember=True):
            assert sum(forwards) <= CHUNK
            forwards.clear()


def test_answers_that_take_turns_are_those_of_one_after_another(model: Any) -> None:
    questions = [[{"role": "user", "content": random_text(300 * number, seed=number)}] for number in (1, 4, 3)]
    with opened(model) as alone:
        expected = ["".join(alone.in_steps(question, 10, remember=False)) for question in questions]
    several = [opened(model) for _ in questions]
    under_way = {n: mm.in_steps(questions[n], 10, remember=False) for n, mm in enumerate(several)}
    found = [""] * len(questions)
    while under_way:
        for number, answer in list(under_way.items()):
            piece = next(answer, None)
            if piece is None:
                del under_way[number]
            else:
                found[number] += piece
    for mm in several:
        mm.close()
    assert found == expected


def test_what_a_search_reads_of_a_question_is_its_own(model: Any) -> None:
    with opened(model) as one, opened(model) as other:
        ids = prompt_of(one.tokenizer, LONG, first=False).ids
        question = slice(len(ids) - 400, len(ids) - 5)
        expected = tap_question(one.frame, ids, question, [0, 2], [1])
        steps = tap_question_in_steps(one.frame, ids, question, [0, 2], [1])
        beside = other.in_steps(LONG, 200, remember=False)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
                break
            next(beside)
        beside.close()
        for states, others in ((found.queries, expected.queries), (found.hidden, expected.hidden)):
            assert {layer: row.shape for layer, row in states.items()} == {k: v.shape for k, v in others.items()}
            assert all(torch.equal(states[layer], others[layer]) for layer in others)


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 20, 40])
def test_an_answer_that_is_closed_leaves_nothing(model: Any, steps: int, *, remember: bool) -> None:
    short = [{"role": "user", "content": "Who?"}]
    with opened(model) as mm, opened(model) as fresh:
        cut = mm.in_steps(
            LONG, 50, remember=remember, cuts=StopStrings(["\0"])
        )  # never said: it is taken back in any case
        for _ in range(steps):
            next(cut)
        cut.close()
        assert mm.stream_tokens == fresh.stream_tokens
        assert said(mm) == ""
        answers = ["".join(one.in_steps(short, 20)) for one in (mm, fresh)]
        assert answers[0] == answers[1]


def test_a_turn_that_is_closed_while_it_is_read_again_is_archived(model: Any) -> None:
    """As far as it was read: else `forget` and a filter could not name what stands in the frame."""
    question = [{"role": "user", "content": "Tell me of the stone. " * 10}]
    how: dict[str, Any] = {"remember": True, "where": Where(source="a")}
    with opened(model) as mm:
        mm.read(random_text(300, seed=1), "a")
        steps = len(list(mm.in_steps(question, 5, **how)))
    cut_short = 0
    for step in range(steps - 6, steps):  # the turn is read again in the last of them
        with opened(model) as mm:
            mm.read(random_text(300, seed=1), "a")
            begin = mm.stream_tokens
            cut = mm.in_steps(question, 5, **how)
            for _ in range(step + 1):
                next(cut)
            cut.close()
            end = mm.stream_tokens
            assert end == mm.memory.core.blocks.stream_end(mm.frame.os.stream)
            cut_short += begin < end
            turn = [block for block in mm.memory.blocks() if block.span[0] >= begin]
            assert {block.role for block in turn} <= {"asked", "said"}
            assert mm.memory.forget([block.id for block in turn]) == len(turn)
            mm.recall("stone")
            assert mm.stream_tokens == begin
    assert cut_short > 1


@pytest.mark.parametrize("quotes", [0, 1])
def test_exactly_what_was_sent_is_remembered(model: Any, quotes: int) -> None:
    question = [{"role": "user", "content": "Tell me."}]
    with opened(model, answer={"quotes": quotes}) as mm:
        whole = "".join(mm.in_steps(question, 30, remember=False, recall=False))
    stop = next(whole[at : at + 2] for at in range(5, 20) if whole.find(whole[at : at + 2]) == at)
    with opened(model, answer={"quotes": quotes}) as mm:
        sent = "".join(mm.in_steps(question, 30, cuts=StopStrings([stop]), recall=False))
        assert sent == whole[: whole.index(stop)]
        assert said(mm).endswith(f"Tell me.\nassistant: {sent}")
        # It goes on as one that never said more.
        then = "".join(mm.in_steps([{"role": "user", "content": "And?"}], 10, recall=False))
        assert f"assistant: {sent}\nuser: And?" in said(mm)
    with opened(model, answer={"quotes": quotes}) as other:
        both = [*question, {"role": "assistant", "content": sent}, {"role": "user", "content": "And?"}]
        assert "".join(other.in_steps(both, 10, recall=False)) == then


def test_a_character_that_was_cut_is_remembered_as_it_was_sent() -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = None
    first = chat_tokenizer()("é")["input_ids"][0]  # the first of its two bytes
    model.generation_config.suppress_tokens = [token for token in range(257) if token != first]
    with opened(model) as mm:
        sent = "".join(mm.in_steps([{"role": "user", "content": "Tell me."}], 3, cuts=StopStrings(["\0"])))
        assert sent == "\ufffd" * 3
        assert said(mm).endswith(f"assistant: {sent}")
        ids = mm.memory.core.blocks.token_ids(mm.frame.os.stream, mm.stream_tokens - 9, mm.stream_tokens).tolist()
        assert ids == chat_tokenizer()(sent)["input_ids"]


def test_a_step_that_says_nothing_is_a_step_all_the_same() -> None:
    """Special tokens, and bytes of a letter that is not whole, are no text yet."""
    model = tiny_model()
    model.generation_config.eos_token_id = None
    model.generation_config.suppress_tokens = list(range(256))
    with opened(model) as mm:
        steps: Generator[str] = mm.in_steps([{"role": "user", "content": "Who?"}], 30, recall=False, remember=False)
        assert len(list(steps)) >= 30
