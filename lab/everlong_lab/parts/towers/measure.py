"""Measure whether a question in other words finds the passage that answers it: by each index part, and by all.

There are two readings. *Stories*: FairytaleQA's stories that nothing was trained or fitted on, read as one stream. A
question is right where the first groups (a page and its neighbours) hold at least half a page of a section that answers
it. Half of the questions are implicit: the text does not say the answer in so many words. *Planted*: paraphrases,
associations and drawn facts, each a sentence or two in foreign books. Right is a group that holds all of it. A part
alone is asked in both granularities by `rankings`; the fusions are those of `search`. BM25 is the part "lexical",
MiniLM the part "embedding".

It also measures whether `confidence` can be believed. Every fusion gets every question twice: over all sources, and
over what is left without the sources that answer it. So half of the questions have an answer, and the other half are
the same questions without one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everlong.errors import EverlongError
from everlong.generation.memory_model import MemoryModel
from everlong.models.provenance import provenance
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.development import DEVELOPMENT
from everlong_lab.corpora.facts import ASSOCIATIONS, PARAPHRASES, Fact, Kind, make_facts
from everlong_lab.corpora.haystack import build_haystack
from everlong_lab.corpora.pairs import Pairs, Split, load_pairs
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, all_books
from everlong_lab.eval.calibration import Calibration, area_under_curve, calibration
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.tables import Report, Reports, Table, store_report
from everlong_lab.parts.towers.measure_answers import (
    GOLD,
    MEMORY,
    AnswerScore,
    ToAnswer,
    answer_all,
    answer_shares,
    drawn_evenly,
)

if TYPE_CHECKING:
    from everlong.config import MemoryConfig

_GROUPS, _NEIGHBOURS, _BUDGET = 4, 1, 1024
_KEPT = 256  # pages of a ranking to keep in the report, for fitting
_FACT_KINDS: tuple[tuple[tuple[Kind, ...], int], ...] = (
    (("pass-key", "uuid", "name", "quote"), 42),
    (("best-thing",), 32),
)
_DEVELOPMENT_FACTS = 24
_SPARE_TOKENS = 300_000
_ELSEWHERE = 400
ELSEWHERE = "elsewhere"
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure whether a question in other words finds its answer, by every part of the index and by all of them."""

    stories: bool = True  # ask questions about the FairytaleQA stories that nothing was trained on
    # Lengths in tokens, by commas (128K,384K): ask for paraphrases and drawn facts in books this long
    lengths: tuple[int, ...] = ()
    # More books, where the shipped ones are too short: a folder of .txt files or a tar.xz
    corpus: pathlib.Path | None = None
    # Folder for the memories and full reports; memories that lie there are not read again
    keep: pathlib.Path | None = None
    fitting: bool = False  # ask what the fusion is fitted on instead, and keep every part's rankings
    answers: int = 0  # number of questions of each kind to answer as well


@dataclasses.dataclass(frozen=True)
class QuestionMeasured:
    """A question, and the spans of the stream that answer it. Any one of them is enough."""

    words: str
    kind: str  # "explicit", "implicit", "paraphrase", "association", "fact"; ELSEWHERE: nothing answers it
    spans: tuple[Span, ...]
    answers: tuple[str, ...] = ()  # to a story's question, in free words

    def is_right(self, group: Span, page_tokens: int) -> bool:
        """Return whether a group answers: it holds all of a planted fact, or half a page of a section."""
        for first, last in self.spans:
            held = min(last, group[1]) - max(first, group[0])
            wanted = min(page_tokens // 2, last - first) if self.kind in ("explicit", "implicit") else last - first
            if held >= wanted:
                return True
        return False


@dataclasses.dataclass(frozen=True)
class Confidences:
    """What `confidence` of a fusion is worth."""

    among: Calibration  # that the right passage is among what came back; every question is asked twice
    auc_left_out: float | None  # of questions that have an answer against the same without one
    auc_elsewhere: float | None  # against questions to other stories

    def cells(self) -> list[str]:
        figures = (self.among.ece, self.among.ece_by_mass, self.among.auc, self.auc_left_out, self.auc_elsewhere)
        return [str(self.among.n), *("" if figure is None else f"{figure:.3f}" for figure in figures)]


@dataclasses.dataclass(frozen=True)
class MeaningReport(Report):
    name: str  # of the reading
    made_with: dict[str, Any]
    tokens: int
    pages: list[Span]
    towers: str  # the id of the towers, "" without
    encoder: str  # the same of the encoder
    questions: list[dict[str, Any]]  # words, kind, spans, answers, ranks by method, searches, rankings
    # Some of the questions, answered where that was asked for
    answered: list[AnswerScore] = dataclasses.field(default_factory=list)

    def shares(self) -> dict[str, dict[str, tuple[float, float, int]]]:
        """Return by method and kind: the share of questions whose right group is first, the share among four, their
        number.
        """
        found: dict[str, dict[str, list[int]]] = {}
        for question in self.questions:
            if question["kind"] == ELSEWHERE:
                continue
            for method, rank in question["ranks"].items():
                found.setdefault(method, {}).setdefault(question["kind"], []).append(rank)
        return {
            method: {
                kind: (sum(r == 1 for r in ranks) / len(ranks), sum(r > 0 for r in ranks) / len(ranks), len(ranks))
                for kind, ranks in kinds.items()
            }
            for method, kinds in found.items()
        }

    def confidences(self) -> dict[str, Confidences]:
        """Return the figures of every fusion that gives a confidence."""
        told: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for question in self.questions:
            for search in question.get("searches", ()):
                if search["confidence"] is not None:
                    told.setdefault(search["kinds"], []).append((question["kind"], search))
        found = {}
        for kinds, searches in told.items():
            twice = [search for kind, search in searches if kind != ELSEWHERE]
            there, left_out = ([s["confidence"] for s in twice if s["left_out"] == out] for out in (False, True))
            elsewhere = [search["confidence"] for kind, search in searches if kind == ELSEWHERE]
            if twice:
                found[kinds] = Confidences(
                    calibration([search["confidence"] for search in twice], [search["rank"] > 0 for search in twice]),
                    area_under_curve(there, left_out),
                    area_under_curve(there, elsewhere),
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "shares": self.shares(),
            "confidences": {kinds: dataclasses.asdict(one) for kinds, one in self.confidences().items()},
            "answers": answer_shares(self.answered),
        }

    def whole(self) -> dict[str, Any]:
        """Return the report with every question."""
        return {**dataclasses.asdict(self), **self.to_dict()}

    def tables(self) -> Iterator[Table | str]:
        """Yield the tables: rank of the right group by method and kind, worth of the confidence, answers."""
        shares = self.shares()
        kinds = sorted({kind for of_method in shares.values() for kind in of_method})
        counts = {kind: next(of[kind][2] for of in shares.values() if kind in of) for kind in kinds}
        yield Table(
            f"{self.name}: {self.tokens:,} tokens; right group first / among four, %",
            ("found by", *(f"{counts[kind]} {kind}" for kind in kinds)),
            [
                (method, *(f"{100 * of[kind][0]:.1f} / {100 * of[kind][1]:.1f}" for kind in kinds))
                for method, of in shares.items()
            ],
        )
        believed = [(fusion, *one.cells()) for fusion, one in self.confidences().items()]
        if believed:
            yield Table(
                f"{self.name}: confidence that the right group is among four; half of the questions have one",
                ("found by", "searches", "ECE", "ECE, equal numbers", "AUC, right", "AUC, left out", "AUC, elsewhere"),
                believed,
            )
        if self.answered:
            ways = answer_shares(self.answered)
            yield Table(
                f"{self.name}: answered, % (95 % interval); a story's: F1 of its words",
                ("", *(f"{of_kind[MEMORY][3]} {kind}" for kind, of_kind in ways.items())),
                [(way, *(_answered(*of_kind[way][:3]) for of_kind in ways.values())) for way in (MEMORY, GOLD)],
            )


def _answered(share: float, low: float, high: float) -> str:
    return f"{100 * share:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def read_stories(
    mm: MemoryModel, split: Split, *, tokens: int | None = None, pairs: Pairs | None = None
) -> list[QuestionMeasured]:
    """Read the stories of a split one after the other, at most about `tokens` tokens; return the questions to them."""
    pairs = pairs or load_pairs(("fairytale",))
    spans: dict[tuple[int, int], Span] = {}
    for number, text in enumerate(pairs.texts):
        if text.split != split or (tokens is not None and mm.stream_tokens > tokens):
            continue
        pieces = [piece + "\n\n" for piece in text.pieces]
        encoded = mm.tokenizer("".join(pieces), add_special_tokens=False, return_offsets_mapping=True)
        starts = np.asarray([start for start, _ in encoded["offset_mapping"]])
        begin = mm.frame.text_begin
        mm.read("".join(pieces), source=text.name)
        at = 0
        for piece, words in enumerate(pieces):
            first, last = np.searchsorted(starts, [at, at + len(words)])
            spans[number, piece] = (begin + int(first), begin + int(last))
            at += len(words)
    there = [one for one in pairs.questions if (one.text, one.pieces[0]) in spans]
    return [
        QuestionMeasured(one.words, one.kind, tuple(spans[one.text, at] for at in one.pieces), one.answers)
        for one in there
    ]


def questions_of_others(*, fitting: bool) -> list[QuestionMeasured]:
    """Return questions to stories that are not read: nothing in the memory answers them."""
    pairs = load_pairs(("fairytale",))
    others = pairs.of_split("train" if fitting else "fit")
    chosen = np.random.default_rng(5).choice(len(others), size=min(_ELSEWHERE, len(others)), replace=False)
    return [QuestionMeasured(pairs.questions[others[at]].words, ELSEWHERE, ()) for at in sorted(chosen)]


def planted_facts(*, development: bool) -> list[Fact]:
    """Return what is planted and measured; with `development`, paraphrases and facts of the same make, to fit on."""
    facts, seed = list(DEVELOPMENT if development else PARAPHRASES + ASSOCIATIONS), 77 if development else 21
    for kinds, count in _FACT_KINDS:
        drawn = make_facts(kinds, count, seed=seed)
        if development:
            for kind in kinds:
                facts += [fact for fact in drawn if fact.kind == kind][:_DEVELOPMENT_FACTS]
        else:
            facts += drawn
    order = np.random.default_rng(seed).permutation(len(facts))
    return [facts[at] for at in order]


def read_planted(
    mm: MemoryModel,
    facts: Sequence[Fact],
    lengths: Sequence[int],
    corpus: pathlib.Path | None,
    ask: Callable[[list[QuestionMeasured]], None],
) -> None:
    """Read books with facts planted over the first of `lengths` tokens. At each length `ask` gets the questions."""
    characters = int((lengths[-1] + _SPARE_TOKENS) * CHARACTERS_PER_TOKEN)
    books = all_books(corpus, characters)
    positions = [int((place + 0.5) / len(facts) * lengths[0] * 0.98) for place in range(len(facts))]
    haystack = build_haystack(books, mm.tokenizer, lengths, facts, positions, seed=21)
    shift: list[int] = []  # of each part that was read
    for parts in haystack.checkpoints:
        for number in range(len(shift), parts):
            part = haystack.parts[number]
            shift.append(mm.frame.text_begin - part.begin)
            mm.read(part.text, source=f"{number} {part.source}")
        found = []
        for needle in haystack.needles:
            kind = needle.fact.kind if needle.fact.kind in ("paraphrase", "association") else "fact"
            begin, end = (at + shift[needle.part] for at in (needle.begin, needle.end))
            found.append(QuestionMeasured(needle.fact.question, kind, ((begin, end),)))
        ask(found)


def to_answer(questions: Sequence[QuestionMeasured], *, development: bool) -> list[ToAnswer]:
    """Return the questions that something in the memory answers, each with what is right."""
    facts = {fact.question: fact for fact in planted_facts(development=development)}
    return [
        ToAnswer(
            question.words,
            question.kind,
            question.spans,
            question.answers,
            None if question.answers else facts[question.words],
        )
        for question in questions
        if question.kind != ELSEWHERE
    ]


def ask_all(
    mm: MemoryModel, questions: Sequence[QuestionMeasured], name: str = "", *, keep_rankings: bool = False
) -> MeaningReport:
    """Search for every question by each part and by all. Nothing is answered or remembered."""
    mm.searcher.settle()
    core, frame = mm.memory.core, mm.frame
    place: dict[str, Any] = {"stream": frame.os.stream, "resident_from": frame.os.rolling[0]}
    sources: dict[str, list[Span]] = {}
    for block in core.blocks.infos():
        sources.setdefault(block.source, []).append((block.begin, block.end))
    rows = []
    for question in questions:
        inputs = mm.searcher.inputs(build_prompt(mm.tokenizer, question.words))
        ranks: dict[str, int] = {}
        kept: list[dict[str, Any]] = []
        for ranking in core.search.rankings(**inputs, k=_KEPT, **place):
            spans = _groups_of([(page.begin, page.end) for page in ranking.pages])
            ranks[f"{ranking.part}, {ranking.granularity}"] = _rank(question, spans, mm.config.archive.page_tokens)
            if keep_rankings:
                own = {name: getattr(ranking, name) for name in ("part", "granularity", "whole", "unnamed")}
                begins, scores = [page.begin for page in ranking.pages], [float(score) for score in ranking.scores]
                kept.append({**own, "pages": begins, "scores": scores})
        searches = _searches(mm, question, inputs, place, sources, every=keep_rankings)
        ranks |= {one["kinds"]: one["rank"] for one in searches if not one["left_out"]}
        row = {**dataclasses.asdict(question), "ranks": ranks, "searches": searches}
        rows.append({**row, **({"rankings": kept} if keep_rankings else {})})
    towers, encoder = (getattr(mm.frame.parts.get(name), "id", "") for name in ("towers", "encoder"))
    return MeaningReport(
        name=name,
        made_with=provenance(mm.model),
        tokens=mm.stream_tokens,
        pages=[(page.begin, page.end) for page in core.blocks.pages()],
        towers=towers,
        encoder=encoder,
        questions=rows,
    )


def _searches(
    mm: MemoryModel,
    question: QuestionMeasured,
    inputs: Mapping[str, Any],
    place: Mapping[str, Any],
    sources: Mapping[str, Sequence[Span]],
    *,
    every: bool,
) -> list[dict[str, Any]]:
    """Search by each fusion, over all sources and over those that hold no answer.

    `every` takes every set of the parts in place of the fusions. It adds the signs that each confidence is computed
    from, for fitting.
    """
    others = _without(sources, question.spans)
    searches: list[dict[str, Any]] = []
    there = inputs["kinds"]
    subsets = [some for size in range(1, len(there) + 1) for some in itertools.combinations(there, size)]
    for kinds in subsets if every else _fusions(there):
        for left_out in (False, True) if question.spans and others else (False,):
            found = mm.memory.core.search.find(
                **{**inputs, "kinds": kinds},
                max_groups=_GROUPS,
                neighbours=_NEIGHBOURS,
                token_budget=_BUDGET,
                sources=others if left_out else (),
                **place,
            )
            groups = [(group.begin, group.end) for group in found.groups]
            searches.append(
                {
                    "kinds": " + ".join(kinds),
                    "left_out": left_out,
                    "rank": _rank(question, groups, mm.config.archive.page_tokens),
                    "confidence": found.confidence,
                    **({"signs": found.signs} if every else {}),
                }
            )
    return searches


def measure(
    loaded: tuple[Any, Any],
    measuring: Measuring,
    *,
    pack: str | pathlib.Path | None,
    config: MemoryConfig,
    log: Log = silent,
) -> Reports:
    """Read, and ask; return a report of each reading.

    `fitting` reads and asks what the fusion is fitted on: other stories and other facts, with every part's rankings.
    """
    reports: dict[str, Report] = {}
    keep, fitting = measuring.keep, measuring.fitting

    def question(mm: MemoryModel, name: str, questions: list[QuestionMeasured]) -> None:
        log(f"{name}: asking {len(questions)} questions of {mm.stream_tokens:,} tokens")
        report = ask_all(mm, questions, name, keep_rankings=fitting)
        reports[name] = report
        if measuring.answers > 0:
            chosen = drawn_evenly(to_answer(questions, development=fitting), measuring.answers)
            log(f"{name}: answering {len(chosen)} of them")
            report.answered.extend(answer_all(mm, chosen))
        if keep is not None:
            store_report(report.whole(), _report_file(keep, name))

    def opened(name: str) -> MemoryModel:
        folder = None if keep is None else keep / f"{name}.everlong"
        return MemoryModel(*loaded, folder, config, pack=pack)

    if measuring.stories:
        with opened("stories") as mm:
            there = _questions_before(mm, keep, "stories")
            if not there:
                there = read_stories(mm, "fit" if fitting else "test") + questions_of_others(fitting=fitting)
            question(mm, "stories", there)
    if measuring.lengths:
        with opened("planted") as mm:

            def ask(found: list[QuestionMeasured]) -> None:
                question(mm, f"planted {mm.stream_tokens}", found)

            there = _questions_before(mm, keep, f"planted {mm.stream_tokens}")
            if there:
                ask(there)
            else:
                facts, others = planted_facts(development=fitting), questions_of_others(fitting=fitting)
                lengths = sorted(measuring.lengths)
                read_planted(mm, facts, lengths, measuring.corpus, lambda found: ask(found + others))
    return Reports(reports)


def _questions_before(mm: MemoryModel, keep: pathlib.Path | None, name: str) -> list[QuestionMeasured]:
    """Return the questions to a memory that an earlier run has read; none for an empty memory.

    Raises EverlongError where that run was not asked to the end.
    """
    if mm.stream_tokens == 0:
        return []
    if keep is None or not (file := _report_file(keep, name)).exists():
        raise EverlongError(f"{mm.memory.path} was read, and not asked to the end: name another folder")
    questions = json.loads(file.read_text("utf-8"))["questions"]
    return [
        QuestionMeasured(
            q["words"], q["kind"], tuple((first, last) for first, last in q["spans"]), tuple(q.get("answers", ()))
        )
        for q in questions
    ]


def _report_file(keep: pathlib.Path, name: str) -> pathlib.Path:
    return keep / f"{name.replace(' ', '-')}.json"


def _fusions(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every part alone; then heads with words, or with token ids, and each part of meaning; and all."""
    wanted: list[tuple[str, ...]] = [(kind,) for kind in kinds]
    for words in _WORDS:
        others = tuple(kind for kind in kinds if kind not in _WORDS)
        fused = ((), ("meaning",), ("encoder",), ("meaning", "encoder"), others)
        with_words = [*((words, "heads", *some) for some in fused), (words, "encoder")] if words in kinds else []
        wanted += [tuple(kind for kind in kinds if kind in some) for some in with_words]
    return list(dict.fromkeys(some for some in wanted if some))


_WORDS = ("words", "lexical")


def _without(sources: Mapping[str, Sequence[Span]], spans: Sequence[Span]) -> list[str]:
    """Return the sources that hold nothing of these spans."""
    return [
        source
        for source, of_source in sources.items()
        if not any(min(end, last) > max(begin, first) for begin, end in of_source for first, last in spans)
    ]


def _groups_of(pages: Sequence[Span]) -> list[Span]:
    """Return the first four groups of a ranking of pages. A page that stands in no earlier group makes one, with its
    neighbours.
    """
    groups: list[Span] = []
    for begin, end in pages:
        if any(first <= begin < last for first, last in groups):
            continue
        size = end - begin
        groups.append((begin - _NEIGHBOURS * size, end + _NEIGHBOURS * size))
        if len(groups) == _GROUPS:
            break
    return groups


def _rank(question: QuestionMeasured, groups: Sequence[Span], page_tokens: int) -> int:
    """Return the rank of the first right group, from 1; 0 where none is right."""
    return next((rank for rank, group in enumerate(groups, 1) if question.is_right(group, page_tokens)), 0)
