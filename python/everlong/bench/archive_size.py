"""How large a memory of a model is in each codec, from the shape of its archive alone.

Most codecs take what their layout says. What a transform takes hangs on what is coded. A small memory of the model's
shape is coded with made-up keys and values, whose coefficients are spread as those of another model, which is measured:
group by group at the same depth, coefficient by coefficient at the same rank.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from everlong import ops
from everlong.codecs.coded_context import through_memory
from everlong.codecs.costs import CODECS
from everlong.codecs.transform import FittedTransform, LogFn, fit_bases
from everlong.codecs.transform_tables import Basis, codes_of, spans_of, tables_file
from everlong.config import ArchiveConfig
from everlong.models.geometry import Geometry
from everlong.models.provenance import provenance

_STEPS = (0.2, 0.17, 0.14, 0.1)  # of the transform
_TOKENS = 256  # of the made-up memory
_COUNTED = 1024  # more tokens, for frequencies of codes
_WEIGHTS = "made up"


@dataclasses.dataclass(frozen=True)
class CodecSize:
    """What a codec takes."""

    codec: str
    bytes: float  # of a token, in all layers
    tables_bytes: int = 0  # of a transform, once a memory
    kl_of_like: float | None = None  # nats a token that a transform of this step costs the measured model


@dataclasses.dataclass(frozen=True)
class SizeReport:
    """How large a memory of a model is."""

    model: str
    geometry: Geometry
    page_tokens: int
    like: str  # the model whose keys and values the made-up ones are like
    made_up_tokens: int
    codecs: tuple[CodecSize, ...]
    made_with: dict[str, Any]  # everlong.models.provenance, of `like`


def measure(
    geometry: Geometry, like: tuple[Any, Any], *, name: str = "", like_name: str = "", log: LogFn = lambda _: None
) -> SizeReport:
    """Tell how large a memory of this shape is. `like` is the model, with its tokenizer, that made-up numbers are like.

    It is fitted anew, in groups of as many layers as serve the shape: a group of more of them codes in fewer bytes.
    """
    shape = (geometry.layers, geometry.kv_heads, geometry.head_dim)
    page = ArchiveConfig().page_tokens
    sizes = [CodecSize(codec, ops.payload_bytes(page, page, *shape, codec) / page) for codec in CODECS]
    spans = spans_of(geometry.layers, geometry.kv_heads * geometry.head_dim)
    fit = fit_bases(*like, layers_of_group=max(count for _, count in spans), log=log)
    bases, k, v = made_up(fit, geometry, torch.Generator().manual_seed(0))
    for step in _STEPS:
        log(f"step {step:g} of the transform")
        tables = tables_file(bases, step, _WEIGHTS, shape)
        _, _, size = through_memory(k, v, "", tables, weights=_WEIGHTS)
        _, kl = fit.judge(fit.tables(step))
        sizes.append(CodecSize(f"transform, step {step:g}", size, len(tables), kl))
    return SizeReport(name, geometry, page, like_name, _TOKENS, tuple(sizes), provenance(like[0]))


def made_up(
    fit: FittedTransform, geometry: Geometry, generator: torch.Generator
) -> tuple[list[Basis], torch.Tensor, torch.Tensor]:
    """Return bases of a shape, and keys and values [layers, heads, tokens, head_dim] that they are the bases of.

    A coefficient takes numbers of that of the same rank, of the measured model: some for its frequencies, others for
    the keys or values. Each is in an order of its own, so that no two hang together.
    """
    layers, heads, dim = geometry.layers, geometry.kv_heads, geometry.head_dim
    coded = torch.empty(2, layers, heads, _TOKENS, dim)
    found, directions = [], dict[int, torch.Tensor]()
    for which, is_keys in enumerate((True, False)):
        measured = [basis for basis in fit.bases if basis.keys == is_keys]
        for first, count in spans_of(layers, heads * dim):
            n = count * heads * dim
            source = measured[(2 * first + count) * len(measured) // (2 * layers)].held_out
            some = torch.randperm(len(source), generator=generator)[: _TOKENS + _COUNTED]
            rows = source[some][:, torch.arange(n) * source.shape[1] // n]
            rows = rows.gather(0, torch.rand(rows.shape, generator=generator).argsort(0))
            if n not in directions:
                directions[n] = torch.linalg.qr(torch.randn(n, n, generator=generator)).Q
            basis, of_memory = codes_of(directions[n]), rows[-_TOKENS:] @ directions[n]
            found.append(Basis(is_keys, first, count, torch.zeros(n), torch.ones(n), basis, rows[:-_TOKENS]))
            coded[which, first : first + count] = of_memory.reshape(_TOKENS, count, heads, dim).permute(1, 2, 0, 3)
    return found, coded[0], coded[1]
