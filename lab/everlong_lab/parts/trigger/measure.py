"""Measure whether the trigger sees where topics end.

It is compared with TextTiling on hidden states, surprise, equal lengths and every paragraph. There are two sets that
nothing was trained on. TIAGE's dev dialogues say at which turns the topic shifts. The other set is pieces of books by
authors that the trigger has not read, joined where a paragraph ends. Places are the ends of turns and paragraphs. Every
method but "every paragraph" cuts as many places as there are right ones. Methods that score places cut the highest
scores. Then books are read as they are, to see how long blocks become at the lengths that were asked for.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import DynamicCache

from everlong.data import shipped_books
from everlong.frame.taps import HiddenTap, side_by_side
from everlong.models.pack import pack_with
from everlong.models.provenance import provenance
from everlong.models.releases import cache_argument
from everlong.parts.trigger.model import TRIGGER, TriggerNet, calibration_of
from everlong.parts.trigger.runtime import BoundaryPredictions, block_lengths, predict_boundaries, threshold_for
from everlong.text.boundaries import TextBoundaries
from everlong_lab.corpora.boundaries import TOPICS, CutText, books_of, dialogues, joined, plain
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.tables import Report, Table
from everlong_lab.parts.trigger.segmentation import f1, pk, window_diff
from everlong_lab.parts.trigger.train import average_precision
from everlong_lab.training.read_states import tokens_of

if TYPE_CHECKING:
    from everlong.config import MemoryConfig

Scores = npt.NDArray[np.float64]

_CHUNK_TOKENS = 512
_PLAIN_TEXTS = 5
_TILING_TOKENS = 32  # on either side of a place
_SURPRISE_WINDOW = 128  # tokens before a token, with whose losses its own is compared
_SURPRISE_TOKENS = 4  # tokens after a place, of which the most surprising one counts
LEARNED, TILING, SURPRISE, EQUAL, EVERY = "trigger", "TextTiling", "surprise", "equal lengths", "every paragraph"


@dataclasses.dataclass(frozen=True)
class ReadForEval:
    """A text's places, and what its reading gave."""

    text: CutText
    ids: torch.Tensor  # int64 [n]
    places: tuple[int, ...]  # tokens before each of its cuts
    right: npt.NDArray[np.bool_]  # [places] whether a topic ends there
    states: torch.Tensor  # [n, width] fp32 of the trigger's layers
    losses: Scores  # [n] of each token, in nats; 0 for the first


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure whether the learned trigger sees where topics end, and how long blocks become."""

    # Books beside the shipped ones, author--title.txt, whose pieces are joined.
    text: tuple[pathlib.Path, ...] = ()
    splices: int = 8  # number of joined texts, of six pieces of books each
    # Mean lengths of blocks to ask for on books as they are, by commas; or none.
    means: tuple[int, ...] = (128, 192, 256, 320)


@dataclasses.dataclass(frozen=True)
class TopicsReport(Report):
    made_with: dict[str, Any]
    trigger: str  # its id
    sets: dict[str, dict[str, float]]  # by set: texts, tokens, places, right
    figures: dict[str, dict[str, dict[str, float]]]  # by set and method: F1, Pk, WindowDiff, AP
    lengths: dict[str, dict[str, float]]  # by asked mean: threshold, blocks, mean

    def tables(self) -> Iterator[Table | str]:
        """Yield a table with a row for each method, then one with asked and found lengths of blocks."""
        columns = ("F1", "Pk", "WindowDiff", "AP")
        for name, figures in self.figures.items():
            size = self.sets[name]
            yield Table(
                f"{name}: {size['texts']:,.0f} texts, {size['right']:,.0f} of {size['places']:,.0f} places end a topic",
                ("cut by", *columns),
                [
                    (method, *(f"{found[column]:.3f}" if column in found else "" for column in columns))
                    for method, found in figures.items()
                ],
            )
        if self.lengths:
            yield Table(
                "blocks of books as they are",
                ("asked mean", "found mean", "blocks"),
                [(mean, f"{found['mean']:.1f}", f"{found['blocks']:,.0f}") for mean, found in self.lengths.items()],
            )


def measure(
    loaded: tuple[Any, Any],
    measuring: Measuring,
    *,
    pack: str | pathlib.Path | None,
    config: MemoryConfig,
    log: Log = silent,
) -> TopicsReport:
    """Read both sets and books as they are, score every place, and cut. Shipped books are added to the named ones.

    Raises EverlongError where the pack has no trigger.
    """
    network, tokenizer = loaded
    part = pack_with(TRIGGER, "trigger", network, pack).parts[TRIGGER]
    books = list({book.name: book for book in (*books_of(measuring.text), *shipped_books())}.values())
    trigger = TriggerNet.of_part(part)
    sets = {"dialogues": dialogues("dev"), "splices": joined(books, measuring.splices, seed=5, split="test")}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    sizes: dict[str, dict[str, float]] = {}
    for name, texts in sets.items():
        read = []
        for number, text in enumerate(texts, 1):
            read.append(read_for_eval(network, tokenizer, text, trigger.settings.layers))
            if number % 20 == 0 or number == len(texts):
                log(f"{name}: {number} of {len(texts)} texts")
        figures[name] = methods_on(trigger, read)
        places, right = sum(len(r.places) for r in read), sum(int(r.right.sum()) for r in read)
        sizes[name] = {"texts": len(read), "tokens": sum(len(r.ids) for r in read), "places": places, "right": right}
    lengths = {}
    if measuring.means:
        predictions = []
        for text in plain(books, _PLAIN_TEXTS, seed=5, split="test"):
            one = read_for_eval(network, tokenizer, text, trigger.settings.layers)
            ends = TextBoundaries(tokenizer).find(one.ids)
            soft = [(at, kind) for at, kind in ends if kind in ("sentence", "paragraph")]
            predictions.append(BoundaryPredictions(trigger.probabilities(one.states).numpy(), soft))
        lengths = lengths_at(trigger, predict_boundaries(calibration_of(part)), predictions, measuring.means, config)
    return TopicsReport(provenance(network), part.id, sizes, figures, lengths)


@torch.no_grad()
def read_for_eval(model: Any, tokenizer: Any, text: CutText, layers: Sequence[int]) -> ReadForEval:
    """Read a text once, plainly, in chunks."""
    ids, places = tokens_of(tokenizer, text)
    kinds = [cut.kind for cut in text.cuts]
    cache = DynamicCache(config=model.config)
    states, losses = [], [torch.zeros(1)]
    newest: torch.Tensor | None = None  # logits after the chunk before
    for chunk in torch.split(ids, _CHUNK_TOKENS):
        with HiddenTap(model, layers) as tap:
            out = model(input_ids=chunk[None].to(model.device), **{cache_argument(model): cache}, use_cache=True)
        states.append(side_by_side({layer: tap.hidden(layer) for layer in layers}, layers).float().cpu())
        logits = out.logits[0].float()
        before = logits[:-1] if newest is None else torch.cat([newest, logits[:-1]])
        targets = (chunk[1:] if newest is None else chunk).to(before.device)
        losses.append(torch.nn.functional.cross_entropy(before, targets, reduction="none").cpu())
        newest = logits[-1:]
    right = np.isin(kinds, TOPICS)
    return ReadForEval(text, ids, places, right, torch.cat(states), torch.cat(losses).double().numpy())


def methods_on(trigger: TriggerNet, read: Sequence[ReadForEval]) -> dict[str, dict[str, float]]:
    """Return the figures of every method on a set of texts."""
    scored = {
        LEARNED: [trigger_scores(trigger, text) for text in read],
        TILING: [tiling_scores(text) for text in read],
        SURPRISE: [surprise_scores(text) for text in read],
    }
    right = [text.right for text in read]
    wanted = int(np.concatenate(right).sum())
    cuts = {method: highest(scores, wanted) for method, scores in scored.items()}
    cuts[EQUAL] = equal_lengths(right)
    cuts[EVERY] = [np.ones(len(text), dtype=bool) for text in right]
    found = {}
    for method, of_texts in cuts.items():
        found[method] = {
            "F1": f1(right, of_texts),
            "Pk": float(np.mean([pk(r, f) for r, f in zip(right, of_texts, strict=True)])),
            "WindowDiff": float(np.mean([window_diff(r, f) for r, f in zip(right, of_texts, strict=True)])),
        }
        if method in scored:
            found[method]["AP"] = average_precision(np.concatenate(scored[method]), np.concatenate(right))
    return found


@torch.no_grad()
def trigger_scores(trigger: TriggerNet, read: ReadForEval) -> Scores:
    """Return the logits of the places. At a text's end, where too few tokens follow, these are repeated."""
    lookahead = trigger.settings.lookahead
    scores = []
    for place in read.places:
        first = max(0, place - trigger.settings.before_tokens)
        behind = read.states[place : place + lookahead]
        if place == 0 or len(behind) == 0:
            scores.append(-np.inf)
            continue
        behind = behind.repeat(-(-lookahead // len(behind)), 1)[:lookahead]
        inputs = trigger.inputs(trigger.normal(torch.cat([read.states[first:place], behind])))
        scores.append(float(trigger.logits(inputs[-1:])))
    return np.asarray(scores, dtype=np.float64)


def tiling_scores(read: ReadForEval) -> Scores:
    """Return TextTiling scores (Hearst, 1997) on hidden states: the depth of a place between peaks of likeness on both
    sides.
    """
    centred = read.states - read.states.median(dim=0).values
    likeness = []
    for place in read.places:
        before, behind = centred[max(0, place - _TILING_TOKENS) : place], centred[place : place + _TILING_TOKENS]
        alike = len(before) > 0 and len(behind) > 0
        likeness.append(float(torch.cosine_similarity(before.mean(0), behind.mean(0), dim=0)) if alike else 1.0)
    return depths(np.asarray(likeness, dtype=np.float64))


def depths(likeness: Scores) -> Scores:
    """Return how far each value lies below the peaks that are climbed to from it on either side, summed."""
    found = np.zeros(len(likeness))
    for at, value in enumerate(likeness):
        for side in (likeness[at::-1], likeness[at:]):
            falls = np.nonzero(np.diff(side) < 0)[0]
            found[at] += (side[falls[0]] if len(falls) else side[-1]) - value
    return found


def surprise_scores(read: ReadForEval) -> Scores:
    """Return surprise scores (EM-LLM, Fountas et al., 2024).

    A score says by how many standard deviations a token's loss is above the mean of the tokens before it.
    """
    scores = []
    for place in read.places:
        best = -np.inf
        for token in range(place, min(place + _SURPRISE_TOKENS, len(read.losses))):
            before = read.losses[max(1, token - _SURPRISE_WINDOW) : token]
            if len(before) > 1:
                best = max(best, (read.losses[token] - before.mean()) / max(float(before.std()), 1e-6))
        scores.append(best)
    return np.asarray(scores, dtype=np.float64)


def highest(scores: Sequence[Scores], count: int) -> list[npt.NDArray[np.bool_]]:
    """Return the `count` places that score highest over all texts; of equal scores the first."""
    order = np.argsort(-np.concatenate(scores), kind="stable")[:count]
    chosen = np.zeros(sum(map(len, scores)), dtype=bool)
    chosen[order] = True
    return np.split(chosen, np.cumsum([len(own) for own in scores])[:-1])


def equal_lengths(right: Sequence[npt.NDArray[np.bool_]]) -> list[npt.NDArray[np.bool_]]:
    """Cut segments of equal length, as long on average as the right ones."""
    units = sum(len(own) + 1 for own in right) / sum(int(own.sum()) + 1 for own in right)
    cuts = []
    for own in right:
        at = np.round(np.arange(1, int(len(own) / units) + 1) * units).astype(int) - 1
        chosen = np.zeros(len(own), dtype=bool)
        chosen[at[at < len(own)]] = True
        cuts.append(chosen)
    return cuts


def lengths_at(
    trigger: TriggerNet,
    calibration: Sequence[BoundaryPredictions],
    texts: Sequence[BoundaryPredictions],
    means: Sequence[int],
    memory_config: MemoryConfig,
) -> dict[str, dict[str, float]]:
    """Return the mean length of the texts' blocks, at thresholds calibrated on other texts for these means."""
    found = {}
    lookahead = trigger.settings.lookahead
    for mean in means:
        threshold = threshold_for(calibration, memory_config.os_config(), lookahead, mean)
        lengths = [
            length for text in texts for length in block_lengths(text, memory_config.os_config(), threshold, lookahead)
        ]
        found[str(mean)] = {"threshold": threshold, "blocks": len(lengths), "mean": float(np.mean(lengths))}
    return found
