"""Frames that compute together have what each computes alone, whoever joins, leaves, fails or is ended."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.frame import together
from everlong.frame.kv_frame import KvFrame
from everlong.frame.taps import HiddenTap, QueryTap
from everlong.frame.together import done_together, work_of_this_thread
from everlong.models import joint
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.models import ARCHITECTURES

TEXT = random_text(1500)
# Architectures whose layers mix the tokens of a forward, share keys, or do not attend by "sdpa".
ALONE = {"gemma4", "gpt_oss", "qwen3_next", "qwen3_5"}


def opened(kind: str, rope: str, **changes: Any) -> everlong.MemoryModel:
    config = dataclasses.replace(SMALL, answer=dataclasses.replace(SMALL.answer, **changes))
    mm = everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config)
    mm.read(TEXT)
    return mm


def forwards_of(model: Any) -> list[int]:
    """The tokens of each forward of the model from now on."""
    lengths: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, given: lengths.append(given["position_ids"].shape[-1]), with_kwargs=True
    )
    return lengths


@contextlib.contextmanager
def forks_of(mm: everlong.MemoryModel, count: int):
    assert isinstance(mm.frame, KvFrame)
    with contextlib.ExitStack() as undo:
        forks = mm.frame.forks(count)
        for fork in forks:
            undo.callback(fork.detach)
        yield forks


def fed(frame: KvFrame, lengths: list[int], seed: int) -> list[torch.Tensor]:
    """Return logits of chunks of so many random tokens, one behind the other, in a branch."""
    random = np.random.default_rng(seed)
    with frame.branch(traced=False):
        return [
            frame.extend(torch.from_numpy(random.integers(0, 256, length)), "prompt", logits=bool(length % 2))
            for length in lengths
        ]


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_logits_together_are_logits_alone(kind: str, rope: str) -> None:
    given = [[1, 1, 5, 1], [40, 1, 1], [3], [1, 90, 2, 1, 1]]
    with opened(kind, rope) as mm, forks_of(mm, len(given)) as forks:
        lengths = forwards_of(mm.model)
        expected, rounds = [], []
        for row, of_row in enumerate(given):
            before = len(lengths)
            expected.append(fed(forks[0], of_row, row))
            rounds.append(len(lengths) - before)
        tokens, alone = sum(lengths), len(lengths)
        lengths.clear()
        workers: list[Callable[[int], Any]] = [lambda row, fork=fork: fed(fork, given[row], row) for fork in forks]
        found = dict(done_together(workers, range(len(given))))
    for row, of_row in enumerate(expected):
        for mine, theirs in zip(found[row], of_row, strict=True):
            torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=2e-4)
    if kind in ALONE:
        assert (sum(lengths), len(lengths)) == (tokens, alone)
    else:  # one forward a round, and two that are compared
        assert len(lengths) == max(rounds) + 2


def test_a_fork_stands_where_its_frame_stood_and_changes_nothing_of_it() -> None:
    with opened("gemma3", "nested") as mm, forks_of(mm, 1) as (fork,):
        cache, end = mm.frame.cache, mm.frame.os.stream_end
        before = [x[:, :, cache.begin : cache.end].clone() for x in (cache.k, cache.v)]
        own = cache.own.tensors()
        torch.testing.assert_close(fed(fork, [7, 600, 1], 3), fed(mm.frame, [7, 600, 1], 3), atol=1e-5, rtol=1e-5)
        assert (mm.frame.os.stream_end, fork.os.stream_end) == (end, end)
        for mine, saved in zip((cache.k, cache.v), before, strict=True):
            assert torch.equal(mine[:, :, cache.begin : cache.end], saved)
        for name, one in cache.own.tensors().items():
            assert torch.equal(one, own[name])
        blocks = len(mm.memory.blocks())
        fork.extend(torch.arange(200) % 256, "read")  # it archives nothing
        fork.end_of_text()
        assert len(mm.memory.blocks()) == blocks


def test_taps_hear_their_own_frame_alone() -> None:
    def tapped(fork: KvFrame, row: int) -> list[torch.Tensor]:
        with HiddenTap(fork.served.model, [1, -1]) as hidden, QueryTap(fork.served, [0]) as queries:
            fed(fork, [4 + row, 1], row)
            return [hidden.hidden(1), hidden.hidden(-1), queries.queries(0)]

    with opened("qwen3", "default") as mm, forks_of(mm, 3) as forks:
        workers = [lambda row, fork=fork: tapped(fork, row) for fork in forks]
        found = dict(done_together(workers, range(3)))
        for row in range(3):
            torch.testing.assert_close(found[row], tapped(forks[row], row), atol=1e-4, rtol=1e-4)
            assert len(found[row][0]) == 5 + row


def test_only_one_thread_runs_and_more_work_than_rows_is_done_in_order() -> None:
    running, begun = 0, []

    def work(number: int) -> int:
        nonlocal running
        begun.append(number)
        running += 1
        assert running == 1
        running -= 1
        return number * number

    found = list(done_together([work] * 3, range(10)))
    assert begun == list(range(10))
    assert found == [(number, number * number) for number in range(10)]
    assert work_of_this_thread() is None


def test_a_single_worker_works_in_the_thread_that_asks() -> None:
    def work(number: int) -> tuple[int, int]:
        assert work_of_this_thread() is None
        return threading.get_ident(), number

    assert list(done_together([work], range(3))) == [(n, (threading.get_ident(), n)) for n in range(3)]


def test_after_an_error_what_is_under_way_is_done_and_nothing_more_begun() -> None:
    begun: list[int] = []
    with opened("llama", "default") as mm, forks_of(mm, 3) as forks:

        def work(fork: KvFrame, number: int) -> int:
            begun.append(number)
            fed(fork, [2, 2], number)
            if number == 1:
                raise ValueError("number one")
            fed(fork, [2, 2], number)
            return number

        done = []
        with pytest.raises(ValueError, match="number one"):
            done.extend(done_together([lambda n, f=fork: work(f, n) for fork in forks], range(9)))
        assert begun == [0, 1, 2]
        fed(forks[1], [3], 0)  # its branch was undone


def test_closing_ends_all_work_and_undoes_it() -> None:
    with opened("llama", "default") as mm, forks_of(mm, 3) as forks:
        ends = [fork.os.stream_end for fork in forks]
        ended: list[int] = []

        def work(fork: KvFrame, number: int) -> int:
            try:
                fed(fork, [1] * (2 if number == 0 else 500), number)
                return number
            finally:
                ended.append(number)

        done = done_together([lambda n, f=fork: work(f, n) for fork in forks], range(3))
        assert next(done)[0] == 0
        assert ended == [0]
        done.close()
        assert sorted(ended) == [0, 1, 2]
        assert [fork.os.stream_end for fork in forks] == ends
        expected = fed(mm.frame, [5, 1], 7)
        torch.testing.assert_close(fed(forks[2], [5, 1], 7), expected, atol=1e-5, rtol=1e-5)


def test_an_error_of_the_forward_reaches_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(model: Any, streams: Any) -> Any:
        raise RuntimeError("no such luck")

    with opened("llama", "default") as mm, forks_of(mm, 2) as forks:
        seen: list[str] = []

        def work(fork: KvFrame, number: int) -> None:
            try:
                fed(fork, [2], number)
            except RuntimeError as error:
                seen.append(str(error))

        with monkeypatch.context() as changed:
            changed.setattr(joint, "compute", failing)
            list(done_together([lambda n, f=fork: work(f, n) for fork in forks], range(2)))
        assert seen == ["no such luck"] * 2
        for fork in forks:
            fed(fork, [2], 0)  # whole again


def test_a_model_that_is_wrong_among_others_computes_alone(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    true_mask = joint.Forward.mask
    monkeypatch.setattr(joint.Forward, "mask", lambda self, tokens, *more: None)  # tokens see later ones
    with opened("llama", "default") as mm, forks_of(mm, 2) as forks:
        expected = [fed(mm.frame, [9, 1], row) for row in range(2)]
        found = dict(done_together([lambda n, f=fork: fed(f, [9, 1], n) for fork in forks], range(2)))
        for row in range(2):
            torch.testing.assert_close(found[row], expected[row], atol=1e-5, rtol=1e-5)
        assert "computes one frame after another" in caplog.text
        assert together._known[mm.model] is False
    assert true_mask is not joint.Forward.mask


@pytest.mark.slow
def test_no_row_changes_while_others_come_go_fail_and_are_ended() -> None:
    """10,000 steps of one token: rows of several lengths, some of which fail, in runs that are closed at random."""
    steps, random = 0, np.random.default_rng(5)
    with opened("gemma3", "nested") as mm, forks_of(mm, 6) as forks:
        alone: dict[int, list[torch.Tensor]] = {}

        def lengths_of(number: int) -> list[int]:
            drawn = np.random.default_rng(number)
            return [1 + 3 * int(drawn.random() < 0.05) for _ in range(int(drawn.integers(1, 60)))]

        def work(fork: KvFrame, number: int) -> tuple[int, list[torch.Tensor]]:
            nonlocal steps
            random_of = np.random.default_rng((number, 1))
            fails_at = int(random_of.integers(1, 60)) if random_of.random() < 0.1 else None
            made = []
            tokens = np.random.default_rng((number, 2))
            with fork.branch(traced=False):
                for at, length in enumerate(lengths_of(number)):
                    if at == fails_at:
                        return number, made
                    steps += 1
                    made.append(fork.extend(torch.from_numpy(tokens.integers(0, 256, length)), "prompt"))
            return number, made

        while steps < 10_000:
            given = random.integers(0, 40, int(random.integers(6, 60))).tolist()
            last = len(given) if random.random() < 0.6 else int(random.integers(1, len(given)))
            done = done_together([lambda n, f=fork: work(f, n) for fork in forks], given)
            with contextlib.closing(done):
                for count, (_, (number, made)) in enumerate(done, 1):
                    if number not in alone:
                        alone[number] = work(mm.frame, number)[1]  # this thread is no row
                    torch.testing.assert_close(made, alone[number], atol=5e-4, rtol=5e-4)
                    if count >= last:
                        break
