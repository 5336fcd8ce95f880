"""Measure what is lost when few tokens of a block are kept: the Trimmer beside other methods, at equal budgets.

There are three grounds, with texts that nothing was trained on. *Prose*: what follows in a book, behind sinks, K kept
tokens of each of four blocks, and the newest 256 tokens. *Facts*: several planted in one block of a book, each asked
for behind the trimmed block alone. *Stories*: FairytaleQA's val split, blocks of its stories and the questions that
these answer. Trimming is logical: plain transformers go on from a cache that has only the chosen tokens, at their own
positions (models/trimmed_cache.py) and the same ones in all layers and heads. Sinks are kept beside the budget.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from everlong.data import Book, shipped_books
from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import pack_with
from everlong.models.provenance import provenance
from everlong.models.trimmed_cache import go_on
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, tokens_to_keep
from everlong.text.encoding import encode
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, excerpt, questions_of_block, sinks_of, story_tokens
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.facts import PARAPHRASES, Kind, make_facts
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.corpora.planted import with_statements
from everlong_lab.data.qa import qa_lines
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import figures_of, mean_and_stderr
from everlong_lab.eval.tables import Report, Table, store_report, with_error
from everlong_lab.parts.trimmer.scores import KVZIP, LEARNED, NEWEST, ScoredStream, scored_stream
from everlong_lab.training.attention_targets import block_and_sinks
from everlong_lab.training.run import plain

PROSE, FACTS, STORIES = "prose", "facts", "stories"
OVER_ALL = ", over all blocks"  # suffix of a name: K tokens a block on average, wherever they stand
WITH_ADAPTER = ", with the adapter"  # suffix of a name: the pack's adapter works in what is read behind the kept tokens
ALL_KEPT, NONE_KEPT = "all kept", "none kept"
_ENDS = (ALL_KEPT, ALL_KEPT + WITH_ADAPTER, NONE_KEPT)

_BLOCKS = 4  # of a place of prose
_ROLLING_TOKENS = 256
_FOLLOWING_TOKENS = 128
_FACT_KINDS: tuple[Kind, ...] = ("pass-key", "name", "best-thing", "quote")
_QUESTIONS_A_BLOCK = 4
_STDERRS = 1.96
_MEASURES = {"nats": "nats lost a token", "kl": "KL", "right": "tokens it would choose itself"}


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure what is lost where few tokens of a block are kept: by the Trimmer and by other methods."""

    text: tuple[pathlib.Path, ...] = ()  # books to draw places from, beside the shipped ones
    budgets: tuple[int, ...] = (16, 32, 64, 128)  # numbers of tokens to keep of a block of 512, by commas
    places: int = 12  # number of places of prose, 4 blocks each
    fact_blocks: int = 8  # number of blocks of books with five planted facts each
    story_blocks: int = 8  # number of blocks of FairytaleQA's val stories, with up to four questions each
    seed: int = 0  # seed of facts and places; the same seed gives the same questions
    # Folders of packs with other Trimmers; each is a row with its folder's name.
    beside: tuple[pathlib.Path, ...] = ()
    keep: pathlib.Path | None = None  # file for the report, written as the run goes on; `everlong plot` draws it

    def __post_init__(self) -> None:
        if not all(0 < budget < BLOCK_TOKENS for budget in self.budgets):
            raise ValueError(f"budgets are {self.budgets}, expected some of 1 to {BLOCK_TOKENS - 1}")


@dataclasses.dataclass(frozen=True)
class LossIncrease:
    """The loss at one place or question, by one method and budget, as means over tokens."""

    nats: float  # lost against the teacher, which has all tokens
    kl: float  # from the teacher
    right: float  # share of tokens that it would choose itself


@dataclasses.dataclass(frozen=True)
class MeasuredQuestion:
    """Tokens that are read behind a trimmed stream; those from `first` on are scored."""

    ids: torch.Tensor  # int64 [S]
    first: int


@dataclasses.dataclass(frozen=True)
class TrimmingReport(Report):
    made_with: dict[str, Any]
    trimmer: str  # its id
    config: dict[str, Any]
    sizes: dict[str, int]  # places or questions by ground
    # By ground, method and budget: nats, kl, right, each with its standard error.
    trimming: dict[str, dict[str, dict[str, dict[str, float]]]]
    # By ground and budget: the Trimmer minus the best other method that reads a block once, at the same places.
    differences: dict[str, dict[str, dict[str, Any]]]
    kept: list[dict[str, Any]]  # a text, its tokens and which of them each method keeps

    def tables(self) -> Iterator[Table | str]:
        """Yield a table for each ground and measure: methods down, budgets across, each a mean and half its 95 %
        interval.
        """
        budgets = [str(budget) for budget in self.config["budgets"]]
        for ground, methods in self.trimming.items():
            for measure, title in _MEASURES.items():
                if measure == "right" and ground == PROSE:
                    continue

                def cell(found: Mapping[str, float], measure: str = measure) -> str:
                    return with_error(found, measure, times=_STDERRS)

                ends = ", ".join(f"{name}: {cell(methods[name]['0'])}" for name in _ENDS if name in methods)
                steps = (self.differences[ground][budget][measure] for budget in budgets)
                yield Table(
                    f"{ground}, n = {self.sizes[ground]}: {title} ({ends})",
                    ("kept of 512", *budgets),
                    [
                        *(
                            (method, *(cell(found[b]) if b in found else "" for b in budgets))
                            for method, found in methods.items()
                            if method not in _ENDS
                        ),
                        (
                            "Trimmer less the best other",
                            *(f"{d['difference']:+.3f} ±{_STDERRS * d['stderr']:.3f} ({d['best']})" for d in steps),
                        ),
                    ],
                )


def prose_streams(
    tokenizer: Any, books: Sequence[Book], count: int, random: np.random.Generator
) -> Iterator[tuple[torch.Tensor, int, list[MeasuredQuestion]]]:
    """Yield for each place: the ids that are read, the number of blocks in them, and what follows."""
    read = SINK_TOKENS + _BLOCKS * BLOCK_TOKENS + _ROLLING_TOKENS
    for number in range(count):
        ids = excerpt(tokenizer, books[number % len(books)], read + _FOLLOWING_TOKENS, random)
        # The newest token is read again: its logits predict the first token of what follows.
        yield ids[: read - 1], _BLOCKS, [MeasuredQuestion(ids[read - 1 :], 1)]


def fact_streams(
    tokenizer: Any, books: Sequence[Book], count: int, random: np.random.Generator
) -> Iterator[tuple[torch.Tensor, int, list[MeasuredQuestion]]]:
    """Yield blocks of books with a fact of every kind and one that is asked for in other words."""
    log = [PARAPHRASES[at] for at in random.permutation(len(PARAPHRASES))]
    for number in range(count):
        facts = [*make_facts(_FACT_KINDS, 1, seed=int(random.integers(2**31))), log[number % len(log)]]
        text = excerpt(tokenizer, books[number % len(books)], BLOCK_TOKENS + SINK_TOKENS, random)
        order = [facts[at] for at in random.permutation(len(facts))]
        block, _, _ = with_statements(
            tokenizer, text[SINK_TOKENS:], [fact.statement for fact in order], BLOCK_TOKENS, random
        )
        question = [_question(tokenizer, fact.question, fact.answer) for fact in order]
        yield torch.cat([sinks_of(tokenizer, text), block]), 1, question


def story_streams(
    tokenizer: Any, count: int, random: np.random.Generator
) -> Iterator[tuple[torch.Tensor, int, list[MeasuredQuestion]]]:
    """Yield a block of each of `count` stories: the first with enough questions."""
    pairs = load_pairs(["fairytale"])
    names = {line["story"] for line in qa_lines("fairytale-val-stories")}
    of_val = [at for at, text in enumerate(pairs.texts) if text.name in names]
    for at in (of_val[k] for k in random.permutation(len(of_val))[:count]):
        ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
        blocks = (len(ids) - SINK_TOKENS) // BLOCK_TOKENS
        own = {block: questions_of_block(pairs, at, spans, block) for block in range(blocks)}
        block = max(own, key=lambda b: (min(len(own[b]), _QUESTIONS_A_BLOCK), -b), default=None)
        if block is None or not own[block]:
            continue
        chosen = sorted(int(q) for q in random.permutation(own[block])[:_QUESTIONS_A_BLOCK])
        stream = torch.cat([ids[:SINK_TOKENS], ids[block_and_sinks(block)[0, SINK_TOKENS:]]])
        question = [_question(tokenizer, pairs.questions[q].words, pairs.questions[q].answers[0]) for q in chosen]
        yield stream, 1, question


def measure(
    loaded: tuple[Any, Any], measuring: Measuring, *, pack: str | pathlib.Path | None, log: Log = silent
) -> TrimmingReport:
    """Measure every method at every budget on the three grounds, in turns.

    Shipped books come after the named ones. The report is kept after every stream; it is then what fewer places or
    blocks of the same seed would give. Raises EverlongError where the pack has no Trimmer.
    """
    network, tokenizer = loaded
    books = list({book.name: book for book in (*books_of(measuring.text), *shipped_books())}.values())
    books = [books[at] for at in np.random.default_rng(measuring.seed).permutation(len(books))]
    own_pack = pack_with(TRIMMER, "Trimmer", network, pack)
    packs = {folder.name: pack_with(TRIMMER, "Trimmer", network, folder) for folder in measuring.beside}
    packs[LEARNED] = own_pack
    trimmers = {name: TrimmerNet.of_part(own.parts[TRIMMER]) for name, own in packs.items()}
    adapter = own_pack.parts.get("adapter")
    attached = None if adapter is None else AttachedMaps(LowRankMaps.of_part(adapter), network)
    drawn = [np.random.default_rng((measuring.seed, number)) for number in range(6)]
    counts = {PROSE: measuring.places, FACTS: measuring.fact_blocks, STORIES: measuring.story_blocks}
    streams = {
        PROSE: prose_streams(tokenizer, books, measuring.places, drawn[0]),
        FACTS: fact_streams(tokenizer, books, measuring.fact_blocks, drawn[1]),
        STORIES: story_streams(tokenizer, measuring.story_blocks, drawn[2]),
    }
    random = dict(zip(streams, drawn[3:], strict=True))
    lost: dict[str, dict[tuple[str, int], list[LossIncrease]]] = {}
    kept: dict[str, dict[str, Any]] = {}
    by = provenance(network)

    def report() -> TrimmingReport:
        return TrimmingReport(
            by,
            own_pack.parts[TRIMMER].id,
            plain(measuring),
            {ground: len(own[NONE_KEPT, 0]) for ground, own in lost.items()},
            {ground: figures_of(own, _MEASURES) for ground, own in lost.items()},
            {ground: _differences(own, measuring.budgets) for ground, own in lost.items()},
            list(kept.values()),
        )

    for number in range(max(counts.values())):
        for ground in streams:
            found = next(streams[ground], None)
            if found is None:
                continue
            ids, blocks, asked = found
            stream = scored_stream(network, ids, blocks, trimmers, random[ground])
            for question in asked:
                for key, one in losses(network, stream, question, measuring.budgets, attached).items():
                    lost.setdefault(ground, {}).setdefault(key, []).append(one)
            kept.setdefault(ground, _text_with_kept(tokenizer, ground, stream, measuring.budgets))
            store_report(report().to_dict(), measuring.keep)
            log(f"{ground}: {number + 1} of {counts[ground]}")
    return report()


def chosen(stream: ScoredStream, budget: int) -> dict[str, torch.Tensor]:
    """Return by method the kept tokens of a stream's blocks: int64 [blocks * budget], ascending, as places in the
    stream.
    """
    found = {}
    for name, scores in stream.scores.items():
        of_blocks = [
            tokens_to_keep(own, budget) + block * BLOCK_TOKENS
            for block, own in enumerate(torch.split(scores, BLOCK_TOKENS))
        ]
        found[name] = SINK_TOKENS + torch.cat(of_blocks)
        if stream.blocks > 1 and name in (NEWEST, LEARNED):
            found[name + OVER_ALL] = SINK_TOKENS + tokens_to_keep(scores, stream.blocks * budget)
    return found


@torch.no_grad()
def losses(
    model: Any,
    stream: ScoredStream,
    question: MeasuredQuestion,
    budgets: Sequence[int],
    adapter: AttachedMaps | None = None,
) -> dict[tuple[str, int], LossIncrease]:
    """Return the losses by method and budget. Budget 0 has what all and what none of the blocks' tokens give."""
    end = SINK_TOKENS + stream.blocks * BLOCK_TOKENS
    sinks, newest = torch.arange(SINK_TOKENS), torch.arange(end, len(stream.ids))
    teacher = _log_probs(model, stream, torch.arange(len(stream.ids))[None], question)[0]
    nothing = _log_probs(model, stream, torch.cat([sinks, newest])[None], question)[0]
    found = {(ALL_KEPT, 0): _lost(teacher, teacher, question), (NONE_KEPT, 0): _lost(teacher, nothing, question)}
    if adapter is not None:
        with adapter.active():
            all_kept = _log_probs(model, stream, torch.arange(len(stream.ids))[None], question)[0]
        found[ALL_KEPT + WITH_ADAPTER, 0] = _lost(teacher, all_kept, question)
    for budget in budgets:
        by_method = chosen(stream, budget)
        kept = torch.stack([torch.cat([sinks, own, newest]) for own in by_method.values()])
        said = _log_probs(model, stream, kept, question)
        for name, own in zip(by_method, said, strict=True):
            found[name, budget] = _lost(teacher, own, question)
        if adapter is not None:
            with adapter.active():
                own = _log_probs(model, stream, kept[list(by_method).index(LEARNED)][None], question)[0]
            found[LEARNED + WITH_ADAPTER, budget] = _lost(teacher, own, question)
    return found


def _log_probs(model: Any, stream: ScoredStream, kept: torch.Tensor, question: MeasuredQuestion) -> torch.Tensor:
    """Return log probabilities [B, scored, V] fp32 behind the kept tokens [B, K]."""
    rows = len(question.ids) - question.first
    ids = question.ids[:-1][None].expand(len(kept), -1)
    return torch.log_softmax(
        go_on(model, stream.read.cache, kept, ids, len(stream.ids), logits_to_keep=rows).float(), dim=-1
    )


def _lost(teacher: torch.Tensor, own: torch.Tensor, question: MeasuredQuestion) -> LossIncrease:
    """Return the losses from log probabilities [scored, V]."""
    targets = question.ids[question.first :, None].to(own.device)
    nats = (teacher.gather(1, targets) - own.gather(1, targets)).mean()
    kl = (teacher.exp() * (teacher - own)).sum(dim=-1).mean()
    right = (own.argmax(dim=-1) == targets[:, 0]).float().mean()
    return LossIncrease(float(nats), float(kl), float(right))


def _differences(
    lost: Mapping[tuple[str, int], Sequence[LossIncrease]], budgets: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Return by measure the best other method, and the Trimmer minus it at the same places, with its standard error.

    KVzip does not count as another method: it reads a block twice, and the Trimmer learns from it.
    """
    found: dict[str, dict[str, Any]] = {}
    over_all = any(method.endswith(OVER_ALL) for method, _ in lost)
    for budget in budgets:
        mine = lost[LEARNED + OVER_ALL if over_all else LEARNED, budget]
        others = {
            method: ones
            for (method, own), ones in lost.items()
            if own == budget and not method.startswith((LEARNED, KVZIP))
        }
        of_budget: dict[str, Any] = {}
        for measure, sign in (("nats", -1), ("kl", -1), ("right", 1)):
            means = {m: sign * float(np.mean([getattr(one, measure) for one in ones])) for m, ones in others.items()}
            best = max(means, key=means.__getitem__)
            steps = [getattr(a, measure) - getattr(b, measure) for a, b in zip(mine, others[best], strict=True)]
            mean, stderr = mean_and_stderr(steps)
            of_budget[measure] = {"best": best, "difference": mean, "stderr": stderr if math.isfinite(stderr) else 0.0}
        found[str(budget)] = of_budget
    return found


def _text_with_kept(tokenizer: Any, ground: str, stream: ScoredStream, budgets: Sequence[int]) -> dict[str, Any]:
    """Return a block of a stream token by token, and what each method keeps of it at the budget
    nearest to an eighth.
    """
    budget = min(budgets, key=lambda own: abs(own - BLOCK_TOKENS // 8))
    first = SINK_TOKENS + (stream.blocks - 1) * BLOCK_TOKENS
    words = [tokenizer.decode([token]) for token in stream.ids[first : first + BLOCK_TOKENS].tolist()]
    kept = {
        name: [int(at) - first for at in own if first <= at < first + BLOCK_TOKENS]
        for name, own in chosen(stream, budget).items()
        if not name.endswith(OVER_ALL)
    }
    return {"ground": ground, "budget": budget, "words": words, "kept": kept}


def _question(tokenizer: Any, question: str, answer: str) -> MeasuredQuestion:
    prompt = build_prompt(tokenizer, question).ids
    return MeasuredQuestion(torch.cat([prompt, encode(tokenizer, answer)]), len(prompt))
