"""The doctor measures, on a model itself, which parts of everlong are exact for it and which are approximate.

One text is computed by plain transformers and by everlong's frame. The yardstick is how far plain transformers is from
itself when it reads the same text in chunks: the rounding of the model's own number format.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
import transformers

from everlong.config import ArchiveConfig, FrameConfig, MemoryConfig, SearchConfig
from everlong.data import shipped_books
from everlong.frame.budget import frame_bytes
from everlong.frame.model_setup import attach_model, default_config
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.models import dtype_name
from everlong.models.attach import AttachedModel, trained_window
from everlong.models.block_layers import formats_of
from everlong.models.provenance import provenance
from everlong.models.releases import cache_argument
from everlong.models.rope import table_tokens
from everlong.ops import CODECS
from everlong.text.prompt import start_ids

Verdict = Literal["exact", "approximate", "wrong"]

_TAIL_TOKENS = 32  # scored after what came back
_CHUNK_TOKENS = 64
# Of a frame, beside the text. All frames that move nothing are of one size, and have one longrope table.
_AROUND_TOKENS = _TAIL_TOKENS + 2 * _CHUNK_TOKENS + FrameConfig().sink_tokens
_MOVED_POSITIONS = 4096
_SLACK = 3.0  # times the model's own rounding that still counts as exact
_NUDGE = 2.0**-21  # relative: a few units in the last place of fp32
_SMALLEST_BOUND = 1e-4  # of a logit, for fp32, whose own rounding can be zero
# With a larger mean KL (nats) between a codec's answers and the exact ones, the archive is useless for this model.
_WORST_KL = 0.5


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two sets of logits [n, V] for the same tokens, compared."""

    logit: float  # largest absolute difference
    kl: float  # mean over tokens, nats
    agreement: float  # share of tokens whose most likely next token is the same


@dataclasses.dataclass(frozen=True)
class Check:
    """One part of everlong. "exact": within the model's own rounding; "approximate": a codec loses some."""

    name: str
    difference: Difference
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class DoctorReport:
    """What `examine` found: the model as everlong sees it, and every part compared with plain transformers."""

    model: str
    dtype: str
    layers: dict[str, int]  # how many of each kind
    archived_layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    window: int
    rope: str
    tokens: int  # of the text that was computed both ways
    rounding: Difference  # plain transformers in chunks against plain transformers at once
    checks: tuple[Check, ...]
    frame_tokens: int  # of the frame that everlong gives this model by default
    frame_bytes: int  # that the frame takes on the device
    made_with: dict[str, Any]  # everlong.models.provenance

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong: what must be exact is, and every codec's archive is of use."""
        return all(check.verdict != "wrong" for check in self.checks)


def examine(model: Any, tokenizer: Any, *, name: str = "", tokens: int = 512) -> DoctorReport:
    """Compute `tokens` tokens of a shipped book both ways. Raises UnsupportedModelError for a model that is refused.

    `tokens` is cut to a quarter of the model's window. The model's weights and hooks are left as they were.
    """
    config = model.config.get_text_config()
    page = MemoryConfig().archive.page_tokens
    default = default_config(model)
    tokens = max(page, min(tokens, trained_window(model) // 4) // page * page)
    served = attach_model(model, _whole(tokens + _TAIL_TOKENS, "fp32")).keyed
    assert served is not None  # text alone was not asked for
    ids = _text_ids(tokenizer, tokens + _TAIL_TOKENS)
    # A longrope table changes with the length: a short text has that of the larger frames where theirs begins.
    expected = _plain(model, ids, served.first_position)[-_TAIL_TOKENS:]
    rounding = compare(_plain_in_chunks(model, ids, served.first_position)[-_TAIL_TOKENS:], expected)
    if formats_of(model):  # they compute the same in chunks, and another code for the least difference of a number
        rounding = max(rounding, compare(_nudged(model, ids, served.first_position), expected), key=_logit)
    bound = _SLACK * rounding.logit + _SMALLEST_BOUND

    def judge(part: str, logits: torch.Tensor, *, lossy: bool = False) -> Check:
        difference = compare(logits, expected)
        if lossy:
            return Check(part, difference, "approximate" if difference.kl <= _WORST_KL else "wrong")
        return Check(part, difference, "exact" if difference.logit <= bound else "wrong")

    checks = [judge("frame", _resident(model, tokenizer, ids))]
    lossless = {"fp32"} if served.dtype != torch.bfloat16 else {"fp32", "bf16"}
    for codec in CODECS:
        logits = _restored(model, tokenizer, ids, codec, moved=0)
        checks.append(judge(f"archive {codec}", logits, lossy=codec not in lossless))
    # Moving takes a larger frame, which must have the same table.
    largest = table_tokens(config, tokens + _AROUND_TOKENS) - tokens - _AROUND_TOKENS
    moved = min(served.window // 2, _MOVED_POSITIONS, largest)
    checks.append(judge(f"moved by {moved:,}", _restored(model, tokenizer, ids, "fp32", moved=moved)))
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    parameters = getattr(config, "rope_parameters", None) or {}
    return DoctorReport(
        model=name or str(getattr(model, "name_or_path", "")) or config.model_type,
        dtype=dtype_name(served.dtype),
        layers=_layers(kinds, served),
        archived_layers=served.layers,
        query_heads=served.query_heads,
        kv_heads=served.kv_heads,
        head_dim=served.head_dim,
        window=served.window,
        rope=str(parameters.get("rope_type", "by layer kind")),
        tokens=tokens,
        rounding=rounding,
        checks=tuple(checks),
        frame_tokens=default.frame.tokens,
        frame_bytes=frame_bytes(served, default).total,
        made_with=provenance(model),
    )


def _layers(kinds: Sequence[str], served: AttachedModel) -> dict[str, int]:
    """Return how many layers there are of each kind; "without RoPE" are archived ones that do not rotate (NoPE)."""
    counts = collections.Counter(kinds)
    bare = collections.Counter(kinds[layer] for layer in served.archived[served.rotated :])
    named = {kind: counts[kind] - bare[kind] for kind in counts} | {f"{kind}, no RoPE": bare[kind] for kind in bare}
    return {kind: count for kind, count in named.items() if count}


def compare(logits: torch.Tensor, expected: torch.Tensor) -> Difference:
    """Compare logits with expected [n, V] of the same tokens; KL(expected || logits)."""
    ours, theirs = logits.double().cpu(), expected.double().cpu()
    own = torch.log_softmax(ours, dim=-1)
    plain = torch.log_softmax(theirs, dim=-1)
    kl = float((plain.exp() * (plain - own)).sum(dim=-1).mean())
    return Difference(
        logit=float((ours - theirs).abs().max()),
        kl=0.0 if kl < 0 else kl,  # rounding; NaN stays
        agreement=float((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).double().mean()),
    )


def _text_ids(tokenizer: Any, count: int) -> torch.Tensor:
    text = "\n\n".join(book.text for book in shipped_books())[: 12 * count]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([*start_ids(tokenizer), *ids][:count], dtype=torch.int64, device="cpu")


@torch.no_grad()
def _plain(model: Any, ids: torch.Tensor, first_position: int) -> torch.Tensor:
    arguments = {"input_ids": ids[None].to(model.device), **_positions(model, first_position, len(ids))}
    logits: torch.Tensor = model(**arguments, use_cache=False).logits[0]
    return logits


def _positions(model: Any, first: int, count: int) -> dict[str, torch.Tensor]:
    """Return positions from a first one on, as a model's forward takes them; none where it counts from 0 by itself."""
    return {"position_ids": torch.arange(first, first + count, device=model.device)[None]} if first > 0 else {}


@torch.no_grad()
def _plain_in_chunks(model: Any, ids: torch.Tensor, first_position: int) -> torch.Tensor:
    cache = transformers.DynamicCache(config=model.config)
    rows = []
    for number, chunk in enumerate(torch.split(ids, _CHUNK_TOKENS)):
        first = first_position + number * _CHUNK_TOKENS if first_position > 0 else 0
        arguments = {"input_ids": chunk[None].to(model.device), **_positions(model, first, len(chunk))}
        out = model(**arguments, **{cache_argument(model): cache}, use_cache=True)
        rows.append(out.logits[0])
    return torch.cat(rows)


@torch.no_grad()
def _nudged(model: Any, ids: torch.Tensor, first_position: int) -> torch.Tensor:
    """Return logits [tail, V] with numbers of the input embeddings off by a little, as arithmetic in fp32 may be."""

    def nudge(_: torch.nn.Module, __: object, rows: torch.Tensor) -> torch.Tensor:
        signs = torch.arange(rows.numel(), device=rows.device).view(rows.shape) * 7 % 3 - 1
        return rows * (1 + _NUDGE * signs.to(rows.dtype))

    hook = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        return _plain(model, ids, first_position)[-_TAIL_TOKENS:]
    finally:
        hook.remove()


def _logit(difference: Difference) -> float:
    return difference.logit


def _resident(model: Any, tokenizer: Any, ids: torch.Tensor) -> torch.Tensor:
    config = _whole(len(ids), "fp32")
    with MemoryModel(model, tokenizer, None, config) as mm:
        return mm.frame.extend(ids[mm.frame.text_begin :], "read", logits=True)[-_TAIL_TOKENS:]


def _restored(model: Any, tokenizer: Any, ids: torch.Tensor, codec: str, *, moved: int) -> torch.Tensor:
    """Archive all but the tail. In a second frame bring it back, `moved` positions further on, and read the tail."""
    text, tail = ids[:-_TAIL_TOKENS], ids[-_TAIL_TOKENS:]
    # Without sinks every token comes back through the archive, and all of them move alike.
    config = _whole(len(ids), codec, sink_tokens=0)
    with MemoryModel(model, tokenizer, None, config) as writer:
        writer.frame.extend(text[writer.frame.text_begin :], "read")
        writer.frame.close()  # it leaves what the second frame goes on from
        memory: Memory = writer.memory
        memory.end_writing(writer)
        page = config.archive.page_tokens
        kept = min(page, len(text) // 2)  # what comes back by itself: rolling, just before it is cut back
        evict = max(1, kept // 8)
        recalled = len(text) - kept + moved
        small = config.changed(
            frame={
                "recalled_tokens": recalled,
                "rolling_tokens": kept + 1 - evict,
                "evict_tokens": evict,
                "chunk_tokens": _CHUNK_TOKENS,
                "tokens": recalled + kept + _AROUND_TOKENS,  # as the writer's: one table serves both
            },
            archive={"block_tokens": kept + 1 - evict},
        )
        with MemoryModel(model, tokenizer, memory, small) as reader:
            reader.frame.recall(memory.core.blocks.pages_of(0, 0, len(text)))
            assert reader.frame.os.recalled_tokens == len(text) - kept
            return reader.frame.extend(tail, "prompt", logits=True)


def _whole(tokens: int, codec: str, sink_tokens: int = FrameConfig().sink_tokens) -> MemoryConfig:
    """Return a config whose frame holds `tokens` tokens, so that nothing ever leaves it."""
    return MemoryConfig(
        frame=FrameConfig(
            tokens=tokens - _TAIL_TOKENS + _AROUND_TOKENS,
            sink_tokens=sink_tokens,
            recalled_tokens=0,
            rolling_tokens=tokens,
            evict_tokens=_CHUNK_TOKENS,
            chunk_tokens=_CHUNK_TOKENS,
        ),
        archive=ArchiveConfig(
            block_tokens=min(ArchiveConfig().block_tokens, tokens),
            codec=codec,
        ),
        search=SearchConfig(index=("lexical",)),
    )
