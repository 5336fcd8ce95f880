"""Settings that were measured for one model: where they come from, and when they hold."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import everlong
from everlong.frame.model_setup import configured, default_config, untuned_config
from everlong.models import tuned_settings as tuned
from everlong.models.profiles import store_measurement
from everlong.models.tuned_settings import TUNED, TunedSettings, shape_of, store_tuned_settings, tuned_settings
from support import byte_tokenizer, tiny_model

ALONE = TunedSettings("tiny", ("search.groups=8", "answer.quotes=6", "answer.quotes_alone=True"), {"right": 3})


def ship(monkeypatch: pytest.MonkeyPatch, **shapes: TunedSettings) -> None:
    monkeypatch.setattr(tuned, "_shipped", lambda: shapes)


def test_what_is_shipped_are_settings_of_what_comes_back() -> None:
    for one in tuned._shipped().values():
        assert {setting.partition("=")[0] for setting in one.settings} <= TUNED
        config = everlong.MemoryConfig().with_settings(one.settings)
        assert not one.settings or config != everlong.MemoryConfig()
        assert one.measured


def test_what_was_measured_here_comes_before_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    assert tuned_settings(model) is None
    assert default_config(model) == untuned_config(model)
    shipped = TunedSettings("other", ("search.groups=5",), {})
    ship(monkeypatch, **{shape_of(model): shipped})
    assert tuned_settings(model) == shipped
    assert default_config(model).search.groups == 5
    store_tuned_settings(model, ALONE)
    assert tuned_settings(model) == ALONE
    config = default_config(model)
    assert (config.search.groups, config.answer.quotes, config.answer.quotes_alone) == (8, 6, True)
    assert config.frame == untuned_config(model).frame
    store_tuned_settings(model, dataclasses.replace(ALONE, settings=()))  # measured: the defaults are best here
    assert default_config(model) == untuned_config(model)


def test_another_model_of_the_same_shape_has_what_is_shipped_and_not_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = tiny_model(), tiny_model(seed=1)
    assert shape_of(one) == shape_of(other)
    store_tuned_settings(one, ALONE)
    assert tuned_settings(other) is None
    ship(monkeypatch, **{shape_of(one): ALONE})
    assert tuned_settings(other) == ALONE


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "", "{", "[]", '{"settings": "search.groups=2", "model": "", "measured": {}}', "{}"]
)
def test_what_is_damaged_is_none(text: str) -> None:
    model = tiny_model()
    store_tuned_settings(model, ALONE)
    store_measurement(tuned._name(model), text)
    assert tuned_settings(model) is None


def test_settings_that_another_everlong_had_are_left_out() -> None:
    model = tiny_model()
    for settings in (("search.groups=8", "answer.none_such=1"), ("frame.tokens=100000",), ("answer.quotes=many",)):
        store_tuned_settings(model, dataclasses.replace(ALONE, settings=settings))
        assert default_config(model) == untuned_config(model)


def test_a_compiled_model_has_those_of_the_model() -> None:
    model = tiny_model()
    store_tuned_settings(model, ALONE)
    assert tuned_settings(torch.compile(model)) == ALONE


def test_a_model_without_weights_has_none() -> None:
    with torch.device("meta"):
        model = type(tiny_model())(tiny_model().config)
    assert default_config(model) == untuned_config(model)


def test_they_hold_together_or_not_at_all() -> None:
    model = tiny_model()
    store_tuned_settings(model, ALONE)
    assert configured(model, ["search.neighbours=2"]).answer.quotes_alone
    for setting in ("answer.quotes=0", "answer.recall_mode=text", "search.groups=2", "answer.quotes_alone=false"):
        assert configured(model, [setting]) == untuned_config(model).with_settings([setting])


def test_a_memory_opened_without_settings_has_them() -> None:
    model = tiny_model()
    store_tuned_settings(model, ALONE)
    with everlong.MemoryModel(model, byte_tokenizer()) as mm:
        assert mm.config.answer.quotes_alone
    with everlong.MemoryModel(model, byte_tokenizer(), None, everlong.MemoryConfig.fitting(2048)) as mm:
        assert not mm.config.answer.quotes_alone
