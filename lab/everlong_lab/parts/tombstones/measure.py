"""Measure whether attention to a tombstone says that its span is needed, beside surprise and entropy.

A book with planted facts is read until most of them have left the frame. Then the text goes on in one of three ways:

- it begins the sentence of a fact whose end has left the frame: a need;
- it begins the sentence of a fact whose end still stands in the frame: no need;
- it goes on as the book does: no need.

Heads and threshold are chosen on some texts, and measured on texts of other books.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from everlong.config import MemoryConfig
from everlong.data import Book, shipped_books
from everlong.frame.kv_frame import KvFrame
from everlong.frame.tombstone_mass import TombstoneMass
from everlong.generation.memory_model import MemoryModel
from everlong.models.pack import pack_folder_of, pack_of
from everlong.models.provenance import provenance
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads
from everlong.parts.tombstones.runtime import LEAST_MASS
from everlong.text.encoding import encode
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.needs import Cue, needs_text
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import Rate, auc, rate
from everlong_lab.eval.tables import Report, Table
from everlong_lab.training.run import plain

Kind = Literal["need", "in the frame", "book"]
Array = npt.NDArray[np.float64]

FALSE_ALARMS = 0.05
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure whether attention to a tombstone says that its span is needed (the part `tombstones`)."""

    text: tuple[pathlib.Path, ...] = ()  # books to draw texts from, beside the shipped ones
    documents: int = 6  # number of texts to measure
    calibration: int = 3  # number of texts, of other books, to choose heads and threshold on
    tombstones: int = 16  # number of tombstones in the frame
    facts: int = 26  # facts of a text that leave the frame; half as many stay
    old_tokens: int = 4800  # tokens of a text that leave the frame
    pieces: int = 13  # pieces of the book as it goes on
    heads: int = 16  # number of heads to choose
    kv_writer: bool = False  # whether the KV writer of the model's pack makes the tombstones; without it they are means
    seed: int = 0  # seed of facts and places; the same seed gives the same texts
    # Folder for the recorded samples, one file a text; a run that was cut short goes on there
    work: pathlib.Path | None = None
    # Folder for samples of the other kind of tombstones (with or without --kv-writer). With it, both are measured.
    beside: pathlib.Path | None = None
    keep: bool = False  # put heads and threshold into the pack of the model


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One way in which a text went on."""

    kind: Kind
    log_mass: npt.NDArray[np.float16]  # [T, layers * query heads, tombstones]
    entropy: Array  # [T] nats, of the next token's distribution after each token
    surprise: Array  # [T - 1] nats, of each token but the first
    right: tuple[int, ...]  # the tombstones of the span that it needs


@dataclasses.dataclass(frozen=True)
class LogFn:
    """How well a number separates needs from the rest."""

    by: str
    auc: float
    low: float  # 95 % interval of it, from resampled samples
    high: float
    recalled: Rate  # share of the needs found, at a false-alarm rate of FALSE_ALARMS
    auc_in_the_frame: float  # against continuations whose fact stands in the frame
    auc_book: float  # against the book as it goes on
    recalled_book: Rate  # share of the needs found, at FALSE_ALARMS of those


@dataclasses.dataclass(frozen=True)
class Beside:
    """The other kind of tombstones on the same texts, with heads that were chosen for them."""

    writer: bool
    less: float  # the AUC of the report's own tombstones minus that of these
    low: float  # 95 % interval of that; both kinds are resampled alike
    high: float
    told: LogFn
    right: Rate


@dataclasses.dataclass(frozen=True)
class TombstonesReport(Report):
    needs: int
    others: int
    told: tuple[LogFn, ...]
    threshold: float
    recalled: Rate  # share of the needs that woke a tombstone, at the calibrated threshold
    false_alarms: Rate
    right: Rate  # of the needs that woke a tombstone, the share that woke the right one
    chance_right: float  # the same for a tombstone drawn at random
    heads: tuple[tuple[int, int], ...]
    made: dict[str, Any]
    beside: Beside | None = None

    def tables(self) -> Iterator[Table | str]:
        recalled, chance = f"recalled at {FALSE_ALARMS:.0%}", f"{FALSE_ALARMS:.2f}"
        yield Table(
            f"{self.needs} continuations need what has left the frame, {self.others} do not",
            ("by", "AUC", "95 %", recalled, "AUC, fact in frame", "AUC, book", f"{recalled} of book"),
            [
                *(
                    (
                        told.by,
                        f"{told.auc:.3f}",
                        f"{told.low:.3f} to {told.high:.3f}",
                        f"{told.recalled.rate:.2f}",
                        f"{told.auc_in_the_frame:.3f}",
                        f"{told.auc_book:.3f}",
                        f"{told.recalled_book.rate:.2f}",
                    )
                    for told in self.told
                ),
                ("chance", "0.500", "", chance, "0.500", "0.500", chance),
            ],
        )
        for what, one in (
            (f"needs that woke a tombstone (threshold {self.threshold:.3f})", self.recalled),
            ("false alarms", self.false_alarms),
            ("of the needs that woke one, it was the right one", self.right),
        ):
            yield f"{what}: {one.right} of {one.n}, {one.rate:.2f} ({one.low:.2f} to {one.high:.2f})"
        yield f"a tombstone at random is the right one: {self.chance_right:.2f}"
        if self.beside is not None:
            other = self.beside
            kind = "by the KV writer" if other.writer else "that are means"
            yield (
                f"tombstones {kind} on the same texts: AUC {other.told.auc:.3f}, {other.told.recalled.rate:.2f} "
                f"recalled, the right one {other.right.right} of {other.right.n}; these less those, AUC "
                f"{other.less:+.3f} ({other.low:+.3f} to {other.high:+.3f})"
            )


def measure(loaded: tuple[Any, Any], measuring: Measuring, *, log: Log = silent) -> TombstonesReport:
    """Choose heads and threshold, measure, and keep both in the model's pack where `keep` asks for it."""
    heads, report = chosen_and_measured(loaded, measuring, log)
    if measuring.keep:
        log(f"kept in {store_heads(loaded[0], heads, report)}")
    return report


def chosen_and_measured(
    loaded: tuple[Any, Any], config: Measuring, log: Log = silent
) -> tuple[TombstoneHeads, TombstonesReport]:
    """Choose heads on every other book, and measure on the books between."""
    heads, samples, report = _of_one_kind(loaded, config, log)
    if config.beside is None:
        return heads, report
    other = dataclasses.replace(config, kv_writer=not config.kv_writer, work=config.beside)
    its_heads, its_samples, its_report = _of_one_kind(loaded, other, log)
    query_heads = _query_heads(loaded[0])
    own, its = (
        np.array([_highest(chosen, sample, query_heads)[0] for sample in ones])
        for chosen, ones in ((heads, samples), (its_heads, its_samples))
    )
    kinds = [sample.kind for sample in samples]
    if kinds != [sample.kind for sample in its_samples]:
        raise ValueError(f"{config.work} and {config.beside} hold samples of different texts")
    paired = paired_auc(own, its, np.array([kind == "need" for kind in kinds]))
    beside = Beside(other.kv_writer, *paired, its_report.told[0], its_report.right)
    return heads, dataclasses.replace(report, beside=beside)


def _query_heads(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).num_attention_heads)


def paired_auc(own: Array, its: Array, need: npt.NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the AUC of one number minus that of another on the same samples, and its 95 % interval by resampling."""
    return _with_interval(need, lambda needs, others: auc(own[needs], own[others]) - auc(its[needs], its[others]))


def _with_interval(
    need: npt.NDArray[np.bool_], of: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], float]
) -> tuple[float, float, float]:
    """Return a figure of the samples that need and the others, and its 95 % interval, with both resampled."""
    random = np.random.default_rng(0)
    needs, others = np.flatnonzero(need), np.flatnonzero(~need)
    again = [of(random.choice(needs, len(needs)), random.choice(others, len(others))) for _ in range(_RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    return of(needs, others), float(low), float(high)


def _of_one_kind(
    loaded: tuple[Any, Any], config: Measuring, log: Log
) -> tuple[TombstoneHeads, list[Sample], TombstonesReport]:
    there = [*shipped_books(), *(books_of(config.text) if config.text else ())]
    if len(there) < 2:
        raise ValueError("heads are chosen on one book and measured on another, but there is only one book")

    def samples(first: int, count: int) -> list[Sample]:
        out, own = [], there[first::2]
        for document in range(count):
            book = own[document % len(own)]
            out += _kept_samples(loaded, config, book, 2 * document + first)
            log(f"{book.name}: {len(out)} samples")
        return out

    query_heads = _query_heads(loaded[0])
    heads = choose_heads(samples(1, config.calibration), query_heads, config.heads)
    made = {**provenance(loaded[0]), **plain(config)}
    measured = samples(0, config.documents)
    return heads, measured, report_of(heads, measured, query_heads, made)


def _kept_samples(loaded: tuple[Any, Any], config: Measuring, book: Book, document: int) -> list[Sample]:
    if config.work is None:
        return samples_of(loaded, config, book, document)
    file = config.work / f"text-{document}.npz"
    if not file.exists():
        config.work.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, npt.NDArray[Any]] = {}
        for at, sample in enumerate(samples_of(loaded, config, book, document)):
            arrays |= {f"{at}.{name}": np.asarray(value) for name, value in vars(sample).items()}
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are keywords
    with np.load(file) as kept:
        return [
            Sample(
                str(kept[f"{at}.kind"]),  # type: ignore[arg-type]
                kept[f"{at}.log_mass"],
                kept[f"{at}.entropy"],
                kept[f"{at}.surprise"],
                tuple(map(int, kept[f"{at}.right"])),
            )
            for at in range(sum(name.endswith(".kind") for name in kept.files))
        ]


def samples_of(loaded: tuple[Any, Any], config: Measuring, book: Book, document: int) -> list[Sample]:
    """Return every way in which one text goes on."""
    from everlong.parts.kv_writer import KvWriter

    model, tokenizer = loaded
    memory = MemoryConfig.fitting(model.config.get_text_config(decoder=True).max_position_embeddings)
    memory = memory.changed(
        frame={"tombstones": config.tombstones},
        answer={"policy": "off", "quotes": 0},
        search={"index": ("lexical",)},
        parts=[KvWriter(tombstones=config.kv_writer)],
    )
    random = np.random.default_rng((config.seed, document))
    text = needs_text(
        tokenizer,
        encode(tokenizer, book.text),
        random,
        old=config.old_tokens,
        new=memory.frame.rolling_tokens - memory.frame.evict_tokens,
        facts=config.facts,
        behind=config.pieces,
    )
    made: list[Sample] = []
    with MemoryModel(model, tokenizer, None, memory, pack="auto" if config.kv_writer else None) as mm:
        frame = mm.frame
        assert isinstance(frame, KvFrame)
        before = frame.text_begin
        frame.extend(text.ids, "read")
        zone = [(begin, end) for begin, end, _ in frame.os.anchor_zone["tombstones"]]
        for cue in text.cues:
            assert cue.fact is not None
            begin, end = (before + at for at in cue.fact)
            right = [at for at, stone in enumerate(zone) if stone[0] < end and stone[1] > begin]
            if begin < frame.os.rolling[0] < end or (not right and begin < frame.os.rolling[0]):
                continue  # half of the fact has left, or it stands among the sinks
            with frame.branch(traced=False):
                made.append(_observed(frame, cue, "need" if right else "in the frame", right))
        with frame.branch(traced=False):
            made += [_observed(frame, piece, "book", []) for piece in text.behind]
    return made


def _observed(frame: KvFrame, cue: Cue, kind: Kind, right: list[int]) -> Sample:
    """Return what the model makes of a cue behind the frame. The cue stays in the frame."""
    served = frame.served
    heads = [(layer, head) for layer in range(served.layers) for head in range(served.query_heads)]
    mass = TombstoneMass(served, heads)
    first = frame.os.next_position() + served.first_position
    with mass.tap() as tap:
        logits = frame.extend(cue.ids, "generated", logits=True)
    log_mass = mass.of(tap, frame.cache, first).clamp_min(LEAST_MASS).log().half().numpy()
    likely = torch.log_softmax(logits.float().cpu(), dim=-1)
    entropy = -(likely.exp() * likely).sum(dim=-1)
    surprise = -likely[:-1].gather(-1, cue.ids[1:, None])[:, 0]
    return Sample(kind, log_mass, entropy.double().numpy(), surprise.double().numpy(), tuple(right))


# --- choosing heads


def choose_heads(samples: Sequence[Sample], query_heads: int, count: int) -> TombstoneHeads:
    """Choose the heads whose largest log mass tells needs best. Each weighs the same, in its own standard deviations.

    The threshold is reached by FALSE_ALARMS of the samples that need nothing.
    """
    largest = np.stack([sample.log_mass.astype(np.float64).max(axis=(0, 2)) for sample in samples])  # [n, heads]
    need = np.array([sample.kind == "need" for sample in samples])
    tells = np.array([auc(largest[need, head], largest[~need, head]) for head in range(largest.shape[1])])
    best = np.argsort(-tells, kind="stable")[:count]
    means, deviations = largest[~need][:, best].mean(axis=0), largest[~need][:, best].std(axis=0)
    weights = 1 / (count * np.maximum(deviations, 1e-6))
    chosen = TombstoneHeads(
        tuple((int(head) // query_heads, int(head) % query_heads) for head in best),
        tuple(map(float, weights)),
        float(-(weights * means).sum()),
        threshold=0.0,
    )
    others = [_highest(chosen, sample, query_heads)[0] for sample in samples if sample.kind != "need"]
    return dataclasses.replace(chosen, threshold=float(np.quantile(others, 1 - FALSE_ALARMS, method="higher")))


def _highest(heads: TombstoneHeads, sample: Sample, query_heads: int) -> tuple[float, int]:
    """Return the highest score over tokens and tombstones, and the tombstone that has it."""
    columns = [layer * query_heads + head for layer, head in heads.heads]
    logs = sample.log_mass[:, columns].astype(np.float64)
    scores = (logs * np.array(heads.weights)[:, None]).sum(axis=1) + heads.bias  # [T, tombstones]
    return float(scores.max()), int(scores.max(axis=0).argmax())


def store_heads(model: Any, heads: TombstoneHeads, report: TombstonesReport) -> pathlib.Path:
    """Put the heads into the user's own pack of the model, beside what is there; return its folder."""
    pack = pack_of(model, {TOMBSTONES: heads.part(report.to_dict())})
    folder = pack_folder_of(pack.model)
    pack.save(folder)
    return folder


# --- measuring


def report_of(
    heads: TombstoneHeads, samples: Sequence[Sample], query_heads: int, made: dict[str, Any]
) -> TombstonesReport:
    highest = [_highest(heads, sample, query_heads) for sample in samples]
    need = np.array([sample.kind == "need" for sample in samples])
    scores = np.array([score for score, _ in highest])
    woke = scores >= heads.threshold
    right = [at in sample.right for (_, at), sample in zip(highest, samples, strict=True)]
    shares = [len(sample.right) / sample.log_mass.shape[2] for sample in samples if sample.kind == "need"]
    numbers = {
        "tombstones": scores,
        "surprise": np.array([sample.surprise.max() for sample in samples]),
        "entropy": np.array([sample.entropy.max() for sample in samples]),
    }
    return TombstonesReport(
        needs=int(need.sum()),
        others=int((~need).sum()),
        told=tuple(_report(by, values, samples) for by, values in numbers.items()),
        threshold=heads.threshold,
        recalled=rate(woke[need].tolist()),
        false_alarms=rate(woke[~need].tolist()),
        right=rate([right[at] for at in np.flatnonzero(need & woke)]),
        chance_right=float(np.mean(shares)),
        heads=heads.heads,
        made=made,
    )


def _report(by: str, values: Array, samples: Sequence[Sample]) -> LogFn:
    kinds = np.array([sample.kind for sample in samples])
    needing = kinds == "need"
    need, in_the_frame, book = (values[kinds == kind] for kind in ("need", "in the frame", "book"))
    return LogFn(
        by,
        *_with_interval(needing, lambda needs, others: auc(values[needs], values[others])),
        _recalled_at(need, values[~needing], FALSE_ALARMS),
        auc(need, in_the_frame),
        auc(need, book),
        _recalled_at(need, book, FALSE_ALARMS),
    )


def _recalled_at(need: Array, others: Array, share: float) -> Rate:
    """Return how many needs lie above the number that at most `share` of the others exceed."""
    if len(others) == 0:
        return rate([])
    above = np.sort(others)[::-1][int(share * len(others))]
    return rate((need > above).tolist())
