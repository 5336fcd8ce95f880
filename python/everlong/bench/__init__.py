"""What a memory costs: reading, decoding and asking, each beside transformers alone in the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from everlong.bench import asking, cold, decoding, reading
from everlong.bench.grown_memory import book_ids, grow, read_seed
from everlong.errors import UnsupportedModelError
from everlong.frame.capacity import check_capacity
from everlong.frame.model_setup import TextAloneError
from everlong.generation.memory_model import MemoryModel
from everlong.models import dtype_name
from everlong.models.profiles import profiles_in
from everlong.models.provenance import provenance

MAY_IMPORT: Final = (
    "codecs",
    "config",
    "data",
    "errors",
    "frame",
    "generation",
    "kv_cache",
    "models",
    "ops",
    "retrieval",
    "text",
)

# With these the defaults take about a minute on two cores for a model of 135M parameters.
_READ_ROUNDS = 4
_DECODED_TOKENS, _DECODE_ROUNDS = 16, 2
_ASK_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class BenchReport:
    """What a memory costs with one model on one machine. Only figures of the same report can be compared."""

    model: str
    dtype: str
    reading: reading.ReadingCost
    decoding: tuple[decoding.DecodingCost, ...]  # by size, ascending
    asking: tuple[asking.QuestionCost, ...]  # the same sizes; a question of `question_tokens`
    question_tokens: int
    frame_bytes: int  # most bytes of the frame on the device, also while reading
    disk_token_bytes: float  # bytes for a token of the largest memory, over all of its files
    made_with: dict[str, Any]  # everlong.models.provenance


@dataclasses.dataclass(frozen=True)
class ColdReport:
    """What a memory on disk costs a first token."""

    model: str
    dtype: str
    asking: tuple[cold.Cold, ...]  # by size, ascending
    made_with: dict[str, Any]


def run_bench(
    model: Any, tokenizer: Any, *, name: str = "", tokens: int = 4096, sizes: Sequence[int] = (10_000, 100_000)
) -> BenchReport:
    """Read about `tokens` tokens of the shipped books, grow what was read to each of `sizes`, decode and ask there.

    `tokens` is rounded to whole chunks in rounds of one length. The memory has the default config and lies in a
    temporary folder. The model's weights and hooks are left as they were, and so is what the machine knows of its
    heads.

    Raises UnsupportedModelError for a model whose keys and values cannot be spliced, even where text alone works.
    Raises ValueError for fewer than one token or size, or more tokens than the books have, and CapacityError for sizes
    that do not fit.
    """
    if tokens < 1 or not sizes or min(sizes) < 1:
        raise ValueError(f"tokens is {tokens}, sizes are {list(sizes)}: expected at least 1, and at least one size")
    with _place(model, max(*sizes, tokens)) as place, MemoryModel(model, tokenizer, place) as mm:
        return _measured(mm, name, tokens, sorted(set(sizes)))


def run_cold(
    model: Any, tokenizer: Any, *, name: str = "", sizes: Sequence[int] = (100_000,), rounds: int = 9
) -> ColdReport:
    """Measure first tokens of memories of `sizes` tokens, or 8,192 where that is more, on disk alone (bench/cold.py).

    Errors as `run_bench` raises them.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes are {list(sizes)}: expected at least one, of at least 1")
    asked = []
    with _place(model, max(sizes)) as place:
        with MemoryModel(model, tokenizer, place) as mm:
            read_seed(mm)
            config = mm.config.changed(archive={"host_bytes": 0})
        for size in sorted(set(sizes)):
            with MemoryModel(model, tokenizer, place, config) as mm:
                grow(mm, size)
            with MemoryModel(model, tokenizer, place, config) as mm:
                asked.append(cold.measure(mm, place, rounds))
    return ColdReport(_name(model, name), dtype_name(model.dtype), tuple(asked), provenance(model))


@contextlib.contextmanager
def _place(model: Any, tokens: int) -> Iterator[Path]:
    """Context manager: a place for a memory of so many tokens of the model, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder, profiles_in(None):
        place = Path(folder) / "grown.everlong"
        try:
            check_capacity(model, None, tokens, place, "smaller --sizes")
        except TextAloneError as error:
            raise UnsupportedModelError(
                f"bench measures memories of keys and values: {error.reason}. `everlong read` and `everlong ask` serve "
                "it by text alone with --set answer.recall_mode=text"
            ) from None
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"bench measures memories of keys and values: {error}") from None
        yield place


def _measured(mm: MemoryModel, name: str, tokens: int, sizes: Sequence[int]) -> BenchReport:
    """Measure in a new memory, and fill it."""
    chunk, span = reading.chunk_tokens(mm.config), reading.span_tokens(mm.config)
    warm_up = reading.warm_up_tokens(mm.config)
    rounds = max(1, min(_READ_ROUNDS, tokens // chunk))
    timed = rounds * max(chunk, tokens // rounds // chunk * chunk)
    ids = book_ids(mm, warm_up + timed)
    if len(ids) < warm_up + timed:
        raise ValueError(f"{warm_up + timed:,} tokens are needed, the shipped books have {len(ids):,}: fewer --tokens")

    cache = reading.prefilled(mm.model, ids[:span])
    reading.baseline_seconds(mm.model, cache, ids[span:warm_up], chunk)
    mm.frame.extend(ids[:warm_up], "read")
    mm.frame.checkpoint()
    mm.calibrate()  # before the timed rounds, which then index keys of these heads
    read = reading.measure(mm, cache, ids[warm_up:], rounds)
    mm.frame.checkpoint()

    decoded, asked = [], []
    for size in sizes:
        held = grow(mm, size)
        asked.append(asking.measure(mm, held, _ASK_ROUNDS))
        some = ids[: decoding.resident_tokens(mm) + _DECODED_TOKENS]
        decoded += decoding.measure([(held, mm)], some, _DECODED_TOKENS, _DECODE_ROUNDS)
    stats = mm.memory.stats()
    return BenchReport(
        model=_name(mm.model, name),
        dtype=dtype_name(mm.model.dtype),
        reading=read,
        decoding=tuple(decoded),
        asking=tuple(asked),
        question_tokens=asking.QUESTION_TOKENS,
        frame_bytes=mm.frame.zones.bytes.total,
        disk_token_bytes=stats.disk_bytes / stats.tokens,
        made_with=provenance(mm.model),
    )


def _name(model: Any, name: str) -> str:
    return name or str(getattr(model, "name_or_path", "")) or model.config.model_type
