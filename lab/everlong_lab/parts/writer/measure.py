"""Measure what stands for evicted blocks, at equal slots: how well the model goes on behind it in unseen books.

A place is sinks, eight blocks and what follows them. The following tokens are predicted behind the sinks and a number
of slots for all eight blocks. The slots hold one of these:

- Detail Tokens: trained, untrained (which is pooling), or of another place;
- keys and values of the tokens that the Trimmer keeps, as they are or as the KV writer writes them;
- keys and values of the newest tokens.

Nothing of the blocks, and all of them, are measured too. What is kept stands one behind the other, as in a frame,
unless the method's name says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everlong.data import Book, shipped_books
from everlong.frame.taps import side_by_side
from everlong.models.pack import Pack, pack_of_model
from everlong.models.provenance import provenance
from everlong.models.rope import rope_table, rotated, unrotated
from everlong.models.soft_tokens import after_kv, embedded
from everlong.models.trimmed_cache import WholeText, go_on, read_whole
from everlong.parts.writer.model import WRITER, WriterNet, reading_mode
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, excerpt
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import figures_of, with_stderr
from everlong_lab.eval.tables import Report, Reports, Table, store_report, with_error
from everlong_lab.parts.writer.measure_decider import run_explaining, unseen_blocks
from everlong_lab.parts.writer.measure_reconstruction import Pages, run_reconstructing
from everlong_lab.parts.writer.train import log_probs_after_details
from everlong_lab.training.run import plain

if TYPE_CHECKING:
    from everlong.parts.kv_writer.model import KvWriterNet
    from everlong.parts.trimmer.model import TrimmerNet

NOTHING, ALL = "nothing of the blocks", "all of the blocks"
POOLED, DETAILS, STRANGE = "D untrained: pooled embeddings", "D", "D of another place"
KEPT, KEPT_THERE, NEWEST = "Trimmer's tokens", "Trimmer's tokens at their places", "newest tokens"
KV, KV_STRANGE, KV_BESIDE = "KV writer", "KV writer, another place", "KV writer beside"
_MEASURES = {"nats": "next-token loss, nats", "kl": "KL to the model that sees all, nats"}
# The pairs of methods that are compared place by place.
PAIRS = (
    (DETAILS, POOLED),
    (DETAILS, NOTHING),
    (DETAILS, STRANGE),
    (DETAILS, KEPT),
    (KV, KV_BESIDE),
    (KV, KEPT),
    (KV, KV_STRANGE),
    (KV, NOTHING),
    (KV, DETAILS),
    (KV, NEWEST),
)


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure what stands best for evicted blocks, at equal slots: Detail Tokens, kept tokens, or the KV writer."""

    text: tuple[pathlib.Path, ...] = ()  # books to draw places from, beside the shipped ones
    slots: tuple[int, ...] = (32, 64, 128, 256)  # numbers of slots for all eight evicted blocks, by commas
    places: int = 24  # number of places in books, eight blocks each; 0: none
    seed: int = 0  # seed of the places
    beside: pathlib.Path | None = None  # another pack, whose KV writer is measured too
    why: int = 0  # number of places in books whose blocks answer questions or do not; 0: none
    stories: int = 0  # the same in stories, with questions that people asked
    again: int = 0  # number of pages to say again; 0: none
    fitted: int = 4  # number of these pages to fit vectors to in 200 steps, too
    tokens: tuple[int, ...] = (4, 8, 16, 32)  # numbers of vectors for a page to say again, by commas
    page_tokens: int = 64  # tokens of a page to say again, up to 512
    keep: pathlib.Path | None = None  # file for the reports, written as the run goes on
    work: pathlib.Path = pathlib.Path("runs/writer-eval")  # folder for states

    def __post_init__(self) -> None:
        if not all(slots > 0 and slots % BLOCKS == 0 for slots in self.slots):
            raise ValueError(f"slots are {self.slots}, expected multiples of the {BLOCKS} blocks")


@dataclasses.dataclass(frozen=True)
class MeasuredLosses:
    """The loss at one place by one method, as means over the tokens that follow."""

    nats: float
    kl: float  # from the model that sees everything


@dataclasses.dataclass(frozen=True)
class WritingReport(Report):
    made_with: dict[str, Any]
    parts: dict[str, str]  # ids of the measured parts
    config: dict[str, Any]
    places: int
    said: dict[str, dict[str, dict[str, float]]]  # by method and slots: nats, kl, each with its standard error
    differences: list[dict[str, Any]]  # of PAIRS at each number of slots, place by place

    def tables(self) -> Iterator[Table | str]:
        """Yield a table for each measure and one of the differences, each figure with its standard error."""
        slots = [str(count) for count in self.config["slots"]]
        for measure, title in _MEASURES.items():
            rows = []
            for method, found in self.said.items():
                cells = [found.get(count, found.get("0")) for count in slots]
                rows.append((method, *(with_error(cell, measure) if cell else "" for cell in cells)))
            about = f"{FOLLOWING} tokens behind {BLOCKS} evicted blocks, {self.places} places"
            yield Table(f"{about}: {title}", ("slots for all eight", *slots), rows)
        rows = []
        for method, other in PAIRS:
            steps = [step for step in self.differences if (step["method"], step["less"]) == (method, other)]
            own = {str(step["slots"]): with_error(step, "nats", sign="+") for step in steps}
            if own:
                rows.append((f"{method} less {other}", *(own.get(count, "") for count in slots)))
        yield Table("place by place, nats: one less the other", ("", *slots), rows)


def measure(
    loaded: tuple[Any, Any], measuring: Measuring, *, pack: str | pathlib.Path | None, log: Log = silent
) -> Reports:
    """Measure what stands behind blocks; then, where that is asked for, both heads of the writer."""
    reports: dict[str, Report] = {}
    found, books = pack_of_model(loaded[0], pack), books_of(measuring.text)

    def known(name: str, report: Report) -> None:
        reports[name] = report
        store_report(Reports(reports).to_dict(), measuring.keep)

    if measuring.places:
        for report in behind_blocks(loaded, found, measuring, books=books, log=log):
            known("behind blocks", report)
    unseen = unseen_blocks(loaded[1], books, places=measuring.why, stories=measuring.stories, seed=measuring.seed + 1)
    for about, blocks in unseen.items():
        work = measuring.work / about.replace(" ", "-")
        known(f"why, {about}", run_explaining(loaded, found, blocks, about, work=work, log=log))
    if measuring.again:
        pages = Pages(measuring.again, measuring.page_tokens, measuring.tokens, measuring.fitted)
        again = run_reconstructing(loaded, found, pages, work=measuring.work / "again", books=books, log=log)
        known("again", again)
    return Reports(reports)


@dataclasses.dataclass(frozen=True)
class _Place:
    ids: torch.Tensor  # int64 [SINK_TOKENS + BLOCKS * BLOCK_TOKENS + FOLLOWING]
    read: WholeText
    states: Mapping[int, torch.Tensor]  # [BLOCKS, BLOCK_TOKENS, hidden size] by layer
    embeddings: torch.Tensor  # [BLOCKS, BLOCK_TOKENS, E]

    def side_by_side(self, layers: Sequence[int]) -> torch.Tensor:
        return side_by_side(self.states, layers)

    @property
    def behind(self) -> torch.Tensor:
        """The newest token and what follows it."""
        return self.ids[-FOLLOWING - 1 :]


def behind_blocks(
    model: tuple[Any, Any], pack: Pack, config: Measuring, *, books: Sequence[Book] = (), log: Log = silent
) -> Iterator[WritingReport]:
    """Measure every method that the pack has parts for, at every number of slots.

    Shipped books come after `books`. After every place it yields the report so far, which is what fewer places of the
    same seed would give.
    """
    from everlong.parts.kv_writer.model import KV_WRITER
    from everlong.parts.trimmer.model import TRIMMER

    network, tokenizer = model
    books = list({book.name: book for book in (*books, *shipped_books())}.values())
    random = np.random.default_rng(config.seed)
    books = [books[at] for at in random.permutation(len(books))]
    beside = None if config.beside is None else pack_of_model(network, config.beside)
    arms = _Arms.of(network, pack, beside)
    by = provenance(network)
    ids = {name: part.id for name, part in pack.parts.items() if name in (WRITER, KV_WRITER, TRIMMER)}
    if beside is not None and KV_WRITER in beside.parts:
        ids[KV_BESIDE] = beside.parts[KV_WRITER].id
    found: dict[tuple[str, int], list[MeasuredLosses]] = {}
    places = _places(network, tokenizer, books, config.places + 1, arms.layers, random)
    other = arms.written(next(places), config.slots)
    for number, place in enumerate(places, 1):
        own = arms.written(place, config.slots)
        for key, losses in arms.losses(place, own, other).items():
            found.setdefault(key, []).append(losses)
        other = own
        yield WritingReport(by, ids, plain(config), number, figures_of(found, _MEASURES), _differences(found, config))
        log(f"place {number} of {config.places}")


@dataclasses.dataclass(frozen=True)
class _WrittenBlocks:
    """What the writers make of a place, for one number of slots."""

    details: dict[str, torch.Tensor]  # D [slots, E] by method
    chosen: torch.Tensor | None  # int64 [BLOCKS, N]: what the Trimmer keeps of each block
    kv: Mapping[str, tuple[torch.Tensor, ...]]  # un-rotated keys and values [L, Hkv, slots, D] by method


@dataclasses.dataclass(frozen=True)
class _Arms:
    """The methods to measure, for a model and its pack."""

    model: Any
    writer: WriterNet | None
    untrained: WriterNet | None
    trimmer: TrimmerNet | None
    kv_writers: Mapping[str, KvWriterNet]  # by method
    reading: Callable[[], contextlib.AbstractContextManager[None]]  # attaches the maps that read D

    @classmethod
    def of(cls, model: Any, pack: Pack, beside: Pack | None = None) -> _Arms:
        from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet
        from everlong.parts.trimmer.model import TRIMMER, TrimmerNet

        def part(name: str, made: Any, of: Pack | None = pack) -> Any:
            return made.of_part(of.parts[name]).to(model.device) if of is not None and name in of.parts else None

        writer = part(WRITER, WriterNet)
        untrained = None if writer is None else WriterNet.untrained(writer.settings).to(model.device)
        kv = {KV: part(KV_WRITER, KvWriterNet), KV_BESIDE: part(KV_WRITER, KvWriterNet, beside)}
        there = {name: own for name, own in kv.items() if own is not None}
        reading = contextlib.nullcontext if writer is None else reading_mode(pack.parts[WRITER], model)
        return cls(model, writer, untrained, part(TRIMMER, TrimmerNet), there, reading)

    @property
    def layers(self) -> list[int]:
        read = [arm.settings.layers for arm in (self.writer, *self.kv_writers.values()) if arm is not None]
        read += [self.trimmer.settings.layers] if self.trimmer is not None else []
        return sorted({layer for layers in read for layer in layers})

    @torch.no_grad()
    def written(self, place: _Place, slots: Sequence[int]) -> dict[int, _WrittenBlocks]:
        """Return by slots what the writers make of a place."""
        found = {own: _WrittenBlocks({}, None, {}) for own in slots}
        if self.writer is not None and self.untrained is not None:
            states = place.side_by_side(self.writer.settings.layers)
            for own in slots:
                for name, writer in ((POOLED, self.untrained), (DETAILS, self.writer)):
                    details = writer.details_of(states, place.embeddings, own // BLOCKS).flatten(0, 1)
                    found[own].details[name] = details
        if self.trimmer is None:
            return found
        from everlong.parts.trimmer.model import tokens_to_keep

        states = place.side_by_side(self.trimmer.settings.layers)
        k, v = self.plain(place)
        for own in slots:
            chosen = torch.stack([tokens_to_keep(self.trimmer.scores(block), own // BLOCKS) for block in states])
            kv = {}
            for name, kv_writer in self.kv_writers.items():
                read = place.side_by_side(kv_writer.settings.layers)
                kv_of_blocks = kv_writer(read, _by_block(k), _by_block(v), chosen)
                kv[name] = tuple(rows.permute(1, 2, 0, 3, 4).flatten(2, 3) for rows in kv_of_blocks)
            found[own] = _WrittenBlocks(found[own].details, chosen, kv)
        return found

    def plain(self, place: _Place) -> tuple[torch.Tensor, torch.Tensor]:
        """Return un-rotated keys, and values, of a place's blocks, [L, Hkv, BLOCKS * BLOCK_TOKENS, D] fp32 each."""
        k, v = _kv(place.read)
        own = slice(SINK_TOKENS, SINK_TOKENS + BLOCKS * BLOCK_TOKENS)
        places = torch.arange(own.start, own.stop, device=k.device)
        return unrotated(k[:, :, own], places, rope_table(self.model.config)), v[:, :, own].float().contiguous()

    @torch.no_grad()
    def losses(
        self, place: _Place, written: Mapping[int, _WrittenBlocks], others: Mapping[int, _WrittenBlocks]
    ) -> dict[tuple[str, int], MeasuredLosses]:
        """Return the losses by method and slots; 0 slots for nothing and for all of the blocks."""
        teacher = place.read.logits.log_softmax(dim=-1)
        ids = place.behind
        sinks = [rows[:, :, :SINK_TOKENS].float() for rows in _kv(place.read)]
        k, v = self.plain(place)
        table = rope_table(self.model.config)

        def behind(rows: Sequence[torch.Tensor]) -> MeasuredLosses:
            places = SINK_TOKENS + torch.arange(rows[0].shape[2], device=k.device)
            turned = torch.cat([sinks[0], rotated(rows[0], places, table)], dim=2)
            both = torch.cat([sinks[1], rows[1]], dim=2)
            return _losses(teacher, after_kv(self.model, turned, both, ids[:-1], FOLLOWING)[0], ids)

        found = {(NOTHING, 0): behind((k[:, :, :0], v[:, :, :0])), (ALL, 0): _losses(teacher, place.read.logits, ids)}
        for count, own in written.items():
            rows = dict(own.details)
            if rows:
                rows[STRANGE] = others[count].details[DETAILS]
                found[POOLED, count] = _losses(teacher, self._behind_details(place, rows.pop(POOLED)[None])[0], ids)
                with self.reading():
                    every = self._behind_details(place, torch.stack(list(rows.values())))
                for name, logits in zip(rows, every, strict=True):
                    found[name, count] = _losses(teacher, logits, ids)
            found[NEWEST, count] = behind((k[:, :, -count:], v[:, :, -count:]))
            if own.chosen is None:
                continue
            at = (own.chosen + BLOCK_TOKENS * torch.arange(BLOCKS, device=k.device)[:, None]).flatten()
            found[KEPT, count] = behind((k[:, :, at], v[:, :, at]))
            kept = torch.cat([torch.arange(SINK_TOKENS), SINK_TOKENS + at.cpu()])[None]
            first = SINK_TOKENS + BLOCKS * BLOCK_TOKENS
            logits = go_on(self.model, place.read.cache, kept, ids[None, :-1], first, logits_to_keep=FOLLOWING)[0]
            found[KEPT_THERE, count] = _losses(teacher, logits.float(), ids)
            for name, written_kv in own.kv.items():
                found[name, count] = behind(written_kv)
            if KV in others[count].kv:
                found[KV_STRANGE, count] = behind(others[count].kv[KV])
        return found

    def _behind_details(self, place: _Place, details: torch.Tensor) -> torch.Tensor:
        """Return logits [methods, FOLLOWING, V] behind D [methods, slots, E]."""
        assert self.writer is not None
        sinks, ids = place.ids[:SINK_TOKENS], place.behind[:-1]
        return log_probs_after_details(self.writer.settings, self.model, sinks, details, ids, FOLLOWING)


def _places(
    model: Any, tokenizer: Any, books: Sequence[Book], count: int, layers: Sequence[int], random: np.random.Generator
) -> Iterator[_Place]:
    length = SINK_TOKENS + BLOCKS * BLOCK_TOKENS + FOLLOWING
    made = tried = 0
    while made < count:
        if tried >= 4 * count:
            raise ValueError(f"there are not {count} places of {length:,} tokens in these books")
        try:
            ids = excerpt(tokenizer, books[tried % len(books)], length, random)
        except ValueError:
            continue
        finally:
            tried += 1
        made += 1
        read = read_whole(model, ids[:-1], layers, rows=FOLLOWING)
        own = slice(SINK_TOKENS, SINK_TOKENS + BLOCKS * BLOCK_TOKENS)
        states = {layer: rows[own].reshape(BLOCKS, BLOCK_TOKENS, -1) for layer, rows in read.hidden.items()}
        yield _Place(ids, read, states, embedded(model, ids[own]).view(BLOCKS, BLOCK_TOKENS, -1))


def _kv(read: WholeText) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rotated keys, and values, of all that was read, [L, Hkv, n, D] each."""
    layers: Any = read.cache.layers
    return torch.stack([layer.keys[0] for layer in layers]), torch.stack([layer.values[0] for layer in layers])


def _by_block(rows: torch.Tensor) -> torch.Tensor:
    """Reshape [L, Hkv, BLOCKS * BLOCK_TOKENS, D] into [BLOCKS, L, Hkv, BLOCK_TOKENS, D]."""
    return rows.view(*rows.shape[:2], BLOCKS, BLOCK_TOKENS, -1).permute(2, 0, 1, 3, 4)


def _losses(teacher: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor) -> MeasuredLosses:
    log_probabilities = logits.log_softmax(dim=-1)
    nats = -log_probabilities.gather(-1, ids[1:, None].to(log_probabilities.device)).mean()
    return MeasuredLosses(float(nats), float((teacher.exp() * (teacher - log_probabilities)).sum(dim=-1).mean()))


def _differences(found: Mapping[tuple[str, int], Sequence[MeasuredLosses]], config: Measuring) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for method, other in PAIRS:
        for slots in config.slots:
            beside = (other, 0 if other == NOTHING else slots)
            if (method, slots) not in found or beside not in found:
                continue
            own: dict[str, Any] = {"method": method, "less": other, "slots": slots}
            for measure in _MEASURES:
                pairs = zip(found[method, slots], found[beside], strict=True)
                own |= with_stderr(measure, (getattr(a, measure) - getattr(b, measure) for a, b in pairs))
            steps.append(own)
    return steps
