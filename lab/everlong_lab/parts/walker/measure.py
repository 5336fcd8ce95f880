"""Measure whether the Walker loads all that a question needs.

Chains of one to three facts each are planted in books (corpora/chains.py). The Walker is compared with searches that do
not walk, and with walks that did not learn. Each method may load the same number of page groups, a page and its
neighbours each. A question counts where the pages of all its facts are among them. The names, things and words of the
statements are in nothing that was trained on.

* flat: the first groups of one search.
* flat twice: half of the groups (the larger half), then one search with the question and what the first group says.
* beam: the Walker's own ways, the most similar first. It adds, with weights, shares of the question's words and meaning
  and of what the page says that leads there. Of several weightings, it takes the best on these very questions.
* PageRank: personalised, over pages and rare words (networkx), as HippoRAG 2 ranks passages (arXiv 2502.14802). Edges
  lead from a page to its last_page, and to words that few pages have. It restarts at the question's words and at the
  pages that a flat search names. Of several dampings, it takes the best on these very questions.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.models.pack import pack_of_model
from everlong.parts.walker.model import FEATURES, WalkerNet, shipped_walker, walker_of
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.multi_hop import multi_hop_text
from everlong_lab.corpora.walks import draw_walk_texts
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.tables import Report, Table
from everlong_lab.parts.walker.memories import (
    NEIGHBOURS,
    PAGE_TOKENS,
    WalkMemory,
    WalkQuestion,
    read_walk_texts,
    towers_of,
)
from everlong_lab.parts.walker.train import GROUP_TOKENS, walk_for

LEARNED, FLAT, TWICE, BEAM, PAGERANK = "Walker", "flat", "flat twice", "beam", "PageRank"
METHODS = (FLAT, TWICE, BEAM, PAGERANK, LEARNED)
LOADS = (3, 4, 6)

_BEAMS = tuple((said, run) for said in (0.25, 0.5, 1.0, 2.0) for run in (0.0, 1.0))
_DAMPINGS = (0.5, 0.85)
_RARE_SHARE = 0.05  # largest share of pages that may have a word of PageRank's graph
_SEEDS = 32  # pages of the flat search at which PageRank restarts
_DRAWS = 10_000
Page = tuple[int, int]  # block, page


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Measure whether the Walker loads all that a question needs, beside flat searches, a beam and PageRank."""

    text: tuple[pathlib.Path, ...] = ()  # books, author--title.txt; by default the shipped ones
    texts: int = 6  # number of texts with chains of facts, from these books in turn
    tokens: int = 20_000  # number of tokens in a text
    chains: int = 39  # chains of facts in a text: a third each of one, two and three facts
    loads: tuple[int, ...] = LOADS  # numbers of page groups to load, by commas
    by_words: bool = False  # search by words alone; the model reads nothing
    work: pathlib.Path = pathlib.Path("runs/eval-walker")  # folder for vectors; a run that was cut short goes on there
    seed: int = 1  # seed of the chains and of their places
    # Questions to ask in place of chains: MuSiQue's or HotpotQA's, as HippoRAG prepares them.
    questions: pathlib.Path | None = None
    passages: pathlib.Path | None = None  # the corpus of these questions

    def __post_init__(self) -> None:
        if (self.questions is None) != (self.passages is None):
            raise ValueError("--questions and --passages belong together")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Which questions of one kind had all of their pages loaded."""

    method: str
    loads: int
    hops: int
    right: tuple[bool, ...]

    @property
    def share(self) -> float:
        return float(np.mean(self.right))


@dataclasses.dataclass(frozen=True)
class WalkerReport(Report):
    tokens: int  # in a text
    texts: tuple[str, ...]
    towers: str  # id of the towers, "" for words alone
    measured: tuple[Measured, ...]
    chosen: Mapping[str, str]  # the best of the other methods' settings
    loaded: Mapping[int, float]  # mean number of page groups that the Walker itself loaded, by the number allowed
    milliseconds: Mapping[str, float]  # processor time of a question, for a flat search and for one with a walk

    @property
    def loads(self) -> list[int]:
        return sorted({row.loads for row in self.measured})

    def of(self, method: str, loads: int, hops: int | None = None) -> npt.NDArray[np.bool_]:
        """Return whether each question is right. Without `hops`, these are all questions that need
        more than one fact.
        """
        rows = [row for row in self.measured if row.method == method and row.loads == loads]
        rows = [row for row in rows if (row.hops > 1 if hops is None else row.hops == hops)]
        return np.concatenate([np.array(row.right, dtype=bool) for row in rows])

    def ahead(self, method: str, loads: int, hops: int | None = None) -> tuple[float, float, float]:
        """Return how far the Walker's share is above a method's, with the 95 % interval of a paired bootstrap."""
        gain = self.of(LEARNED, loads, hops).astype(float) - self.of(method, loads, hops)
        return float(gain.mean()), *bootstrap(gain)

    def to_dict(self) -> dict[str, Any]:
        shares = [
            {"method": m.method, "loads": m.loads, "facts": m.hops, "share": m.share, "questions": len(m.right)}
            | dict(zip(("low", "high"), bootstrap(np.array(m.right, dtype=float)), strict=True))
            for m in self.measured
        ]
        ahead = {str(count): {method: self.ahead(method, count) for method in METHODS[:-1]} for count in self.loads}
        said = {name: value for name, value in vars(self).items() if name != "measured"}
        return {**said, "shares": shares, "ahead": ahead}

    def tables(self) -> Iterator[Table | str]:
        rows = []
        for count in self.loads:
            for hops in sorted({row.hops for row in self.measured}):
                cells = []
                for method in METHODS:
                    right = self.of(method, count, hops).astype(float)
                    low, high = bootstrap(right)
                    cells.append(f"{100 * right.mean():.0f} ({100 * low:.0f}-{100 * high:.0f})")
                rows.append((str(count), str(hops), *cells))
        title = f"all pages of a question loaded; {len(self.texts)} texts of {self.tokens:,} tokens"
        yield Table(title, ("loads", "facts", *METHODS), rows)
        times = ", ".join(f"{what} {took:.1f} ms" for what, took in self.milliseconds.items())
        yield f"a question: {times}"
        for count in self.loads:
            gains = []
            for method in METHODS[:-1]:
                gain, low, high = self.ahead(method, count)
                gains.append(f"{method} {100 * gain:+.0f} ({100 * low:+.0f} to {100 * high:+.0f})")
            yield f"{count} loads, two and three facts, the Walker ahead of: {', '.join(gains)}"


def measure(
    loaded: tuple[Any, Any], measuring: Measuring, *, pack: str | pathlib.Path | None, log: Log = silent
) -> WalkerReport:
    """Measure the pack's Walker, or the shipped one, searching by the pack's towers.

    Raises EverlongError without a Walker.
    """
    network, tokenizer = loaded
    found = pack_of_model(network, pack)
    walker = walker_of(found) or shipped_walker()
    if walker is None:
        raise EverlongError("there is no Walker: `everlong train walker` makes one")
    if measuring.questions is not None and measuring.passages is not None:
        drawn = [multi_hop_text(tokenizer, measuring.questions, measuring.passages)]
    else:
        drawn = draw_walk_texts(
            tokenizer,
            books_of(measuring.text),
            texts=measuring.texts,
            tokens=measuring.tokens,
            chains=measuring.chains,
            split="test",
            seed=measuring.seed,
        )
    towers = None if measuring.by_words else towers_of(found)

    def report(what: str, done: int, of: int) -> None:
        log(f"{what}: {done} of {of}")

    memories = read_walk_texts(network, tokenizer, towers, drawn, measuring.work, progress=report)
    return measure_walker(walker, memories, towers="" if towers is None else towers[0], loads=measuring.loads, log=log)


def bootstrap(values: npt.NDArray[np.float64], *, draws: int = _DRAWS, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a mean over questions, by resampling them."""
    random = np.random.default_rng(seed)
    means = values[random.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def measure_walker(
    walker: WalkerNet,
    memories: Sequence[WalkMemory],
    *,
    towers: str = "",
    loads: Sequence[int] = LOADS,
    log: Log = silent,
) -> WalkerReport:
    """Ask every question by every method. Raises EverlongError without networkx."""
    questions = [(memory, question) for memory in memories for question in memory.questions]
    policy = walker.policy()
    graphs = {id(memory): _page_graph(memory) for memory in memories}
    orders = {
        f"damping {damping}": [
            _pagerank_order(memory, asking, damping, graphs[id(memory)]) for memory, asking in questions
        ]
        for damping in _DAMPINGS
    }
    measured, chosen = [], {}
    loaded: dict[int, list[int]] = collections.defaultdict(list)
    milliseconds = {}

    def by(ask: Callable[[WalkMemory, WalkQuestion, int], set[Page]], count: int) -> list[bool]:
        return [_holds(ask(memory, question, count), question) for memory, question in questions]

    def by_walk(memory: WalkMemory, question: WalkQuestion, count: int, of: _core.WalkerPolicy = policy) -> set[Page]:
        result = walk_for(memory, question, of, count)
        assert result.walk is not None
        if of is policy:
            loaded[count].append(len(result.walk.loads))
        return _pages(result.groups)

    for count in loads:
        outcomes: dict[str, list[bool]] = {TWICE: by(_twice, count)}
        for method, ask in ((FLAT, _flat), (LEARNED, by_walk)):
            started = time.process_time()
            outcomes[method] = by(ask, count)
            milliseconds[f"{method}, {count} loads"] = 1e3 * (time.process_time() - started) / len(questions)
        beams = {
            f"said {said}, run {run}": by(functools.partial(by_walk, of=_beam(said, run)), count)
            for said, run in _BEAMS
        }
        ranks = {
            name: [_holds(_first_groups(m, order, count), q) for (m, q), order in zip(questions, of, strict=True)]
            for name, of in orders.items()
        }
        for method, settings in ((BEAM, beams), (PAGERANK, ranks)):
            best = max(settings, key=lambda name: sum(settings[name]))
            chosen[f"{method}, {count} loads"] = best
            outcomes[method] = settings[best]
        for method in METHODS:
            for hops in sorted({question.hops for _, question in questions}):
                right = [r for r, (_, q) in zip(outcomes[method], questions, strict=True) if q.hops == hops]
                measured.append(Measured(method, count, hops, tuple(right)))
        log(f"{count} loads: " + ", ".join(f"{name} {np.mean(right):.3f}" for name, right in outcomes.items()))
    return WalkerReport(
        tokens=len(memories[0].text.ids),
        texts=tuple(memory.text.name for memory in memories),
        towers=towers,
        measured=tuple(measured),
        chosen=chosen,
        loaded={count: float(np.mean(of)) for count, of in loaded.items()},
        milliseconds=milliseconds,
    )


def _holds(pages: set[Page], question: WalkQuestion) -> bool:
    return all((gold.block, gold.page) in pages for gold in question.gold)


def _pages(groups: Sequence[_core.FoundGroup]) -> set[Page]:
    return {(page.block, page.page) for group in groups for page in group.pages}


def _search(memory: WalkMemory, request: Mapping[str, Any], loads: int) -> list[_core.FoundGroup]:
    return memory.core.search.find(**request, max_groups=loads, token_budget=loads * GROUP_TOKENS).groups


def _flat(memory: WalkMemory, question: WalkQuestion, loads: int) -> set[Page]:
    return _pages(_search(memory, question.request(), loads))


def _twice(memory: WalkMemory, question: WalkQuestion, loads: int) -> set[Page]:
    """Search twice: the second search has the words and vectors of the question and of the first group's best page.

    The vectors of both weigh the same.
    """
    groups = _search(memory, question.request(), -(-loads // 2))
    if not groups:
        return set()
    pages = _pages(groups)
    best = groups[0].pages[int(np.argmax(groups[0].page_scores))]
    request = question.request()
    request["token_ids"] = np.concatenate([question.token_ids, memory.core.blocks.token_ids(0, best.begin, best.end)])
    if question.meaning is not None:
        vectors = _vectors_of(memory, best)
        request["meaning_query"] = np.concatenate([question.meaning / 2, vectors / (2 * max(1, len(vectors)))])
    for group in _search(memory, request, 2 * loads):
        more = pages | _pages([group])
        if len(more) > loads * (1 + 2 * NEIGHBOURS):
            break
        pages = more
    return pages


def _vectors_of(memory: WalkMemory, page: _core.PageRef) -> npt.NDArray[np.float32]:
    """Return unit vectors [n, dimension] of a page."""
    (tensor,) = memory.core.blocks.tensors(page.block).values()
    block = memory.core.blocks.info(page.block)
    a_page = len(tensor) // -(-(block.end - block.begin) // PAGE_TOKENS)
    rows = tensor[page.page * a_page : (page.page + 1) * a_page].astype(np.float32)
    unit: npt.NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return unit


def _beam(last_page: float, run: float) -> _core.WalkerPolicy:
    """Return a policy that adds similarities, and never ends a walk."""
    weights = {
        "asked_words": 1.0,
        "asked_meaning": 1.0,
        "said_words": last_page,
        "said_meaning": last_page,
        "shared_run": run,
    }
    inner = np.zeros((2, len(FEATURES)), dtype=np.float32)
    for name, weight in weights.items():
        inner[0, FEATURES.index(name)] = weight
    inner[1, FEATURES.index("stop")] = 1.0
    outer = np.array([1.0, -100.0], dtype=np.float32)
    return _core.WalkerPolicy(inner, np.zeros(2, dtype=np.float32), outer, 0.0)


def _page_graph(memory: WalkMemory) -> Any:
    """Return a networkx graph. Its nodes are pages, as (block, page), and token ids that few pages have."""
    try:
        import networkx
    except ImportError:
        raise EverlongError('networkx is not installed: pip install "everlong[graph]"') from None
    pages = memory.core.blocks.pages_of(0, 0, len(memory.text.ids))
    ids = memory.text.ids.numpy()
    having: dict[int, list[Page]] = collections.defaultdict(list)
    for page in pages:
        for token in np.unique(ids[page.begin : page.end]).tolist():
            having[token].append((page.block, page.page))
    graph = networkx.Graph()
    graph.add_nodes_from((page.block, page.page) for page in pages)
    for before, after in itertools.pairwise(pages):
        graph.add_edge((before.block, before.page), (after.block, after.page), weight=1.0)
    whole = math.log1p(len(pages))
    for token, of in having.items():
        if 2 <= len(of) <= _RARE_SHARE * len(pages):
            for at in of:
                graph.add_edge(token, at, weight=math.log(1 + len(pages) / len(of)) / whole)
    return graph


def _pagerank_order(memory: WalkMemory, question: WalkQuestion, damping: float, graph: Any) -> list[Page]:
    """Return all pages, best first."""
    import networkx

    request = {**question.request(), "neighbours": 0}
    flat = memory.core.search.find(**request, max_groups=_SEEDS, token_budget=1 << 30, least_share=0).groups
    seeds: dict[Any, float] = {}
    for place, group in enumerate(flat):
        for page in group.pages:
            seeds[(page.block, page.page)] = 1 / (1 + place)
    ids = np.unique(question.token_ids)
    for token, rarity in zip(ids.tolist(), memory.core.search.idf(ids).tolist(), strict=True):
        if token in graph:
            seeds[token] = rarity / math.log1p(graph.number_of_nodes())
    if not seeds:
        return []
    scores = networkx.pagerank(graph, alpha=damping, personalization=seeds, weight="weight")
    return sorted((node for node in scores if isinstance(node, tuple)), key=lambda node: (-scores[node], node))


def _first_groups(memory: WalkMemory, ranked: Sequence[Page], loads: int) -> set[Page]:
    """Return the first `loads` pages with their last_page, without pages that came with an earlier one."""
    listed = [(page.block, page.page) for page in memory.core.blocks.pages_of(0, 0, len(memory.text.ids))]
    order = {page: at for at, page in enumerate(listed)}
    loaded: set[Page] = set()
    count = 0
    for page in ranked:
        if count == loads:
            break
        if page not in loaded:
            at = order[page]
            loaded |= set(listed[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1])
            count += 1
    return loaded
