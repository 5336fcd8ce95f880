"""Which dtype is the faster one, on a machine that does other things too. No clock: every time is made up."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import everlong.models.loading as models
from everlong.models.dtype_race import ENOUGH, MOST_ROUNDS, Outcome, outcome_text, parse_outcome, race
from everlong.models.profiles import profiles_in
from support import ARCHITECTURES, byte_tokenizer, tiny_model

FULL, HALF = "float32", "bfloat16"
BOTH = (FULL, HALF)


def timed(**seconds: list[float]) -> Callable[[str], float]:
    """The next time of each dtype; its last one from then on."""
    turns: dict[str, Iterator[float]] = {
        dtype: itertools.chain(of, itertools.repeat(of[-1])) for dtype, of in seconds.items()
    }
    return lambda dtype: next(turns[dtype])


def test_a_burst_of_other_work_decides_nothing() -> None:
    """It struck bf16 in the first round: one round alone would have kept fp32 at half the speed."""
    found = race(BOTH, timed(float32=[0.2], bfloat16=[0.5, 0.1]))
    assert (found.dtype, found.seconds) == (HALF, {FULL: 0.2, HALF: 0.1})


def test_dtypes_take_turns() -> None:
    order: list[str] = []

    def note(dtype: str) -> float:
        order.append(dtype)
        return {FULL: 0.1, HALF: 0.2}[dtype]

    assert race(BOTH, note).dtype == FULL
    assert order == [*BOTH, *BOTH]


def test_what_never_settles_ends() -> None:
    falling = [2.0**-n / 16 for n in range(40)]
    times = {FULL: iter(falling), HALF: iter(4 * one for one in falling)}
    found = race(BOTH, lambda dtype: next(times[dtype]))
    assert found.dtype == FULL
    assert next(times[FULL]) == falling[MOST_ROUNDS]


def test_a_model_that_takes_long_is_not_timed_over_and_over() -> None:
    order: list[str] = []

    def note(dtype: str) -> float:
        order.append(dtype)
        return ENOUGH / 2 + len(order) % 3

    race(BOTH, note)
    assert order == [*BOTH]


def test_an_outcome_is_kept_whole_and_for_its_place_alone() -> None:
    here = {"threads": 2}
    found = Outcome({FULL: 2.0, HALF: 1.0})
    text = outcome_text(found, here)
    assert parse_outcome(text, BOTH, here) == found
    assert parse_outcome(text, BOTH, {"threads": 4}) is None
    assert parse_outcome(text, (FULL, "float16"), here) is None
    for damaged in (None, "", "[]", text[:-5], '{"here": {"threads": 2}, "seconds": 3}', text.replace("2.0", "-1")):
        assert parse_outcome(damaged, BOTH, here) is None


def test_a_decision_of_an_earlier_everlong_is_found_anew() -> None:
    earlier = '{"dtype": "float32", "processor": "x", "threads": 2, "torch": "2"}\n'
    assert parse_outcome(earlier, BOTH, {"processor": "x", "threads": 2, "torch": "2"}) is None


def test_a_loaded_model_is_raced_once(
    saved_model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However close it was: nothing is timed while loading that was timed before."""
    raced: list[torch.dtype] = []
    monkeypatch.setattr(models, "_computes_16_bits", lambda: True)

    def layer_seconds(layer: torch.nn.Module, args: tuple[torch.Tensor], kwargs: dict[str, Any]) -> float:
        dtype = next(layer.parameters()).dtype
        assert layer(*args, **kwargs)[0].dtype == args[0].dtype == dtype  # it computes what the model would
        raced.append(dtype)
        return 0.1

    monkeypatch.setattr(models, "_layer_seconds", layer_seconds)
    with profiles_in(tmp_path / "profiles"):
        assert models.load(str(saved_model))[0].dtype == torch.float32
        assert raced == [torch.float32, torch.bfloat16] * 2
        assert models.load(str(saved_model))[0].dtype == torch.float32
    assert len(raced) == 4


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_the_first_layer_of_every_architecture_computes_alone(kind: str, rope: str) -> None:
    """What is timed is the model's own layer with its own input: the model goes on from what it returns."""
    model = tiny_model(kind, rope)
    ids = torch.arange(128).remainder(model.config.get_text_config().vocab_size)[None]
    with torch.inference_mode():
        states = model(ids, use_cache=False, output_hidden_states=True).hidden_states
        layer, args, kwargs = models._first_layer(model)
        found = layer(*args, **kwargs)
    found = found if isinstance(found, torch.Tensor) else found[0]
    assert torch.equal(args[0] if args else kwargs["hidden_states"], states[0])
    assert torch.allclose(found, states[1], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT", "NEON", "NO AVX"])
def test_a_cpu_without_fast_16_bits_computes_in_fp32_and_times_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: str
) -> None:
    tiny_model().to(dtype).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(models, "_layer_seconds", lambda *_: pytest.fail("it was timed"))
    assert models.load(str(tmp_path))[0].dtype == torch.float32
    assert models.load(str(tmp_path), "bfloat16")[0].dtype == torch.bfloat16
