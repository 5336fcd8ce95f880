"""`everlong tune`: what is measured for a model, and what is kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import everlong
from everlong.frame.model_setup import default_config, untuned_config
from everlong.models.tuned_settings import TUNED, TunedSettings, tuned_settings
from everlong_lab.eval.baselines import spec_of
from everlong_lab.eval.baselines.memory import Everlong
from everlong_lab.eval.suite import SuiteConfig
from everlong_lab.eval.tune import CANDIDATES, DEFAULTS, best_of, measure_settings, print_tuned, settings_of
from support import byte_tokenizer, tiny_model

ALONE = CANDIDATES[-1]


def report_of(**right: Sequence[int]) -> dict[str, Any]:
    """Return a report in which candidates, by name, have these scores."""
    named = {"defaults": DEFAULTS, "few": CANDIDATES[0], "some": CANDIDATES[1], "alone": ALONE}
    scores = {spec_of(named[name]): given for name, given in right.items()}
    (count,) = {len(given) for given in scores.values()}
    return {
        "settings": {"suites": ["vt"], "lengths": [6_000], "count": 1, "seed": 0, "dtype": "float32"},
        "questions": [
            {"replies": {spec: {"score": given[at]} for spec, given in scores.items()}} for at in range(count)
        ],
        "baselines": {
            spec: {"score": {"mean": sum(given) / count}, "cost": {"seconds": 0.5}} for spec, given in scores.items()
        },
    }


def test_the_best_candidate_is_kept_where_chance_hardly_makes_the_difference() -> None:
    none = [0.9] * 8 + [1] * 8  # what is nearly right is not right
    few, alone = [0] * 5 + [1] * 11, [1] * 16
    tuned = best_of(report_of(defaults=none, few=few, some=none, alone=alone), "tiny", CANDIDATES)
    assert tuned.settings == ("search.groups=8", "answer.quotes=6", "answer.quotes_alone=True")
    figures = tuned.measured["figures"]
    assert [figures[spec_of(one)]["right"] for one in (DEFAULTS, *CANDIDATES)] == [8, 11, 8, 16]
    assert tuned.measured["chance"][spec_of(ALONE)] == pytest.approx(2 / 2**8)
    assert best_of(report_of(defaults=none, few=few, some=none, alone=none), "tiny", CANDIDATES).settings == ()
    assert best_of(report_of(defaults=alone, few=none, some=none, alone=none), "tiny", CANDIDATES).settings == ()


def test_every_candidate_is_of_settings_that_are_tuned() -> None:
    for which in CANDIDATES:
        assert {setting.partition("=")[0] for setting in settings_of(which)} <= TUNED
        assert everlong.MemoryConfig().with_settings(settings_of(which)) != everlong.MemoryConfig()


def test_a_model_is_measured_and_has_what_was_best(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    config = SuiteConfig(suites=("dialogue_fact",), lengths=(6_000,), count=1)
    candidates = (Everlong(groups=2),)
    tuned = measure_settings(model, tokenizer, config, candidates, name="tiny", out=tmp_path)
    assert tuned_settings(model) == tuned
    assert default_config(model) == untuned_config(model)  # it answers nothing, whatever comes back
    assert set(tuned.measured["figures"]) == {"everlong", "everlong:groups=2", "gold"}
    assert measure_settings(model, tokenizer, config, candidates, name="tiny", out=tmp_path) == tuned  # goes on there
    printed = io.StringIO()
    print_tuned(tuned, Console(file=printed, width=120))
    assert "The defaults stay" in printed.getvalue()
    assert "search.groups=2" in printed.getvalue()
    assert isinstance(tuned, TunedSettings)
