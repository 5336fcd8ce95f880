"""Hooks and adapters of one thread, while other threads use the model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from everlong.frame.taps import HiddenTap, QueryTap
from everlong.kv_cache.phase import PhaseTap
from everlong.models.attach import attach
from everlong.models.early_exit import early_exit_states
from everlong.models.hooks import register_hook
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, adapted, mapped_layers
from everlong.parts.retrieve.runtime import RetrieveRuntime
from support import plain_logits, tiny_model

IDS = torch.arange(7, 30)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What the work gives in another thread; its error is raised here."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


class Interrupted(dict[int, bool]):
    """torch's note of which hooks get arguments by name. Other threads come in before and after it changes."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work, self.came = work, 0

    def __setitem__(self, number: int, named: bool) -> None:
        self._come()
        super().__setitem__(number, named)

    def __delitem__(self, number: int) -> None:
        super().__delitem__(number)
        self._come()

    def _come(self) -> None:
        self.came += 1
        elsewhere(self.work)


def test_a_forward_comes_while_a_hook_is_put_on_and_taken_off() -> None:
    model = tiny_model()
    served = attach(model, 384)
    expected = plain_logits(model, IDS)
    notes = Interrupted(lambda: plain_logits(model, IDS))
    served.rotary._forward_hooks_with_kwargs = notes  # type: ignore[assignment]
    with PhaseTap(served) as phase:
        assert torch.equal(plain_logits(model, IDS), expected)
        assert phase.newest[0].shape[0] == len(IDS)
    model.model.layers[0]._forward_pre_hooks_with_kwargs = first = Interrupted(lambda: plain_logits(model, IDS))
    with HiddenTap(model, [0]) as hidden:
        plain_logits(model, IDS)
    assert hidden.hidden(0).shape[0] == len(IDS)
    assert min(notes.came, first.came) >= 1


def test_hooks_of_two_threads_have_two_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading of the next number and its change, another thread puts a hook on the same module."""
    module = torch.nn.Linear(2, 2)
    others: list[threading.Thread] = []
    heard: list[int] = []

    class Handle(RemovableHandle):
        pass

    init = RemovableHandle.__init__

    def late(self: RemovableHandle, hooks: Any, **named: Any) -> None:
        number = RemovableHandle.next_id
        if not others:
            others.append(threading.Thread(target=lambda: register_hook(module.register_forward_hook, hear(2))))
            others[0].start()
            others[0].join(0.2)  # it waits for its turn, or takes the same number
        init(self, hooks, **named)
        self.id, RemovableHandle.next_id = number, number + 1

    def hear(one: int) -> Callable[..., None]:
        return lambda *_: heard.append(one)

    monkeypatch.setattr(RemovableHandle, "__init__", late)
    register_hook(module.register_forward_hook, hear(1))
    others[0].join()
    module(torch.zeros(1, 2))
    assert sorted(heard) == [1, 2]


@pytest.fixture(name="maps")
def maps_of_a_model() -> tuple[Any, LowRankMaps]:
    model = tiny_model()
    maps = LowRankMaps(MapSettings(rank=2), mapped_layers(model), seed=3)
    with torch.no_grad():
        for up in maps.up:
            up.normal_()
    return model, maps


def test_an_adapter_is_at_work_for_its_own_thread(maps: tuple[Any, LowRankMaps]) -> None:
    model, adapter = maps
    adapter.requires_grad_(requires_grad=False)
    expected = plain_logits(model, IDS)
    assert not adapted()
    with AttachedMaps(adapter, model).active():
        assert adapted()
        assert not elsewhere(adapted)
        own = plain_logits(model, IDS)
        assert not torch.allclose(own, expected, atol=0.01)
        assert torch.equal(elsewhere(lambda: plain_logits(model, IDS)), expected)
    assert not adapted()
    assert torch.equal(plain_logits(model, IDS), expected)


def test_two_adapters_of_two_threads_do_not_add_up(maps: tuple[Any, LowRankMaps]) -> None:
    model, adapter = maps
    adapter.requires_grad_(requires_grad=False)
    attached = AttachedMaps(adapter, model)

    def answered() -> torch.Tensor:
        with attached.active():
            return plain_logits(model, IDS)

    expected = answered()
    with attached.active():
        assert torch.equal(elsewhere(answered), expected)
        assert torch.equal(plain_logits(model, IDS), expected)


def test_an_adapter_that_learns_is_at_work_wherever_layers_are_computed_anew(maps: tuple[Any, LowRankMaps]) -> None:
    model, adapter = maps
    with AttachedMaps(adapter, model).active():
        assert torch.equal(elsewhere(lambda: plain_logits(model, IDS)), plain_logits(model, IDS))


def test_what_is_recorded_for_retrieve_is_of_its_own_thread(maps: tuple[Any, LowRankMaps]) -> None:
    model, adapter = maps
    with RetrieveRuntime(torch.nn.Identity(), adapter, model).recording_states() as heard:  # type: ignore[arg-type]
        elsewhere(lambda: plain_logits(model, IDS[:3]))
        plain_logits(model, IDS)
        elsewhere(lambda: plain_logits(model, IDS[:3]))
    assert [one.shape[-2] for one in heard] == [len(IDS)]


def test_taps_and_shallow_forwards_of_two_threads_at_once() -> None:
    model = tiny_model()
    served = attach(model, 384)

    def states(ids: torch.Tensor, inside: Callable[[], Any]) -> list[torch.Tensor]:
        with HiddenTap(model, [0, 1, -1]) as hidden, QueryTap(served, [0]) as queries, PhaseTap(served) as phase:
            inside()
            plain_logits(model, ids)
            inside()
            taken = [hidden.hidden(0), hidden.hidden(1), hidden.hidden(-1), queries.queries(0), *phase.newest]
        return [*taken, *early_exit_states(model, ids, [1]).values()]

    expected = [states(ids, lambda: None) for ids in (IDS, IDS[:5])]
    inner: list[list[torch.Tensor]] = []
    found = states(IDS, lambda: inner.append(elsewhere(lambda: states(IDS[:5], lambda: None))))
    for made, right in ((found, expected[0]), (inner[0], expected[1]), (inner[1], expected[1])):
        for one, other in zip(made, right, strict=True):
            assert torch.equal(one, other)
