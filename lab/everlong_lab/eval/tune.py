"""Which settings serve a model best: how many groups a question brings back, and how.

A small suite is asked of the memory once for each candidate. What has more right answers than the defaults is kept for
the model (`everlong.models.tuned_settings`), if chance hardly makes such a difference.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from everlong.config.settings import where_is
from everlong.frame.model_setup import untuned_config
from everlong.models.tuned_settings import TunedSettings, store_tuned_settings
from everlong_lab.eval.baselines import Baseline, baseline_of, spec_of
from everlong_lab.eval.baselines.gold import Gold
from everlong_lab.eval.baselines.memory import Everlong
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import mcnemar
from everlong_lab.eval.suite import SuiteConfig, run_suite

DEFAULTS = Everlong()
# Four groups are the defaults'. More cost a small model answers as keys and values; as a few sentences they cost none.
CANDIDATES = (
    Everlong(groups=4, quotes=4),
    Everlong(groups=4, quotes=4, quotes_alone=True),
    Everlong(groups=8, quotes=6, quotes_alone=True),
)
SUITE = SuiteConfig(
    suites=(
        *("dialogue_fact", "dialogue_session", "dialogue_update", "niah_single_2", "niah_single_3", "niah_multikey_1"),
        *("niah_multiquery", "niah_multivalue", "babi_1", "babi_2"),
    ),
    lengths=(16_384,),
    count=6,
)
CHANCE = 0.05  # the largest p of a difference that counts


def measure_settings(
    network: Any,
    tokenizer: Any,
    config: SuiteConfig = SUITE,
    candidates: Sequence[Everlong] = CANDIDATES,
    *,
    name: str,
    out: pathlib.Path,
    log: Log = silent,
) -> TunedSettings:
    """Measure the candidates for a model of that name, keep the settings of the best one, and return them.

    `out` is a folder for the memory and the answers; a run goes on there.
    """
    rivals: list[Baseline] = [DEFAULTS, *candidates, Gold()]
    report = run_suite((network, tokenizer), config, rivals, out=out, memory_config=untuned_config(network), log=log)
    tuned = best_of(report, name, candidates)
    store_tuned_settings(network, tuned)
    return tuned


def best_of(report: Mapping[str, Any], model: str, candidates: Sequence[Everlong]) -> TunedSettings:
    """Return the settings of the candidate with the most right answers; none where the defaults have as many.

    A right answer has the whole score of its question.
    """

    def right(which: Baseline) -> list[bool]:
        return [question["replies"][spec_of(which)]["score"] == 1 for question in report["questions"]]

    def chance(which: Baseline) -> float:
        return mcnemar(right(which), right(DEFAULTS))

    best = max(candidates, key=lambda which: sum(right(which)))
    better = sum(right(best)) > sum(right(DEFAULTS)) and chance(best) <= CHANCE
    measured = {
        "suite": {name: report["settings"][name] for name in ("suites", "lengths", "count", "seed", "dtype")},
        "questions": len(report["questions"]),
        "figures": {
            spec: {
                "right": sum(one["replies"][spec]["score"] == 1 for one in report["questions"]),
                "score": row["score"]["mean"],
                "seconds": row["cost"]["seconds"],
            }
            for spec, row in report["baselines"].items()
        },
        "chance": {spec_of(which): chance(which) for which in candidates},
    }
    return TunedSettings(model, settings_of(best) if better else (), measured)


def settings_of(which: Everlong) -> tuple[str, ...]:
    """Return what a baseline changes as `group.name=value`."""
    return tuple(f"{where_is(name)}={value}" for name, value in which.changes().items())


def print_tuned(tuned: TunedSettings, console: Console) -> None:
    """Print every candidate with its figures, and what is kept."""
    table = Table(title=f"{tuned.model}: {tuned.measured['questions']} questions")
    table.add_column("settings")
    for heading in ("right", "score", "s a question", "p"):
        table.add_column(heading, justify="right")
    chance = tuned.measured["chance"]
    for spec, figures in tuned.measured["figures"].items():
        table.add_row(
            _described(spec),
            str(figures["right"]),
            f"{figures['score']:.1%}",
            f"{figures['seconds']:.1f}",
            f"{chance[spec]:.3f}" if spec in chance else "",
        )
    console.print(table)
    kept = " ".join(tuned.settings)
    console.print(f"Kept for this model: {kept}" if kept else "The defaults stay: nothing is better beyond chance.")


def _described(spec: str) -> str:
    which = baseline_of(spec)
    if not isinstance(which, Everlong):
        return f"({which.name} text alone)"
    return " ".join(settings_of(which)) or "defaults"
