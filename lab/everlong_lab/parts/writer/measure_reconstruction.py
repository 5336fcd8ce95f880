"""Measure Head B: what can be said again from D, word by word and without help, beside the most that vectors allow.

Pages are of books, and each says a code. D is made of the page alone, N vectors for its tokens. The model goes on
behind D by itself, greedily. The bound is the same number of vectors, fitted to the one page by gradient steps through
the model (arXiv 2502.13063 measures how much such vectors hold). No writer can be expected to reach it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from everlong.data import Book, shipped_books
from everlong.models.pack import Pack
from everlong.models.provenance import provenance
from everlong.models.releases import cache_argument
from everlong.models.soft_tokens import after_soft_tokens, embedded, frozen, with_soft_tokens
from everlong.parts.writer.model import WRITER, WriterNet, reading_mode
from everlong.text.encoding import decode_text, encode
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.fact_blocks import fact_blocks
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import with_stderr
from everlong_lab.eval.tables import Report, Table
from everlong_lab.parts.writer.train import AGAIN, around, read_facts

DETAILS, POOLED, FITTED = "D", "D untrained: pooled embeddings", "vectors fitted to the page"
_FITTING_RATE = 0.02  # learning rate of Adam, in sizes of an embedding


@dataclasses.dataclass(frozen=True)
class Pages:
    """The pages to say again. Raises ValueError for pages longer than a block."""

    count: int
    page_tokens: int = 64
    tokens: Sequence[int] = (4, 8, 16, 32)  # vectors of a page
    fitted: int = 4  # number of the pages to fit vectors to, too
    steps: int = 200  # of the fitting
    seed: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.page_tokens <= BLOCK_TOKENS:
            raise ValueError(f"pages of {self.page_tokens} tokens: expected 1 to {BLOCK_TOKENS}")


@dataclasses.dataclass(frozen=True)
class Page:
    sinks: torch.Tensor  # int64 [SINK_TOKENS]
    ids: torch.Tensor  # int64 [n]
    states: torch.Tensor  # [n, width]
    code: str  # the code that the page says


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """The result for one page, by one method and N."""

    same: float  # share of tokens that are right at their place
    rouge: float  # ROUGE-L of tokens
    code: bool


@dataclasses.dataclass(frozen=True)
class ReconstructingReport(Report):
    made_with: dict[str, Any]
    writer: str  # its id
    pages: int
    page_tokens: int
    steps: int  # of the fitting
    again: dict[str, dict[str, dict[str, float]]]  # by method and N

    def tables(self) -> Iterator[Table | str]:
        yield Table(
            f"{self.page_tokens} tokens said again by N vectors, {self.pages} pages: ROUGE-L, exact (codes kept)",
            ("N", *next(iter(self.again.values()))),
            [
                (
                    f"{name}, {next(iter(found.values()))['pages']:.0f} pages",
                    *(
                        f"{own['ROUGE-L']:.2f} ±{own['ROUGE-L stderr']:.2f}, {own['same']:.2f} ({own['codes']:.0%})"
                        for own in found.values()
                    ),
                )
                for name, found in self.again.items()
            ],
        )


def run_reconstructing(
    model: tuple[Any, Any],
    pack: Pack,
    pages: Pages,
    *,
    work: pathlib.Path,
    books: Sequence[Book] = (),
    log: Log = silent,
) -> ReconstructingReport:
    """Measure the pages. States are kept in `work`."""
    network, tokenizer = model
    writer = WriterNet.of_part(pack.parts[WRITER]).to(network.device)
    pooled = WriterNet.untrained(writer.settings).to(network.device)
    books = list({book.name: book for book in (*books, *shipped_books())}.values())
    found: dict[tuple[str, int], list[Reconstruction]] = {}
    reading = reading_mode(pack.parts[WRITER], network)
    drawn = pages_of(network, tokenizer, writer, books, pages, work)
    for number, page in enumerate(drawn):
        embeddings = embedded(network, page.ids)
        for count in pages.tokens:
            with torch.no_grad():
                own = {
                    DETAILS: writer.details(page.states, embeddings, count),
                    POOLED: pooled.details(page.states, embeddings, count),
                }
            if number < pages.fitted:
                own[FITTED] = fit_vectors(writer, network, tokenizer, page, own[POOLED], pages.steps)
            for name, vectors in own.items():
                with reading() if name == DETAILS else contextlib.nullcontext():
                    said = reconstruct(writer, network, tokenizer, page, vectors)
                found.setdefault((name, count), []).append(compare(tokenizer, page, said))
        log(f"page {number + 1} of {len(drawn)}")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for (name, count), ones in found.items():
        figures.setdefault(name, {})[str(count)] = {
            "same": sum(one.same for one in ones) / len(ones),
            **with_stderr("ROUGE-L", (one.rouge for one in ones)),
            "codes": sum(one.code for one in ones) / len(ones),
            "pages": len(ones),
        }
    part = pack.parts[WRITER]
    return ReconstructingReport(provenance(network), part.id, len(drawn), pages.page_tokens, pages.steps, figures)


def pages_of(
    model: Any, tokenizer: Any, writer: WriterNet, books: Sequence[Book], wanted: Pages, work: pathlib.Path
) -> list[Page]:
    """Return pages around a code, one of each block."""
    page_tokens = wanted.page_tokens
    blocks = fact_blocks(tokenizer, books, texts=wanted.count, split="test", seed=wanted.seed)
    pages = []
    for one in read_facts(model, tokenizer, blocks, writer.settings.layers, work):
        ids = one.block.ids[SINK_TOKENS:]
        for question in one.block.questions:
            if question.kind != "right" or question.answers[0] not in decode_text(tokenizer, ids.tolist()):
                continue
            last = next(
                at for at in range(1, len(ids) + 1) if question.answers[0] in decode_text(tokenizer, ids[:at].tolist())
            )
            first = min(max(0, last - page_tokens * 3 // 4), len(ids) - page_tokens)
            own = slice(first, first + page_tokens)
            pages.append(Page(one.block.ids[:SINK_TOKENS], ids[own], one.states[own], question.answers[0]))
            break
        if len(pages) == wanted.count:
            break
    return pages


@torch.no_grad()
def reconstruct(writer: WriterNet, model: Any, tokenizer: Any, page: Page, vectors: torch.Tensor) -> torch.Tensor:
    """Return int64 [n]: what the model says behind vectors [N, E], the likeliest token each time."""
    before, behind = around(writer.settings, page.sinks, encode(tokenizer, AGAIN))
    cache = DynamicCache(config=model.config)
    given: dict[str, Any] = {"inputs_embeds": with_soft_tokens(model, before, vectors[None], behind)}
    said: list[torch.Tensor] = []
    for _ in range(len(page.ids)):
        out = model(**given, **{cache_argument(model): cache}, use_cache=True, logits_to_keep=1)
        said.append(out.logits[0, -1].argmax())
        given = {"input_ids": said[-1][None, None]}
    return torch.stack(said).cpu()


def fit_vectors(
    writer: WriterNet, model: Any, tokenizer: Any, page: Page, start: torch.Tensor, steps: int
) -> torch.Tensor:
    """Fit vectors [N, E] to a page, from `start`, by Adam on the page's cross entropy with the right tokens before
    each.
    """
    before, behind = around(writer.settings, page.sinks, encode(tokenizer, AGAIN))
    vectors = start.detach().clone().float().requires_grad_()
    optimizer = torch.optim.Adam([vectors], lr=_FITTING_RATE * float(writer.reader.embedding_scale))
    ids = page.ids.to(model.device)
    with frozen(model):
        for _ in range(steps):
            logits = after_soft_tokens(model, before, vectors[None], torch.cat([behind, page.ids[:-1]]), len(ids))
            loss = torch.nn.functional.cross_entropy(logits[0], ids)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return vectors.detach()


def compare(tokenizer: Any, page: Page, predicted: torch.Tensor) -> Reconstruction:
    words, own = predicted.tolist(), page.ids.tolist()
    same = sum(a == b for a, b in zip(words, own, strict=True)) / len(own)
    return Reconstruction(same, rouge_l(words, own), page.code in decode_text(tokenizer, words))


def rouge_l(predicted: Sequence[int], wanted: Sequence[int]) -> float:
    """Return the F1 of the longest common subsequence (Lin, 2004)."""
    row = [0] * (len(wanted) + 1)
    for token in predicted:
        before = 0
        for at, own in enumerate(wanted):
            before, row[at + 1] = row[at + 1], before + 1 if token == own else max(row[at + 1], row[at])
    return 2 * row[-1] / (len(predicted) + len(wanted)) if predicted or wanted else 0.0
