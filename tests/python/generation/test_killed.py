"""A process that SIGKILL ends while it reads or answers: what it had acknowledged is there, whole, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import everlong
import everlong.frame.frame
from support import SMALL, byte_tokenizer, open_model, random_text, tiny_model
from support.processes import killed, tell_and_wait

TEXT = random_text(3000)
QUESTIONS = ("abc", "def", "ghi")
ANSWER = 20
APART = 300  # checkpoints, in tokens
FIRST_TURN = 3000 + 3 + ANSWER  # where it ends


def stream_ids(mm: everlong.MemoryModel) -> list[int]:
    """Of what is archived."""
    return mm.memory.core.blocks.token_ids(0, 0, mm.memory.core.blocks.stream_end(0)).tolist()


def answers(mm: everlong.MemoryModel) -> list[str]:
    questions = (TEXT[300:320], TEXT[2500:2520])
    return [mm.generate(question, max_new_tokens=12, remember=False).text for question in questions]


def read(folder: Path, kind: str, rope: str, acknowledged: int, apart: int, pipe: Connection) -> None:
    """Waits in the middle of a step: behind two blocks that may not be durable yet."""
    everlong.frame.checkpointing.CHECKPOINT_TOKENS = apart
    with open_model(folder, kind=kind, rope=rope) as mm:

        def archived(*of_block: object) -> None:
            if mm.frame.archive.blocks == acknowledged:
                mm.memory.flush()
            if mm.frame.archive.blocks == acknowledged + 2:
                tell_and_wait(pipe, mm.frame.archive.blocks)

        mm.frame.observe(archived)
        mm.read(TEXT, source="book")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rope", "acknowledged"),
    [
        ("llama", "default", 0),
        ("llama", "default", 1),
        ("llama", "default", 9),
        ("llama", "default", 21),
        ("gemma3", "nested", 0),
        ("gemma3", "nested", 9),
        ("gemma3", "nested", 21),
        ("qwen3_next", "partial", 0),
        ("qwen3_next", "partial", 9),
        ("qwen3_next", "partial", 21),
    ],
)
def test_a_killed_reader_loses_nothing_acknowledged(
    kind: str, rope: str, acknowledged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one answers as if it had read all: layers that are not archived go on from the last checkpoint."""
    monkeypatch.setattr(everlong.frame.checkpointing, "CHECKPOINT_TOKENS", APART)
    archived = killed(read, tmp_path / "killed", kind, rope, acknowledged, APART)
    with everlong.Memory.open(tmp_path / "killed") as memory:
        assert acknowledged <= memory.stats().blocks <= archived
        assert memory.verify().damage == ()
    with open_model(tmp_path / "killed", kind=kind, rope=rope) as mm:
        kept = mm.stream_tokens
        assert acknowledged * SMALL.archive.block_tokens <= kept <= archived * SMALL.archive.block_tokens
        assert stream_ids(mm) == mm.encode(TEXT[:kept]).tolist()
        state = mm.frame.cache.own.tensors()
        report = mm.read(TEXT, source="book")
        assert (report.resumed_tokens, report.tokens) == (kept, 3000 - kept)
        assert stream_ids(mm) == mm.encode(TEXT).tolist()
        assert mm.memory.verify().damage == ()
        got = answers(mm)
    with open_model(tmp_path / "whole", kind=kind, rope=rope) as mm:
        mm.read(TEXT, source="book")
        assert got == answers(mm)
    with open_model(tmp_path / "so far", kind=kind, rope=rope) as mm:
        if kept > 0:
            mm.frame.extend(mm.encode(TEXT[:kept]), "read")
        expected = mm.frame.cache.own.tensors()
    assert (len(state) > 0) == (kind != "llama" and kept > 0)
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


class At:
    """A streamer that does something with all that was said once the answer has so many tokens."""

    def __init__(self, tokens: int, then: Callable[[list[int]], None]) -> None:
        self.tokens, self.then = tokens, then
        self.said: list[int] = []
        self.question = 0

    def put(self, ids: torch.Tensor) -> None:
        self.question = self.question or ids.numel()
        self.said += ids.flatten().tolist()
        if len(self.said) == self.question + self.tokens:
            self.then(self.said)

    def end(self) -> None:
        pass


def talk(mm: everlong.MemoryModel, tokens: int, then: Callable[[list[int]], None]) -> None:
    """`then` what was said of the second turn, at a token of its answer."""
    mm.read(TEXT, source="book")
    mm.generate(QUESTIONS[0], max_new_tokens=ANSWER)
    mm.generate(QUESTIONS[1], max_new_tokens=2 * tokens, streamer=At(tokens, then))


def talk_and_wait(folder: Path, tokens: int, pipe: Connection) -> None:
    mm = open_model(folder)

    def told(said: list[int]) -> None:
        mm.memory.flush()
        tell_and_wait(pipe, (said, mm.memory.core.blocks.stream_end(0)))

    talk(mm, tokens, told)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 60, 140, 280])
def test_a_conversation_that_is_killed_in_an_answer_goes_on_behind_what_is_durable(tokens: int, tmp_path: Path) -> None:
    """As a branch goes on that was made at the same token, by a process that lived."""
    said, durable = killed(talk_and_wait, tmp_path / "killed", tokens)
    spoken: list[int] = []
    with open_model(tmp_path / "whole") as mm:

        def branch(so_far: list[int]) -> None:
            spoken.extend([*stream_ids(mm)[:FIRST_TURN], *so_far])
            mm.memory.fork(tmp_path / "branch").close()

        talk(mm, tokens, branch)
    assert spoken[-len(said) :] == said
    question = 3 if tokens > 1 else 0  # a block of its own once the answer's first token stands behind it
    assert durable == FIRST_TURN + question + (tokens - 1) // SMALL.archive.block_tokens * SMALL.archive.block_tokens
    with everlong.Memory.open(tmp_path / "killed") as memory:
        assert memory.verify().damage == ()
        assert [block.span[1] for block in memory.blocks("book")][-1] == 3000
    with open_model(tmp_path / "killed") as mm, open_model(tmp_path / "branch") as twin:
        assert mm.stream_tokens == durable
        assert stream_ids(mm) == spoken[:durable]
        assert mm.generate(QUESTIONS[2], max_new_tokens=ANSWER) == twin.generate(QUESTIONS[2], max_new_tokens=ANSWER)
        assert stream_ids(mm)[: durable + 3] == [*spoken[:durable], *mm.encode(QUESTIONS[2]).tolist()]
        assert mm.memory.verify().damage == ()


def talk_to_the_end(folder: Path, pipe: Connection) -> None:
    mm = open_model(folder)
    mm.read(TEXT, source="book")
    tell_and_wait(pipe, [mm.generate(question, max_new_tokens=ANSWER).text for question in QUESTIONS])


def test_a_conversation_that_is_killed_between_two_turns_goes_on(tmp_path: Path) -> None:
    """The next answer is the same as if nothing had happened."""
    said = killed(talk_to_the_end, tmp_path / "killed")
    with open_model(tmp_path / "whole") as mm:
        mm.read(TEXT, source="book")
        assert said == [mm.generate(question, max_new_tokens=ANSWER).text for question in QUESTIONS]
        next_one = mm.generate("jkl", max_new_tokens=ANSWER)
    with open_model(tmp_path / "killed") as mm:
        assert mm.stream_tokens == 3000 + 3 * (3 + ANSWER)
        assert mm.generate("jkl", max_new_tokens=ANSWER) == next_one


def test_what_is_read_again_from_the_beginning_begins_as_it_did(tmp_path: Path) -> None:
    """With what the tokenizer puts before every text, once."""
    model, tokenizer = tiny_model("gemma3", "nested", vocab_size=258), byte_tokenizer(begins=True)
    mm = everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=SMALL)
    mm.frame.extend(mm.encode(TEXT[:1000]), "read")
    mm.frame.end_of_text()
    expected = mm.frame.cache.own.tensors()
    mm.memory.close()
    mm.frame.detach()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=SMALL) as mm:
        assert mm.trace()[0]["stream_position"] == 0
        assert mm.stream_tokens == 1001
        state = mm.frame.cache.own.tensors()
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
