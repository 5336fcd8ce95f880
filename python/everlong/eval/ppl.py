"""Perplexity of what follows in a book, by what the frame holds beside the newest tokens.

At every place the prefix is read into a fresh memory and the next tokens are scored: by the window alone, with the
newest blocks recalled (`recent`), with what the newest tokens' own queries find (`prompt`), with as many random pages
(the control: any text at all helps a little), and by plain transformers with full attention over as much as the model's
own window holds. `recovered_fraction` is (window - memory) / (window - full), in nats, over all places.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from rich.console import Console
from rich.table import Table

from everlong.data import Book, books_in, shipped_books
from everlong.eval.statistics import mean_and_stderr

if TYPE_CHECKING:
    from everlong.config import MemoryConfig

Policy = Literal["window", "recent", "prompt", "random"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
_CHUNK_TOKENS = 512


@dataclasses.dataclass(frozen=True)
class PplConfig:
    places: int = 8
    prefix_tokens: int = 8_192  # read before a place
    scored_tokens: int = 512
    full_tokens: int = 0  # that full attention sees; 0: the model's own window
    memory_policy: Policy = "prompt"  # whose recovered fraction is reported
    seed: int = 0

    def __post_init__(self) -> None:
        if self.places < 1 or self.prefix_tokens < 1 or self.scored_tokens < 2:
            raise ValueError("places and prefix_tokens must be positive, scored_tokens at least 2")
        if self.memory_policy not in POLICIES:
            raise ValueError(f"no policy {self.memory_policy!r}; there are {', '.join(POLICIES)}")


@dataclasses.dataclass(frozen=True)
class Place:
    """Mean negative log likelihood of a place's scored tokens, nats a token."""

    source: str
    first_token: int  # of the scored ones, in its book
    window: float
    recent: float
    prompt: float
    random: float
    full: float


@dataclasses.dataclass(frozen=True)
class PplReport:
    """Perplexities are exp of the mean over places: all places count alike."""

    window: float
    recent: float
    prompt: float
    random: float
    full: float
    recovered_fraction: dict[
        str, float | None
    ]  # mean, stderr; None where the full window gains nothing or one place is all
    places: tuple[Place, ...]
    config: dict[str, Any]
    model: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def run_ppl(
    model: str | tuple[Any, Any],
    config: PplConfig | None = None,
    *,
    corpus: pathlib.Path | None = None,
    memory_config: MemoryConfig | None = None,
    log: Callable[[str], None] | None = None,
) -> PplReport:
    """Score places spread over the books of `corpus`, or over the shipped ones.

    `model` is a name or path to load, or (model, tokenizer). Raises ValueError when no book is long enough.
    """
    from everlong.model import MemoryModel
    from everlong.models import load

    config = config if config is not None else PplConfig()
    name = model if isinstance(model, str) else str(getattr(model[0], "name_or_path", ""))
    network, tokenizer = load(model) if isinstance(model, str) else model
    places = []
    for book, first, ids in _choose(shipped_books() if corpus is None else books_in(corpus), tokenizer, config):
        prefix = ids[first - config.prefix_tokens : first]
        text = tokenizer.decode(ids[first : first + config.scored_tokens])
        losses: dict[str, float] = {}
        with MemoryModel(network, tokenizer, None, memory_config) as mm:
            mm.read(tokenizer.decode(prefix), source=book.name)
            for policy in POLICIES:
                losses[policy] = mm.perplexity(text, policy=policy, seed=config.seed).nll
        # Text cut out of a book may come out in other tokens than in its place: score what the memory scored.
        scored = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        losses["full"] = full_attention_nll(network, prefix, scored, config.full_tokens)
        places.append(Place(book.name, first, **losses))
        if log is not None:
            log(f"{book.name} at {first:,}: " + ", ".join(f"{key} {math.exp(nll):.2f}" for key, nll in losses.items()))
    return summarise(places, config, name)


def summarise(places: list[Place], config: PplConfig, model: str) -> PplReport:
    """The report of some places."""
    means = {key: mean_and_stderr(getattr(place, key) for place in places)[0] for key in (*POLICIES, "full")}
    return PplReport(
        **{key: math.exp(mean) for key, mean in means.items()},
        recovered_fraction=recovered_fraction(
            [(place.window - getattr(place, config.memory_policy), place.window - place.full) for place in places]
        ),
        places=tuple(places),
        config=dataclasses.asdict(config),
        model=model,
    )


def recovered_fraction(gains: list[tuple[float, float]]) -> dict[str, float | None]:
    """Ratio of the mean gains (memory's, full attention's), and its standard error by the jackknife over places.

    A ratio of means, not a mean of ratios: a place where full attention gains nothing must not decide.
    """
    memory, full = (math.fsum(part) for part in zip(*gains, strict=True))
    if full <= 0:
        return {"mean": None, "stderr": None}
    n = len(gains)
    without = [(memory - mine, full - theirs) for mine, theirs in gains]
    if n == 1 or any(theirs <= 0 for _, theirs in without):
        return {"mean": memory / full, "stderr": None}
    ratios = [mine / theirs for mine, theirs in without]
    middle = math.fsum(ratios) / n
    variance = (n - 1) / n * math.fsum((ratio - middle) ** 2 for ratio in ratios)
    return {"mean": memory / full, "stderr": math.sqrt(variance)}


def _choose(books: list[Book], tokenizer: Any, config: PplConfig) -> list[tuple[Book, int, list[int]]]:
    """(book, first scored token, the book's token ids): places taking turns between the books that are long enough."""
    rng = random.Random(f"places {config.seed}")
    needed = config.prefix_tokens + config.scored_tokens
    long_enough = []
    for book in rng.sample(books, len(books)):
        ids = tokenizer(book.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= needed:
            long_enough.append((book, ids))
        if len(long_enough) == config.places:
            break
    if not long_enough:
        raise ValueError(f"no book has the {needed:,} tokens that a place needs")
    chosen = []
    for index in range(config.places):
        book, ids = long_enough[index % len(long_enough)]
        chosen.append((book, rng.randint(config.prefix_tokens, len(ids) - config.scored_tokens), ids))
    return chosen


@torch.inference_mode()
def full_attention_nll(model: Any, prefix: list[int], scored: list[int], tokens: int = 0) -> float:
    """Mean NLL of `scored` but its first token, after as much of `prefix` as `tokens` (or the model's window) holds."""
    window = tokens or model.config.get_text_config().max_position_embeddings
    context = prefix[max(0, len(prefix) - (window - len(scored))) :] if window > len(scored) else []
    ids = torch.tensor([context + scored], device=model.device)
    cache: Any = None
    rows = []
    for first in range(0, ids.shape[1], _CHUNK_TOKENS):
        chunk = ids[:, first : first + _CHUNK_TOKENS]
        out = model(input_ids=chunk, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        inside = max(0, len(context) - first)
        rows.append(out.logits[0, inside:].float())
    logits = torch.cat(rows)[:-1]  # [len(scored) - 1, V]
    return float(torch.nn.functional.cross_entropy(logits, ids[0, len(context) + 1 :]))


def print_ppl(report: PplReport, console: Console) -> None:
    """One table."""
    table = Table()
    table.add_column("the frame holds")
    table.add_column("perplexity", justify="right")
    labels = {
        "window": "window alone",
        "random": "window and random pages",
        "recent": "window and the newest blocks",
        "prompt": "window and what the newest tokens find",
        "full": "the model's own window, full attention",
    }
    for key, label in labels.items():
        table.add_row(label, f"{getattr(report, key):.3f}")
    console.print(table)
    mean, error = report.recovered_fraction["mean"], report.recovered_fraction["stderr"]
    spread = "" if error is None else f" +- {error:.2f}"
    share = "not defined: the model's own window gains nothing" if mean is None else f"{mean:.2f}{spread}"
    console.print(f"{report.model}, {len(report.places)} places; recovered fraction: {share}")
