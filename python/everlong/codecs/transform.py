"""Fits the transform codec to a model, on texts that are shipped, and finds the step for a quality.

The quality is how far the model's predictions behind a coded context may be from those behind the exact one: the mean
KL, in nats a token. It is measured on contexts that the basis was not fitted to.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

import everlong._core as _core
from everlong.codecs.coded_context import SINKS, CodedContext, through_memory
from everlong.codecs.sensitivity import sensitivity
from everlong.codecs.transform_tables import Basis, bases_of, even_spans, tables_file
from everlong.data import shipped_books
from everlong.models.attach import attach
from everlong.models.fingerprint import fingerprint
from everlong.models.profiles import cache_folder

QUALITY = 0.0005  # nats a token: perplexity changes by a twentieth of a per cent
STEPS = (0.8, 0.56, 0.4, 0.28, 0.2, 0.14, 0.1, 0.07, 0.05)  # in the mean deviation
_CONTEXT, _AFTER = 1024, 192
_FITTED, _HELD_OUT, _SENSED = 12, 4, 2  # contexts; the last are the first of those held out
_BEHIND = 30_000  # characters of each book that are passed over: front matter
_LOGGER = logging.getLogger("everlong")

LogFn = Callable[[str], None]


def tables_for(model: Any, tokenizer: Any, quality: float = QUALITY, *, log: LogFn = _LOGGER.info) -> bytes:
    """Return the tables of a model for a quality: those that are kept in the cache, else they are fitted and kept."""
    weights = fingerprint(attach(model, _CONTEXT), tokenizer).weights
    folder, file = cache_folder() / "transforms" / weights[:16], f"{quality:g}.safetensors"
    try:
        return (folder / file).read_bytes()
    except OSError:
        log(f"the transform is fitted to {_CONTEXT * (_FITTED + _HELD_OUT):,} tokens, once for this model and quality")
    tables = fit(model, tokenizer, quality, log=log)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _core.replace_file(str(folder), file, tables)
    except OSError as error:  # fitting again costs minutes, and no more
        _LOGGER.warning("the tables of the transform are not kept in %s: %s", folder, error)
    return tables


@dataclasses.dataclass(frozen=True)
class FittedTransform:
    """What the transform of a model is before its step is chosen, and contexts that it was not fitted to."""

    bases: list[Basis]
    shape: tuple[int, int, int]  # layers, heads, head_dim
    weights: str  # the fingerprint of the model's
    held_out: list[CodedContext]

    def tables(self, step: float) -> bytes:
        """Return the file of tables for a step of keys."""
        return tables_file(self.bases, step, self.weights, self.shape)

    def judge(self, tables: bytes) -> tuple[float, float]:
        """Return the bytes of a token and the KL of what was held out with these tables."""
        sizes, kls = [], []
        for context in self.held_out:
            k, v, size = through_memory(context.k, context.v, "", tables, weights=self.weights)
            sizes.append(size)
            kls.append(context.nearness(k, v).kl)
        return statistics.fmean(sizes), statistics.fmean(kls)


def fit(model: Any, tokenizer: Any, quality: float = QUALITY, *, log: LogFn = _LOGGER.info) -> bytes:
    """Return the file of tables with the coarsest step that keeps to `quality`."""
    if not quality > 0:
        raise ValueError(f"quality is {quality}; expected nats a token above 0, such as {QUALITY}")
    found, tables = fit_bases(model, tokenizer, log=log), b""
    for step in STEPS:
        tables = found.tables(step)
        size, kl = found.judge(tables)
        log(f"step {step}: {size:,.0f} bytes a token, KL {kl:.5f}")
        if kl <= quality:
            return tables
    _LOGGER.warning("no step of the transform keeps to a KL of %g: the finest is taken", quality)
    return tables


@torch.no_grad()
def fit_bases(model: Any, tokenizer: Any, *, layers_of_group: int = 0, log: LogFn = _LOGGER.info) -> FittedTransform:
    """Fit the bases of a model. A group has about `layers_of_group` layers; 0: as many as serve the model."""
    served = attach(model, _CONTEXT)
    samples, held_out = [], []
    for number, ids in enumerate(_texts(tokenizer)):
        into_bases = number < _FITTED
        context = CodedContext.read(served, ids[:_CONTEXT] if into_bases else ids, _CONTEXT)
        samples.append((context.k[:, :, SINKS:], context.v[:, :, SINKS:]))
        held_out += [] if into_bases else [context]
        log(f"text {number + 1} of {_FITTED + _HELD_OUT} is read")
    layers, heads, _, dim = held_out[0].k.shape
    generator = torch.Generator().manual_seed(0)
    sensed = [sensitivity(context, generator) for context in held_out[:_SENSED]]
    log("what the model says is asked for how it hangs on each head")
    means = torch.stack([one[0] for one in sensed]).mean(0), torch.stack([one[1] for one in sensed]).mean(0)
    spans = even_spans(layers, -(-layers // layers_of_group)) if layers_of_group > 0 else ()
    bases = bases_of(samples[:_FITTED], samples[_FITTED:], means, spans)
    return FittedTransform(bases, (layers, heads, dim), fingerprint(served, tokenizer).weights, held_out)


def _texts(tokenizer: Any) -> Iterator[torch.Tensor]:
    """Yield ids of contexts with what follows them, by turns from the beginnings of the shipped books."""
    books = shipped_books()
    for number in range(_FITTED + _HELD_OUT):
        text = books[number % len(books)].text[_BEHIND : _BEHIND + 60_000]
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        first = number // len(books) * (_CONTEXT + _AFTER)
        yield torch.tensor(ids[first : first + _CONTEXT + _AFTER], dtype=torch.int64)
