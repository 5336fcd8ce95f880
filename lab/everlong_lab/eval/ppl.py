"""Perplexity of what follows in a book, by what the frame holds beside the newest tokens.

Every book is read into a fresh memory up to its first place, scored there, read on to the next, and so on. The tokens
after a place are scored in several ways:

- by the window alone;
- with the newest blocks recalled (`recent`);
- with what the newest tokens' own queries find (`prompt`);
- with as many random pages (`random`, the control: any text helps a little);
- by plain transformers with full attention over as much of what was read as the model's own window holds.

`recovered_fraction` is (window - memory) / (window - full), in nats, over all places. The memory's own codec is
compared with an archive in bf16, which is read anew. Where they are asked for, so are frames with a zone "kept" of
chosen tokens, by who chooses them. Nothing is recalled there.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch

from everlong.config import MemoryConfig, name_of
from everlong.data import Book, shipped_books
from everlong.frame.capacity import check_capacity
from everlong.generation.memory_model import MemoryModel
from everlong.generation.perplexity import PerplexityPolicy
from everlong.models.attach import trained_window
from everlong.models.pack import pack_for
from everlong.models.profiles import profiles_in
from everlong.models.provenance import provenance
from everlong.text.encoding import encode
from everlong.text.prompt import start_ids
from everlong_lab.data.books import books_in
from everlong_lab.eval.answers import AnswerFile, deciding, digest, dtype_of
from everlong_lab.eval.by_position import means_by_position
from everlong_lab.eval.gold import prefilled
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.statistics import mean_and_stderr
from everlong_lab.eval.tables import Report, Table

POLICIES: tuple[PerplexityPolicy, ...] = get_args(PerplexityPolicy)
FILE = "places.jsonl"  # in the folder of a run: the losses, book by book
_HELD = {
    "window": "window alone",
    "random": "window and random pages",
    "recent": "window and the newest blocks",
    "prompt": "window and what the newest tokens find",
    "full": "the model's own window, full attention",
    "bf16": "what the memory policy finds, archived in bf16",
}


@dataclasses.dataclass(frozen=True)
class PplConfig:
    places: int = 8
    places_per_book: int = 4
    prefix_tokens: int = 8_192  # tokens to read before a book's first place
    between_tokens: int = 2_048  # tokens from one place to the next; at least scored_tokens
    scored_tokens: int = 512
    full_tokens: int = 0  # tokens that full attention sees; 0: the model's own window
    memory_policy: PerplexityPolicy = "prompt"  # the policy whose recovered fraction is reported
    kept_tokens: int = 0  # slots of a zone "kept"; 0: it is not measured
    kept_by: tuple[str, ...] = ()  # who chooses what it keeps, one frame each
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.places, self.places_per_book, self.prefix_tokens) < 1 or self.scored_tokens < 2:
            raise ValueError("places, places_per_book, prefix_tokens must be positive, scored_tokens at least 2")
        if bool(self.kept_tokens) != bool(self.kept_by):
            raise ValueError("kept_tokens and kept_by are named together, or neither")
        if self.between_tokens < self.scored_tokens:
            raise ValueError(f"between_tokens is {self.between_tokens}, expected at least {self.scored_tokens}")
        if self.memory_policy not in POLICIES:
            raise ValueError(f"no policy {self.memory_policy!r}; there are {', '.join(POLICIES)}")

    @property
    def tokens_per_book(self) -> int:
        """Tokens that one memory reads, up to a book's last place."""
        return self.prefix_tokens + (min(self.places, self.places_per_book) - 1) * self.between_tokens


_Losses = dict[str, list[float]]  # by policy (and "full", "bf16"), for one place: NLL token by token


@dataclasses.dataclass(frozen=True)
class _TextPart:
    """A book with places to score."""

    book: Book
    ids: list[int]
    firsts: list[int]  # first scored token of each place


@dataclasses.dataclass(frozen=True)
class Place:
    """Mean negative log likelihood of a place's scored tokens, in nats a token."""

    source: str
    first_token: int  # of the scored ones, in its book
    window: float
    recent: float
    prompt: float
    random: float
    full: float
    bf16: float  # the reported policy, over an archive in bf16
    kept: dict[str, float]  # the window and a zone "kept", by who chose


@dataclasses.dataclass(frozen=True)
class PplReport(Report):
    """Perplexities are exp of the mean over places; all places count alike."""

    window: float
    recent: float
    prompt: float
    random: float
    full: float
    bf16: float
    kept: dict[str, float]  # by who chose
    # mean, stderr over books; None where full attention gains nothing or there is only one book
    recovered_fraction: dict[str, float | None]
    kept_recovered: dict[str, dict[str, float | None]]  # the same for the zones "kept", by who chose
    kept_gain: dict[str, dict[str, dict[str, float | None]]]  # by who chose, by policy: nats a token less, mean, stderr
    # NLL that the memory's codec costs against bf16: mean, stderr (None for one place).
    codec_loss: dict[str, float | None]
    by_position: dict[str, list[float]]  # by policy: mean NLL of each BIN_TOKENS tokens behind a place
    places: tuple[Place, ...]
    config: dict[str, Any]  # of PplConfig, with the model's dtype; under "memory" that of the memory
    model: str
    made_with: list[dict[str, Any]]  # everything that had a part in it once, oldest first: everlong.models.provenance

    def tables(self) -> Iterator[Table | str]:
        """Yield one table, and lines with what it comes to."""
        rows = [[label, f"{getattr(self, key):.3f}"] for key, label in _HELD.items()]
        slots = f"window and {self.config['kept_tokens']:,} kept tokens"
        rows += [[f"{slots}: {kind}", f"{perplexity:.3f}"] for kind, perplexity in self.kept.items()]
        yield Table("", ("the frame holds", "perplexity"), rows)
        for kind, gains in self.kept_gain.items():
            told = ", ".join(f"{key} {gain['mean']:+.4f}{_spread(gain['stderr'], 4)}" for key, gain in gains.items())
            recovered = self.kept_recovered[kind]
            if recovered["mean"] is not None:
                told += f"; recovered fraction {recovered['mean']:.2f}{_spread(recovered['stderr'], 2)}"
            yield f"kept by {kind}, nats a token less than {told}"
        mean, error = self.recovered_fraction["mean"], self.recovered_fraction["stderr"]
        gains_nothing = "not defined: the model's own window gains nothing"
        share = gains_nothing if mean is None else f"{mean:.2f}{_spread(error, 2)}"
        books = len({place.source for place in self.places})
        yield f"{self.model}, {len(self.places)} places in {books} books; recovered fraction: {share}"
        loss, error = self.codec_loss["mean"], self.codec_loss["stderr"]
        yield f"the archive's codec costs {loss:+.4f}{_spread(error, 4)} nats a token against bf16"


def run_ppl(
    model: str | tuple[Any, Any],
    config: PplConfig | None = None,
    *,
    corpus: pathlib.Path | None = None,
    memory_config: MemoryConfig | None = None,
    out: pathlib.Path | None = None,
    log: Log = silent,
) -> PplReport:
    """Score places spread over the books of `corpus`, or over the shipped ones.

    `model` is a name or path to load, or (model, tokenizer). The folder `out` keeps every book's losses as soon as they
    are known, and a run that was cut short goes on. Raises ValueError when no book is long enough or `out` holds
    another run, and CapacityError when RAM is too small for what one memory reads.
    """
    from everlong.frame.model_setup import default_config
    from everlong.models import dtype_name, resolve

    config = config if config is not None else PplConfig()
    name, network, tokenizer = resolve(model, dtype_of(out, FILE))
    memory_config = memory_config if memory_config is not None else default_config(network)
    if not config.full_tokens:
        trained_window(network)  # which full attention sees: a model that names none is refused before anything is read
    for settings in (memory_config, _in_bf16(memory_config)):
        check_capacity(network, settings, config.tokens_per_book, None, "shorter prefixes or fewer places a book")
    chosen = _choose(shipped_books() if corpus is None else books_in(corpus), tokenizer, config)
    kept = None
    if out is not None:
        which = {
            "model": name,
            "dtype": dtype_name(network.dtype),
            "memory": deciding(memory_config.to_dict()),
            **dataclasses.asdict(config),
            "text": digest([[part.book.name, part.ids, part.firsts] for part in chosen]),
        }
        kept = AnswerFile(out / FILE, which, provenance(network))
    places: list[Place] = []
    losses_of: list[_Losses] = []
    for number, part in enumerate(chosen):
        before = kept.find(number=number) if kept is not None else []
        if before:
            losses_there = before[0]["losses"]
        else:
            with profiles_in(None):  # every book's memory calibrates itself
                losses_there = _score(network, tokenizer, memory_config, config, part)
        if kept is not None and not before:
            kept.add(number=number, losses=losses_there)
        for first, losses in zip(part.firsts, losses_there, strict=True):
            means = {key: math.fsum(nll) / len(nll) for key, nll in losses.items()}
            kept_there: dict[str, float] = {kind: means.pop(_kept_key(kind)) for kind in config.kept_by}
            places.append(Place(part.book.name, first, **means, kept=kept_there))
            losses_of.append(losses)
            named = {**means, **{_kept_key(kind): nll for kind, nll in kept_there.items()}}
            told = ", ".join(f"{key} {math.exp(nll):.2f}" for key, nll in named.items())
            log(f"{part.book.name} at {first:,}: {told}")
    made = kept.made_with if kept is not None else [provenance(network)]
    return summarise(places, losses_of, config, name, memory_config.to_dict(), dtype_name(network.dtype), made)


# What chooses without training: the newest tokens, which need no part, and the rules of the part "trimmer".
_NEWEST = "newest"
_BY_RULES = (_NEWEST, "random", "key_norm")


def trimmers_for(model: torch.nn.Module) -> tuple[str, ...]:
    """Return who can choose what a zone "kept" holds: the untrained rules, and the Trimmer of the model's pack."""
    pack = pack_for(model)
    learned = pack is not None and "trimmer" in pack.parts
    return (*_BY_RULES, "learned") if learned else _BY_RULES


def _in_bf16(config: MemoryConfig) -> MemoryConfig:
    return config.changed(archive={"codec": "bf16"})


def _kept_key(kind: str) -> str:
    return f"kept by {kind}"


def _score(
    network: Any, tokenizer: Any, memory_config: MemoryConfig, config: PplConfig, part: _TextPart
) -> list[_Losses]:
    """Return the losses at every place of one book, which is read anew for each frame.

    The frames are the memory's own, one over an archive in bf16, and those with a zone "kept".
    """
    found: list[_Losses] = [{} for _ in part.firsts]
    ids, begin = part.ids, part.firsts[0] - config.prefix_tokens
    frames: list[tuple[MemoryConfig, dict[str, PerplexityPolicy]]] = [
        (memory_config, {policy: policy for policy in POLICIES}),
        (_in_bf16(memory_config), {"bf16": config.memory_policy}),
    ]
    for kind in config.kept_by:
        others = [one for one in memory_config.parts if name_of(one) != "trimmer"]
        keeping = memory_config.changed(frame={"kept_tokens": config.kept_tokens}, parts=others)
        if kind != _NEWEST:
            keeping = keeping.with_settings([f"trimmer.by={kind}"])
        frames.append((keeping, {_kept_key(kind): "window"}))
    for settings, policies in frames:
        with MemoryModel(network, tokenizer, None, settings) as mm:
            read_to = begin
            for losses, first in zip(found, part.firsts, strict=True):
                mm.read(tokenizer.decode(ids[read_to:first]), source=part.book.name)
                read_to = first
                text = tokenizer.decode(ids[first : first + config.scored_tokens])
                for key, policy in policies.items():
                    losses[key] = list(mm.perplexity(text, policy=policy, seed=config.seed).token_nll)
    for losses, first in zip(found, part.firsts, strict=True):
        text = tokenizer.decode(ids[first : first + config.scored_tokens])
        # Text cut out of a book may come out in other tokens than in its place: score what the memory scored.
        again = encode(tokenizer, text).tolist()
        # Full attention does not see of the book what the memory never read, either.
        full = full_attention_losses(network, ids[begin:first], again, config.full_tokens, start=start_ids(tokenizer))
        losses["full"] = full.tolist()
    return found


def summarise(
    places: list[Place],
    losses_of: list[_Losses],
    config: PplConfig,
    model: str,
    memory: Mapping[str, Any],
    dtype: str,
    made_with: Sequence[dict[str, Any]],
) -> PplReport:
    """Return the report of some places, with the losses of their tokens."""
    keys = (*POLICIES, "full", "bf16")
    means = {key: mean_and_stderr(getattr(place, key) for place in places)[0] for key in keys}
    kept = {kind: mean_and_stderr(place.kept[kind] for place in places)[0] for kind in config.kept_by}
    policy = config.memory_policy
    loss, error = mean_and_stderr(getattr(place, policy) - place.bf16 for place in places)
    return PplReport(
        **{key: math.exp(mean) for key, mean in means.items()},
        kept={kind: math.exp(mean) for kind, mean in kept.items()},
        recovered_fraction=recovered_fraction(_gains(places, _loss_of(policy))),
        kept_recovered={kind: recovered_fraction(_gains(places, _loss_kept(kind))) for kind in config.kept_by},
        kept_gain={
            kind: {key: _by_book(places, _loss_of(key), _loss_kept(kind)) for key in (*POLICIES, "full")}
            for kind in config.kept_by
        },
        codec_loss={"mean": loss, "stderr": error if math.isfinite(error) else None},
        by_position={
            key: means_by_position([losses[key] for losses in losses_of])
            for key in (*keys, *map(_kept_key, config.kept_by))
        },
        places=tuple(places),
        config={**dataclasses.asdict(config), "dtype": dtype, "memory": dict(memory)},
        model=model,
        made_with=list(made_with),
    )


def _gains(places: Sequence[Place], loss: Callable[[Place], float]) -> list[tuple[float, float]]:
    """Return for each book what a memory with this loss gains on the window, and what full attention gains, in nats."""
    by_book: dict[str, tuple[float, float]] = {}
    for place in places:
        gain, of_full = by_book.get(place.source, (0.0, 0.0))
        by_book[place.source] = (gain + place.window - loss(place), of_full + place.window - place.full)
    return list(by_book.values())


def _loss_of(policy: str) -> Callable[[Place], float]:
    """Return a function that gives a place's loss by a policy or by "full"."""
    return lambda place: float(getattr(place, policy))


def _loss_kept(kind: str) -> Callable[[Place], float]:
    """Return a function that gives a place's loss by who chose what is kept."""
    return lambda place: place.kept[kind]


def _by_book(
    places: Sequence[Place], worse: Callable[[Place], float], better: Callable[[Place], float]
) -> dict[str, float | None]:
    """Return the mean difference over places; its standard error is over the books' means."""
    of_book: dict[str, list[float]] = {}
    for place in places:
        of_book.setdefault(place.source, []).append(worse(place) - better(place))
    mean, _ = mean_and_stderr(worse(place) - better(place) for place in places)
    _, error = mean_and_stderr(math.fsum(values) / len(values) for values in of_book.values())
    return {"mean": mean, "stderr": error if math.isfinite(error) else None}


def recovered_fraction(gains: list[tuple[float, float]]) -> dict[str, float | None]:
    """Return the ratio of the gains (memory's, full attention's), and its standard error by the jackknife over the
    pairs.

    It is a ratio of sums, not a mean of ratios: a place where full attention gains nothing must not decide.
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


def _choose(books: list[Book], tokenizer: Any, config: PplConfig) -> list[_TextPart]:
    """Return books and places in an order drawn from the seed."""
    rng = random.Random(f"places {config.seed}")
    chosen: list[_TextPart] = []
    left = config.places
    for book in rng.sample(books, len(books)):
        ids = encode(tokenizer, book.text).tolist()
        fitting = (len(ids) - config.prefix_tokens - config.scored_tokens) // config.between_tokens + 1
        count = min(left, config.places_per_book, fitting)
        if count < 1 or len(ids) < config.prefix_tokens + config.scored_tokens:
            continue
        spare = len(ids) - config.scored_tokens - config.prefix_tokens - (count - 1) * config.between_tokens
        first = config.prefix_tokens + rng.randint(0, spare)
        chosen.append(_TextPart(book, ids, [first + n * config.between_tokens for n in range(count)]))
        left -= count
        if left == 0:
            return chosen
    needed = config.prefix_tokens + config.scored_tokens
    raise ValueError(
        f"{config.places} places need more books of {needed:,} tokens and more: there are {len(chosen)}, "
        f"with {config.places - left} places; name a corpus"
    )


@torch.inference_mode()
def full_attention_losses(
    model: Any, prefix: list[int], scored: list[int], tokens: int = 0, *, start: Sequence[int] = ()
) -> torch.Tensor:
    """Return the NLL [n - 1] of `scored` [n] without its first token, after the end of `prefix`.

    As much of `prefix` is used as `tokens` or the model's own window holds. `start` is what the tokenizer puts before
    every text.
    """
    window = tokens or trained_window(model)
    room = max(0, window - len(start) - len(scored))
    context = [*start, *prefix[max(0, len(prefix) - room) :]]
    _, logits = prefilled(model, context + scored, keep=len(scored))
    targets = torch.tensor(scored[1:], dtype=torch.int64, device=logits.device)
    return torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="none")


def _spread(error: float | None, digits: int) -> str:
    return "" if error is None else f" +- {error:.{digits}f}"
