"""Measure whether a model says `<RETRIEVE>` exactly where a question needs recall, beside the trigger and rules.

The frames are of stories and books that nothing was trained on, with three questions each. One answer has left the
frame, one stands in it, and one question has none. The trigger hears whether a topic ends where the question begins.
The rule of words counts how many of the question's words are missing in the frame. Their thresholds, and that of
chance, are those that are right most often on other frames; `<RETRIEVE>` has its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everlong.frame.taps import side_by_side
from everlong.models.early_exit import early_exit_states
from everlong.models.pack import Pack, pack_of_model
from everlong.models.provenance import provenance
from everlong.parts.retrieve.model import RETRIEVE
from everlong.parts.retrieve.runtime import RetrieveRuntime
from everlong.text.encoding import decode_text
from everlong.text.prompt import build_prompt
from everlong.text.words import words_in
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.frames import frame_texts
from everlong_lab.corpora.pairs import Split, load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import auc, rate
from everlong_lab.eval.tables import Report, Table, rates_table
from everlong_lab.parts.retrieve.train import Training, odds_of

if TYPE_CHECKING:
    from everlong.parts.trigger.model import TriggerNet

LEARNED, HEARD, WORDS, ALWAYS, RANDOM = "<RETRIEVE>", "trigger", "words that the frame has not", "always", "at random"
_TRIGGER = "trigger"  # its name in a pack
_LONG = 4  # least letters of a word that counts


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure whether recall is asked for where it is needed: by <RETRIEVE>, the trigger, words, always, at random."""

    text: tuple[pathlib.Path, ...] = ()  # books to make frames of; by default the shipped ones
    fitted_on: tuple[pathlib.Path, ...] = ()  # books to fit the thresholds of the trigger and of words on
    frames: int = 64  # number of frames of stories and books, three questions each
    tokens: tuple[int, ...] = Training.tokens  # numbers of tokens in a frame, by commas; one is drawn each time
    seed: int = 0  # seed of facts and places; the same seed gives the same questions


@dataclasses.dataclass(frozen=True)
class RetrievingReport(Report):
    made_with: dict[str, Any]
    parts: dict[str, str]
    frames: int
    said: dict[str, dict[str, float]]  # by method

    def tables(self) -> Iterator[Table | str]:
        title = f"{self.frames} frames, three questions each: what asks for something back"
        columns = ("recalled", "false alarms", "false alarms, resident", "false alarms, none", "right", "AUC")
        yield rates_table(title, "by", columns, self.said)


def measure(
    loaded: tuple[Any, Any], measuring: Measuring, *, pack: str | pathlib.Path | None, log: Log = silent
) -> RetrievingReport:
    """Measure on frames that nothing was trained on."""
    pairs = load_pairs(["fairytale"])

    def some(books: Sequence[pathlib.Path], split: Split, seed: int) -> list[Record]:
        return frame_texts(
            loaded[1],
            books_of(books),
            pairs,
            count=measuring.frames,
            split=split,
            tokens=measuring.tokens,
            seed=seed,
        )

    drawn = some(measuring.text, "test", measuring.seed)
    others = some(measuring.fitted_on or measuring.text, "fit", measuring.seed + 1)
    return run_retrieving(loaded, pack_of_model(loaded[0], pack), drawn, others, seed=measuring.seed, log=log)


@dataclasses.dataclass(frozen=True)
class _ScoredTurn:
    need: str
    score: float  # the higher, the more likely it says that recall is needed


def run_retrieving(
    model: tuple[Any, Any],
    pack: Pack,
    frames: Sequence[Record],
    others: Sequence[Record],
    *,
    seed: int = 0,
    log: Log = silent,
) -> RetrievingReport:
    """Measure on `frames`; fit the thresholds of what is not learned on `others`."""
    network, tokenizer = model
    arms: dict[str, Callable[[Record], Sequence[float]]] = {}
    if RETRIEVE in pack.parts:
        retrieving = RetrieveRuntime.of_part(pack.parts[RETRIEVE], network)
        own = float(retrieving.row.settings.threshold)
        odds = torch.no_grad()(odds_of)
        arms[LEARNED] = lambda frame: torch.sigmoid(odds(network, tokenizer, retrieving, frame)).tolist()
    if _TRIGGER in pack.parts:
        from everlong.parts.trigger.model import TriggerNet

        trigger = TriggerNet.of_part(pack.parts[_TRIGGER])
        arms[HEARD] = lambda frame: needed_scores(network, tokenizer, trigger, frame)
    arms[WORDS] = lambda frame: new_words(tokenizer, frame)
    said: dict[str, dict[str, float]] = {}
    for name, score in arms.items():
        threshold = own if name == LEARNED else threshold_of(_scored(others, score))
        said[name] = figures_of(_scored(frames, score), threshold)
        log(f"{name}: {len(frames)} frames")
    needs = [asked.kind for frame in frames for asked in frame.questions]
    random = np.random.default_rng(seed)
    said[ALWAYS] = figures_of([_ScoredTurn(need, 1.0) for need in needs], 0.5)
    said[RANDOM] = figures_of([_ScoredTurn(need, float(random.random())) for need in needs], 0.5)
    ids = {name: pack.parts[name].id for name in (RETRIEVE, _TRIGGER) if name in pack.parts}
    return RetrievingReport(provenance(network), ids, len(frames), said)


def _scored(frames: Sequence[Record], score: Callable[[Record], Sequence[float]]) -> list[_ScoredTurn]:
    return [
        _ScoredTurn(asked.kind, own)
        for frame in frames
        for asked, own in zip(frame.questions, score(frame), strict=True)
    ]


@torch.no_grad()
def needed_scores(model: Any, tokenizer: Any, trigger: TriggerNet, frame: Record) -> list[float]:
    """Return how probable a topic's end is where each question begins.

    It is 0 where a question is shorter than the trigger's lookahead.
    """
    settings, found = trigger.settings, []
    for question in frame.questions:
        ids = torch.cat([frame.ids, build_prompt(tokenizer, question.words).ids])
        last = len(frame.ids) + settings.lookahead - 1
        states = side_by_side(early_exit_states(model, ids, settings.layers), settings.layers)
        found.append(float(trigger.probabilities(states)[last]) if last < len(ids) else 0.0)
    return found


def new_words(tokenizer: Any, frame: Record) -> list[float]:
    """Return which share of each question's longer words is missing in the frame; 0 without such words."""
    there = set(_words(decode_text(tokenizer, frame.ids.tolist())))
    found = []
    for asked in frame.questions:
        own = _words(asked.words)
        found.append(sum(word not in there for word in own) / len(own) if own else 0.0)
    return found


def _words(text: str) -> list[str]:
    return [word for word in words_in(text) if len(word) >= _LONG]


def threshold_of(scored: Sequence[_ScoredTurn]) -> float:
    """Return the threshold that separates the two classes best, both weighing the same."""
    values = sorted({one.score for one in scored})
    between = [(low + high) / 2 for low, high in itertools.pairwise(values)]
    return max([values[0] - 1, *between], key=lambda at: figures_of(scored, at)["right"])


def figures_of(scored: Sequence[_ScoredTurn], threshold: float) -> dict[str, float]:
    """Return recall of what was needed, false alarms, right decisions (both classes weigh the same) and AUC."""
    evicted, resident, none = (
        [one.score for one in scored if one.need == need] for need in ("evicted", "resident", "none")
    )
    found: dict[str, float] = {}
    for name, scores in (("recalled", evicted), ("false alarms", [*resident, *none])):
        share = rate(score >= threshold for score in scores)
        found |= {name: share.rate, f"{name}, low": share.low, f"{name}, high": share.high}
    for need, scores in (("resident", resident), ("none", none)):
        found[f"false alarms, {need}"] = rate(score >= threshold for score in scores).rate
    right = (found["recalled"] + 1 - found["false alarms"]) / 2
    return {**found, "right": right, "AUC": auc(evicted, [*resident, *none])}
