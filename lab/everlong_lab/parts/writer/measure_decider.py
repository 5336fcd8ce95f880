"""Measure Head A on unseen blocks: whether D tells if a block answers a question, and why.

Each question meets three blocks of the same text: one is right, one says the same of another version or name (N1), and
one only has its words (N2). The decision is made from D and the question (deciding.py). Its AUC is the chance that it
is higher for the right block than for the other. The reason is the rationale, out of all three, that the model finds
likeliest. Beside it stands the share of the question's words that the block has. There are two controls, which can tell
nothing of this: D of a block of another text, and no D.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from everlong.data import Book, shipped_books
from everlong.models.pack import Pack
from everlong.models.provenance import provenance
from everlong.models.soft_tokens import embedded
from everlong.parts.writer.decider import KINDS, odds
from everlong.parts.writer.model import WRITER, WriterNet, reading_mode
from everlong.text.encoding import decode_text, encode
from everlong.text.words import words_in
from everlong_lab.corpora.blocks import SINK_TOKENS
from everlong_lab.corpora.fact_blocks import fact_blocks, fact_stories, rationale
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import auc, rate
from everlong_lab.eval.tables import Report, Table, rates_table
from everlong_lab.parts.writer.train import FactStates, log_probs_after_details, read_facts, verdicts_of

DETAILS, POOLED, STRANGE, QUESTION = "D", "D untrained: pooled embeddings", "D of another text", "question alone"
WORDS = "words alone"


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision on one question to one block, by one method."""

    kind: str
    decision: float  # above 0: the block is what is looked for
    named: str  # the decided kind of the block
    reason: str  # kind of the rationale that the model finds likeliest


@dataclasses.dataclass(frozen=True)
class ExplainingReport(Report):
    made_with: dict[str, Any]
    writer: str  # its id
    about: str  # what the questions are to
    tokens: int  # N
    questions: int
    decided: dict[str, dict[str, float]]  # by method

    def tables(self) -> Iterator[Table | str]:
        title = f"{self.questions} questions {self.about}, each to three blocks, N = {self.tokens}"
        columns = ("AUC, N1", "AUC, N2", "right decisions", "right kinds", "right reasons")
        yield rates_table(title, "behind", columns, self.decided)


def unseen_blocks(
    tokenizer: Any, books: Sequence[Book], *, places: int, stories: int, seed: int
) -> dict[str, list[Record]]:
    """Return blocks that nothing is trained on, by what the questions are to.

    There are `places` in books, the shipped ones among them, and `stories` test stories; a number of 0 gives none.
    """
    found = {}
    if places:
        every = list({book.name: book for book in (*books, *shipped_books())}.values())
        found["to generated blocks"] = fact_blocks(tokenizer, every, texts=places, split="test", seed=seed)
    if stories:
        pairs = load_pairs(["fairytale"])
        found["to stories"] = fact_stories(tokenizer, pairs, texts=stories, splits=("test",), seed=seed)
    return found


def run_explaining(
    model: tuple[Any, Any],
    pack: Pack,
    blocks: Sequence[Record],
    about: str = "",
    *,
    work: pathlib.Path,
    log: Log = silent,
) -> ExplainingReport:
    """Measure blocks of `fact_blocks` or `fact_stories`; their states are kept in `work`.

    Raises ValueError for a writer that was trained without such questions.
    """
    network, tokenizer = model
    writer = WriterNet.of_part(pack.parts[WRITER]).to(network.device)
    facts = read_facts(network, tokenizer, blocks, writer.settings.layers, work)
    config = writer.settings
    pooled = WriterNet.untrained(dataclasses.replace(config, decider=None)).to(network.device)
    pooled.decider = writer.decider
    reading = reading_mode(pack.parts[WRITER], network)
    found: dict[str, list[Decision]] = {}
    for at, one in enumerate(facts):
        other = facts[(at // len(KINDS) + 1) * len(KINDS) % len(facts)]  # the same for all three
        own = {
            DETAILS: details_of(writer, network, one),
            POOLED: details_of(pooled, network, one),
            STRANGE: details_of(writer, network, other),
        }
        own[QUESTION] = own[DETAILS][:, :0]
        for name, details in own.items():
            with contextlib.nullcontext() if name == POOLED else reading():
                found.setdefault(name, []).extend(decide(writer, network, tokenizer, one, details))
        log(f"block {at + 1} of {len(facts)}")
    found[WORDS] = by_words(tokenizer, facts)
    return ExplainingReport(
        provenance(network),
        pack.parts[WRITER].id,
        about,
        writer.settings.tokens,
        sum(len(one.block.questions) for one in facts) // len(KINDS),
        {name: figures_of(ones) for name, ones in found.items()},
    )


@torch.no_grad()
def details_of(writer: WriterNet, model: Any, one: FactStates) -> torch.Tensor:
    """Return D [1, n, E] of a block, from its states and its embeddings."""
    return writer.details_of(one.states[None], embedded(model, one.block.ids[SINK_TOKENS:])[None])


@torch.no_grad()
def decide(writer: WriterNet, model: Any, tokenizer: Any, one: FactStates, details: torch.Tensor) -> list[Decision]:
    """Return the decisions on all questions to a block, behind D [1, n, E]."""
    logits = verdicts_of(writer, model, [own.question for own in one.exercises], details.float())[0]
    found = []
    for question, own, verdict in zip(one.block.questions, one.exercises, logits, strict=True):
        likely = dict[str, float]()
        for kind in KINDS:
            reply = encode(tokenizer, f" {rationale(question, kind)}")
            ids = torch.cat([own.prompt, reply[:-1]])
            said = log_probs_after_details(
                writer.settings, model, one.block.ids[:SINK_TOKENS], details, ids, len(reply)
            )[0]
            likely[kind] = float(said.log_softmax(dim=-1).gather(-1, reply[:, None].to(said.device)).mean())
        named = KINDS[int(verdict.argmax())]
        found.append(Decision(question.kind, float(odds(verdict)), named, max(KINDS, key=likely.__getitem__)))
    return found


def by_words(tokenizer: Any, facts: Sequence[FactStates]) -> list[Decision]:
    """Decide by the share of a question's words that the block has, at the threshold that is best on these very
    questions.
    """
    shares = []
    for one in facts:
        there = set(words_in(decode_text(tokenizer, one.block.ids.tolist())))
        for question in one.block.questions:
            own = words_in(question.words)
            shares.append((question.kind, sum(word in there for word in own) / len(own)))
    found = []
    for least in sorted({share for _, share in shares}):
        ones = []
        for kind, share in shares:
            named: str = "right" if share >= least else "other"
            ones.append(Decision(kind, share - least + (1 if named == "right" else 0), named, named))
        found.append(ones)
    return max(found, key=lambda ones: figures_of(ones)["right decisions"])


def figures_of(ones: Sequence[Decision]) -> dict[str, float]:
    """Return AUC, right decisions, right kinds and right reasons.

    AUC is that of right blocks against each kind of wrong ones. In right decisions both classes weigh the same. Kinds
    and reasons are right as often as the decided kind and the likeliest rationale are.
    """
    by_kind = {kind: [one.decision for one in ones if one.kind == kind] for kind in KINDS}
    right, wrong = by_kind["right"], by_kind["other"] + by_kind["words"]
    balanced = (sum(x > 0 for x in right) / len(right) + sum(x <= 0 for x in wrong) / len(wrong)) / 2
    found = {
        "AUC, N1": auc(right, by_kind["other"]),
        "AUC, N2": auc(right, by_kind["words"]),
        "right decisions": balanced,
    }
    for name, hits in (
        ("right kinds", [one.named == one.kind for one in ones]),
        ("right reasons", [one.reason == one.kind for one in ones]),
    ):
        share = rate(hits)
        found |= {name: share.rate, f"{name}, low": share.low, f"{name}, high": share.high}
    return found
