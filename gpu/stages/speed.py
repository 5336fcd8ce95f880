"""How fast everlong is on the device.

Its operators stand beside a copy of the same bytes and beside torch, the search of its indexes beside the host's,
reading and decoding beside plain transformers. A model of random weights is as fast as any of its size.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from kv_operators import GEOMETRIES, PAGE, Geometry, Memcpy, decode, encode, rotate, unrotate

import everlong
import everlong._core as _core
from everlong import ops
from everlong.bench import decoding, reading
from stages.check import Check
from support import byte_tokenizer, tiny_model

CODECS = ("bf16", "e4m3", "e5m2")
ROUNDS, EAGER_ROUNDS = 7, 3
HOST_WAITS = 10_000_000  # cycles that the device sleeps, so that what follows is enqueued when it begins


def run(check: Check) -> None:
    sizes = (16_384, 65_536) if check.small else (1_000_000, 10_000_000)
    torch.zeros(1, device=check.device)
    threads = ThreadPoolExecutor(4)
    try:
        archives = {tokens: Archives(threads, check, tokens) for tokens in sizes}
        operators(check)
        for tokens, made in archives.items():
            search(check, tokens, made)
        models(check)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


# --- operators


@dataclasses.dataclass(frozen=True)
class Case:
    operator: str
    moved: int  # bytes read and written
    run: Callable[[], object]
    eager: Callable[[], object]


def operators(check: Check) -> None:
    rows = []
    for geometry in GEOMETRIES[:1] if check.small else reversed(GEOMETRIES):
        # Far more than a cache holds: 600 MB of keys and values.
        tokens = (
            1024 if check.small else 4096 * 36 * 8 * 128 // (geometry.layers * geometry.kv_heads * geometry.head_dim)
        )
        found: list[Case] = []
        with check.case(f"{geometry.name}: its frame"), torch.inference_mode():
            found = cases(geometry, tokens // 512 * 512, check.device)
        for case in found:
            with check.case(f"{geometry.name} {case.operator}"), torch.inference_mode():
                rows.append(measured(check, geometry, case))
                check.tell("operators", rows)
        del found
    if check.on_gpu:
        torch.cuda.empty_cache()


def measured(check: Check, geometry: Geometry, case: Case) -> dict[str, Any]:
    copy = Memcpy(case.moved, False, check.device)
    ours, copied = (milliseconds(check, run, ROUNDS) for run in (case.run, copy))
    eager = milliseconds(check, case.eager, EAGER_ROUNDS)
    started = time.perf_counter()
    case.run()
    if check.on_gpu:
        torch.cuda.synchronize()
    called = 1e3 * (time.perf_counter() - started)
    name = f"{geometry.name} {case.operator}"
    check.figure(f"{name}: of a copy", copied / ours, wanted=">= 0.85" if check.on_gpu else None)
    check.figure(f"{name}: times eager", eager / ours, wanted=">= 10" if check.on_gpu else None)
    row = {"geometry": geometry.name, "operator": case.operator, "GB/s": case.moved / ours / 1e6, "ms": ours}
    return {**row, "a copy, ms": copied, "eager, ms": eager, "a call alone, ms": called}


def milliseconds(check: Check, run: Callable[[], object], rounds: int) -> float:
    """Return the median of `rounds` calls, after one that warms up; on a GPU, the device's time."""
    taken = []
    for _ in range(rounds + 1):
        if not check.on_gpu:
            started = time.perf_counter()
            run()
            taken.append(1e3 * (time.perf_counter() - started))
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(HOST_WAITS)  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        taken.append(float(begin.elapsed_time(end)))
    return statistics.median(taken[1:])


def cases(geometry: Geometry, tokens: int, device: torch.device) -> list[Case]:
    """Return the cases as the frame calls them: frequencies, slots and positions lie on the host."""
    layers, heads, dim = geometry.layers, geometry.kv_heads, geometry.head_dim
    k, v = (torch.randn(layers, heads, tokens, dim, device=device, dtype=torch.bfloat16) for _ in range(2))
    inv_freq = 1e6 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    at = torch.arange(tokens)
    here, frequencies = at.to(device), inv_freq.to(device)
    angles = at.double()[:, None] * inv_freq
    cos, sin = angles.cos().float().to(device), angles.sin().float().to(device)
    kv_bytes = 2 * k.numel() * k.element_size()
    by = tokens // 8
    moved_slots = tokens - by

    def phases(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of_all = positions.double()[:, None] * frequencies
        return of_all.cos().float(), of_all.sin().float()

    def eager_shift() -> None:
        c, s = (-by * frequencies).cos().float(), (-by * frequencies).sin().float()
        k[:, :, :moved_slots] = rotate(k[:, :, by:], c, s).bfloat16()
        v[:, :, :moved_slots] = v[:, :, by:].clone()

    # Take every eighth slot out of the frame, un-rotated, and put them back without gaps.
    sources, rows, nowhere = at[::8], at[:by], torch.zeros(by, dtype=torch.int64)
    sources_here, rows_here = sources.to(device), rows.to(device)
    masters = [torch.zeros(layers, heads, by, dim, device=device, dtype=torch.bfloat16) for _ in range(2)]
    masters += [torch.ones(by, dim // 2, device=device), torch.zeros(by, dim // 2, device=device)]
    masters_k, masters_v, ones, zeros = masters

    def take() -> None:
        into = (masters_k, masters_v, ones, zeros, rows, nowhere)
        ops.gather_kv_(k, v, cos, sin, sources, *into, inv_freq)

    def put() -> None:
        of = (masters_k, masters_v, ones, zeros, rows)
        ops.gather_kv_(*of, k, v, cos, sin, rows, rows, inv_freq)

    def eager_take() -> None:
        masters_k.copy_(unrotate(k[:, :, sources_here], cos[sources_here], sin[sources_here]))
        masters_v.copy_(v[:, :, sources_here])

    def eager_put() -> None:
        k[:, :, :by] = rotate(masters_k[:, :, rows_here], *phases(rows_here)).bfloat16()
        v[:, :, :by] = masters_v[:, :, rows_here]

    found = [
        Case(
            "shift_kv_",
            2 * kv_bytes * moved_slots // tokens,
            lambda: ops.shift_kv_(k, v, cos, sin, by, 0, moved_slots, -by, inv_freq),
            eager_shift,
        ),
        Case("gather_kv_, take 1 of 8", 2 * kv_bytes // 8, take, eager_take),
        Case("gather_kv_, put back", 2 * kv_bytes // 8, put, eager_put),
    ]
    refused = torch.empty(ops.REFUSED_BYTES, dtype=torch.uint8, device=device)
    for codec in CODECS:
        payload = ops.archive_kv(k, v, cos, sin, 0, tokens, PAGE, codec)
        out = torch.empty_like(payload)
        page_bytes = payload.numel() // (tokens // PAGE)
        places = torch.tensor([[i * page_bytes, PAGE, 0, PAGE, i * PAGE, i * PAGE] for i in range(tokens // PAGE)])

        def archive(codec: str = codec, out: torch.Tensor = out) -> None:
            ops.archive_kv(k, v, cos, sin, 0, tokens, PAGE, codec, out=out, refused=refused)

        def eager_archive(codec: str = codec) -> torch.Tensor:
            return encode(unrotate(k, cos, sin), v, codec)

        def restore(codec: str = codec, payload: torch.Tensor = payload, places: torch.Tensor = places) -> None:
            ops.restore_kv(payload, places, k, v, cos, sin, PAGE, codec, inv_freq)

        def eager_restore(codec: str = codec, payload: torch.Tensor = payload) -> None:
            keys, values = decode(payload, geometry, codec)
            k.copy_(rotate(keys, *phases(here)))
            v.copy_(values)

        moved = kv_bytes + payload.numel()
        found.append(Case(f"archive_kv {codec}", moved, archive, eager_archive))
        found.append(Case(f"restore_kv {codec}", moved, restore, eager_restore))
    return found


# --- the search of an archive

BLOCK, KV_HEADS, DIM = 65_536, 2, 64
HEADS = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 4, 1)]
PACK, MEANING_DIM, GROUP = "speed", 128, 4
QUESTION = 16
NEVER = 2**31 - 1  # pages from which on the heads go by two levels
DEVICE_BYTES = 4 << 30


class Archives:
    """Two memories of as many tokens, made by threads meanwhile: one is searched on the host, one on the device."""

    def __init__(self, threads: ThreadPoolExecutor, check: Check, tokens: int) -> None:
        self.by_place: dict[str, Future[_core.Memory]] = {"host": threads.submit(archive_of, tokens, None)}
        if check.on_gpu:
            self.by_place["device"] = threads.submit(archive_of, tokens, check.device.index)


def archive_of(tokens: int, device: int | None) -> _core.Memory:
    """Return a memory of blocks of the same random keys and vectors of meaning, again and again."""
    rng = np.random.default_rng(0)
    count = min(BLOCK, tokens)
    keys = torch.from_numpy(rng.standard_normal((1, KV_HEADS, count, DIM), dtype=np.float32))
    payload = ops.encode_kv(keys, torch.zeros_like(keys), PAGE, "e4m3").numpy()
    codes = rng.integers(-127, 128, (count // GROUP, MEANING_DIM), dtype=np.int8)
    token_ids = (np.arange(count) // 16 % 4096).astype(np.int32)
    manifest = _core.Manifest(
        weights="", rope="", tokenizer="", layers=1, kv_heads=KV_HEADS, head_dim=DIM, page_tokens=PAGE, codec="e4m3"
    )
    memory = _core.Memory.create(None, manifest)
    for begin in range(0, tokens - count + 1, count):
        memory.blocks.append(
            stream=0,
            begin=begin,
            end=begin + count,
            sink_tokens=0,
            source="",
            created_at=0,
            tags=[],
            token_ids=token_ids,
            payload=payload,
            tensors={f"meaning.{PACK}": codes},
        )
    room = 0 if device is None else DEVICE_BYTES
    memory.index.set_retrieval_heads(HEADS, NEVER, "e4m3", device, room)
    memory.index.set_meaning(PACK, MEANING_DIM, GROUP, device, room)
    return memory


def search(check: Check, tokens: int, archives: Archives) -> None:
    """Measure milliseconds of a question of 16 tokens; the device must find what the host does."""
    rng = np.random.default_rng(1)
    questions: dict[str, dict[str, Any]] = {
        "heads": {
            "token_ids": np.arange(QUESTION, dtype=np.int32),
            "head_queries": 2 * rng.standard_normal((QUESTION, len(HEADS), DIM)).astype(np.float32),
        },
        "meaning": {
            "token_ids": np.zeros(0, dtype=np.int32),
            "meaning_query": rng.standard_normal((QUESTION, MEANING_DIM)).astype(np.float32),
        },
    }
    with check.case(f"search, {tokens:,} tokens"):
        # The rest of the time is for the models.
        try:
            memories = {name: made.result(max(check.left - 45, 1)) for name, made in archives.by_place.items()}
        except TimeoutError:
            check.tell(f"search, {tokens:,} tokens", f"left out: it is not made with {check.left:.0f} s left")
            return
        for part, question in questions.items():
            found, took = {}, {}
            for name, memory in memories.items():

                def ask(memory: _core.Memory = memory, part: str = part, question: Any = question) -> object:
                    return memory.search.find(
                        kinds=[part], max_groups=1, neighbours=0, token_budget=1 << 30, **question
                    )

                took[name] = 1e3 * median_seconds(ask, 5)
                found[name] = memory.search.rankings(100, kinds=[part], **question)
                check.figure(f"{part}, {tokens:,} tokens: a question on the {name}", took[name], "ms")
            if "device" not in memories:
                continue
            held, scans = memories["device"].index.device_use(part)
            check.tell(f"{part}, {tokens:,} tokens: bytes of the device", held)
            check.figure(f"{part}, {tokens:,} tokens: times faster than the host", took["host"] / took["device"])
            assert scans > 0, memories["device"].index.take_messages()
            require_same(part, found["device"], found["host"])
        for memory in memories.values():
            memory.close()


def require_same(part: str, got: list[_core.PageRanking], want: list[_core.PageRanking]) -> None:
    for one, other in zip(got, want, strict=True):
        scores = np.array([one.scores, other.scores])
        unlike = float(np.abs(scores[0] / scores[1] - 1).max())
        places = [{(page.block, page.page) for page in ranking.pages} for ranking in (one, other)]
        shared = len(places[0] & places[1]) / len(places[1])
        of = f"{part}, {one.granularity}: scores off by {unlike:.2e}, {shared:.0%} of the host's pages"
        # Masses are the same except for the order of their sums; scores of meaning are the same.
        assert unlike <= (1e-4 if part == "heads" else 0.0), of
        assert shared >= (0.95 if part == "heads" else 1.0), of


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median after one call that warms up."""
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


# --- reading and decoding


@dataclasses.dataclass(frozen=True)
class Measured:
    """A model, and how much of it there is time for."""

    name: str
    model_type: str
    shape: dict[str, Any]
    seconds: float  # most seconds that it takes
    rounds: int
    round_tokens: int
    decoded: int


_SHARED = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "vocab_size": 32_000,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
_LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64, **_SHARED}
_QWEN = {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "head_dim": 128, **_SHARED}
MODELS = (
    Measured("Llama, 1B", "llama", _LLAMA, seconds=15, rounds=5, round_tokens=4096, decoded=48),
    Measured("Qwen3, 8B", "qwen3", _QWEN, seconds=22, rounds=3, round_tokens=2048, decoded=24),
)
TINY = Measured("tiny", "llama", {}, seconds=0, rounds=2, round_tokens=1024, decoded=4)


def models(check: Check) -> None:
    if check.small:
        measure_model(check, tiny_model(), TINY)
        return
    for measured in MODELS:
        if check.left < measured.seconds:
            check.tell(f"{measured.name}: left out", f"{check.left:.0f} s left")
            continue
        torch.manual_seed(0)
        model = None
        with check.case(f"{measured.name}: it is made"), check.device:
            config = transformers.AutoConfig.for_model(measured.model_type, **measured.shape)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        if model is not None:
            measure_model(check, model, measured)
        del model
        if check.on_gpu:
            torch.cuda.empty_cache()


def measure_model(check: Check, model: Any, measured: Measured) -> None:
    """Measure both in turns beside the same model in transformers alone, over as many tokens."""
    window = model.config.max_position_embeddings
    config = everlong.MemoryConfig.fitting(window).changed(search={"index": ("heads", "lexical")})
    chunk, span, warm_up = reading.chunk_tokens(config), reading.span_tokens(config), reading.warm_up_tokens(config)
    ids = torch.randint(0, 256, (warm_up + measured.rounds * (measured.round_tokens // chunk * chunk),))
    with check.case(f"{measured.name}: reading and decoding"), tempfile.TemporaryDirectory() as folder:
        cache = reading.prefilled(model, ids[:span])
        reading.baseline_seconds(model, cache, ids[span:warm_up], chunk)
        with everlong.MemoryModel(model, byte_tokenizer(), Path(folder) / "m", config, pack=None) as mm:
            mm.frame.extend(ids[:warm_up], "read")
            mm.frame.checkpoint()
            mm.calibrate()  # before the timed rounds, which then index keys of these heads
            read = reading.measure(mm, cache, ids[warm_up:], measured.rounds)
            check.figure(
                f"{measured.name}: reading, of chunked prefill", read.ratio, wanted=">= 0.9" if check.on_gpu else None
            )
            check.tell(f"{measured.name}: reading", dataclasses.asdict(read))
            held = mm.memory.stats().tokens
            some = ids[: decoding.resident_tokens(mm) + measured.decoded]
            (row,) = decoding.measure([(held, mm)], some, measured.decoded, 2)
            check.figure(
                f"{measured.name}: decoding, of transformers", row.ratio, wanted=">= 0.95" if check.on_gpu else None
            )
            check.tell(f"{measured.name}: decoding", dataclasses.asdict(row))
