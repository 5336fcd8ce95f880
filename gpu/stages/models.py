"""Models on the device against plain transformers there and against the CPU, and what happens when memory runs out."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.utils.import_utils import is_flash_attn_2_available

import everlong
from everlong.config.answer import RecallMode
from everlong.doctor import DoctorReport, examine
from everlong.frame.budget import frame_bytes
from everlong.models import load
from everlong.models.attach import attach
from everlong.parts.trimmer import Trimmer
from everlong.parts.writer import Writer
from stages.check import Check
from stages.full_device import Ballast, empty_cache, memory_runs_out
from stages.random_words import Words, as_text, random_qwen3, word_tokenizer
from support import ARCHITECTURES, SMALL, TINY_KINDS, byte_tokenizer, random_text, tiny_model

CPU = torch.device("cpu")
ROUNDING = 1e-3  # of a logit: what a tiny fp32 model may differ by on another device
TEXT = random_text(1500)
QUOTES = [TEXT[at : at + 30] for at in (300, 640, 900)]
WORDS_ALONE = SMALL.changed(search={"index": ("lexical",)})
KEPT = {"kept_tokens": 32, "kept_share": 8, "kept_rungs": 3}
MODES: dict[RecallMode, everlong.MemoryConfig] = {
    "kv": WORDS_ALONE,
    "auto": WORDS_ALONE,
    "text": WORDS_ALONE,
    "kept": WORDS_ALONE.changed(frame=KEPT).with_part(Trimmer(by="key_norm")),
    "detail": WORDS_ALONE.with_part(Writer(3)),
    "both": WORDS_ALONE.with_part(Writer(3)),
}
KL_OF_16_BITS = 1e-3  # nats, for what is exact except for rounding to bf16
# Left on a nearly full device: what forward passes, snapshots and the index take beside the frame
SPARE_BYTES = 512 << 20


def run(check: Check) -> None:
    torch.set_num_threads(1)  # tiny models gain nothing from a second one
    # Means of embeddings stand for the writer's tokens here.
    warnings.filterwarnings("ignore", message="answer.recall_mode=.*no writer was trained")
    written_here_and_read_there(check)
    recall_modes(check)
    lives(check)
    doctor(check)
    quantized(check)
    nearly_full(check)
    for within in ("forward", "step"):
        with check.case(f"memory runs out within a {within} of a read"):
            memory_runs_out_within(check, within)


def opened(device: torch.device, folder: Any = None, config: everlong.MemoryConfig = SMALL) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model().to(device), byte_tokenizer(), folder, config, pack=None)


def next_logits(mm: everlong.MemoryModel, text: str) -> torch.Tensor:
    """Return the logits of a text behind what the frame holds; nothing of the text stays."""
    with mm.frame.branch():
        return mm.frame.extend(mm.encode(text), "read", logits=True).cpu()


def require_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    difference = float((got - expected).abs().max())
    if not difference <= ROUNDING:
        raise AssertionError(f"logits differ by {difference:.3g}, expected at most {ROUNDING}")


def require_equal(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise AssertionError(f"{what}: {got!r}, expected {expected!r}")


# --- a memory of one device on another


def written_here_and_read_there(check: Check) -> None:
    for writer in (CPU, check.device):
        for codec in ("fp32", "e4m3"):
            with (
                check.case(f"written on the {writer.type} in {codec}, read on both"),
                tempfile.TemporaryDirectory() as folder,
            ):
                config = WORDS_ALONE.changed(archive={"codec": codec}, answer={"recall_mode": "kv"})
                with opened(writer, Path(folder) / "m", config) as mm:
                    mm.read(random_text(900))
                expected, found = behind_recalled(CPU, Path(folder) / "m", config)
                got, found_here = behind_recalled(check.device, Path(folder) / "m", config)
                require_equal("what was recalled", found_here, found)
                require_close(got, expected)


def behind_recalled(
    device: torch.device, folder: Path, config: everlong.MemoryConfig
) -> tuple[torch.Tensor, list[tuple[int, tuple[int, int]]]]:
    """Return the logits of a text behind recalled pages, and what a question finds; the memory stays as it is."""
    with everlong.Memory.open(folder, read_only=True) as memory, opened(device, memory, config) as mm:
        found = [(recall.block_id, recall.span) for recall in mm.recall(random_text(900)[200:230])]
        with mm.frame.branch():
            mm.frame.recall(memory.core.blocks.pages()[1:4])
            return next_logits(mm, random_text(40, seed=2)), found


# --- ways to recall


def recall_modes(check: Check) -> None:
    for mode, settings in MODES.items():
        config = settings.changed(answer={"recall_mode": mode})
        with check.case(f"recall_mode {mode} answers as on the CPU"):
            require_equal("answers", answers(check.device, config), answers(CPU, config))
    with check.case("heads find on the device what they find on the CPU"):
        by_device = {device: by_heads(device) for device in (CPU, check.device)}
        check.tell("retrieval heads", {str(device): heads for device, (heads, _) in by_device.items()})
        require_equal("places", by_device[check.device][1], by_device[CPU][1])


def answers(device: torch.device, config: everlong.MemoryConfig) -> list[tuple[object, object]]:
    with opened(device, config=config) as mm:
        mm.read(TEXT)
        found = [mm.generate(quote, max_new_tokens=12, remember=False) for quote in QUOTES]
    return [([(one.block_id, one.span, one.as_details) for one in it.recalled], it.token_ids) for it in found]


def by_heads(device: torch.device) -> tuple[object, list[bool]]:
    """Return the heads that were found, and whether the index ranks each quote's place first."""
    text = "".join(random_text(64, seed=seed) for seed in range(80))
    places = (1000, 2311, 3640)
    with opened(device) as mm:
        mm.read(text)
        profile = mm.calibrate()
        first = [mm.recall(text[at : at + 30])[0].span for at in places]
        if device.type != "cpu":
            held, scans = mm.memory.core.index.device_use("heads")
            if held == 0 or scans < len(places):
                raise AssertionError(
                    f"the GPU searched {scans} times, in {held} bytes: {mm.memory.core.index.take_messages()}"
                )
    return profile.heads, [begin <= at < end for at, (begin, end) in zip(places, first, strict=True)]


# --- fork, close, open again


def lives(check: Check) -> None:
    with check.case("a memory is closed, forked and opened again"), tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        with opened(check.device, first, WORDS_ALONE) as mm:
            mm.read(TEXT, source="book")
            expected = next_logits(mm, "and so on")
            answer = mm.generate(QUOTES[0], max_new_tokens=12, remember=False)
            mm.memory.fork(second).close()
        for path in (first, second):
            with opened(check.device, path, WORDS_ALONE) as mm:
                require_close(next_logits(mm, "and so on"), expected)
                again = mm.generate(QUOTES[0], max_new_tokens=12, remember=False)
                require_equal(f"the answer in {path.name}", again.token_ids, answer.token_ids)
                mm.read(f"only {path.name}", source=path.name)
        for path, other in ((first, second), (second, first)):
            with opened(check.device, path, WORDS_ALONE) as mm:
                require_equal("blocks of the other", mm.memory.blocks(source=other.name), [])
                require_equal("own text", "".join(map(mm.text, ids_of(mm, path.name))), f"only {path.name}")


def ids_of(mm: everlong.MemoryModel, source: str) -> list[int]:
    return [block.id for block in mm.memory.blocks(source=source)]


# --- every architecture


def doctor(check: Check) -> None:
    # The last cases of this stage need some seconds.
    needed = 0 if check.small else 25
    for implementation, kinds, dtype in doctor_runs(check):
        passed_over = []
        for kind, rope in kinds:
            if check.left < needed:
                passed_over.append(f"{kind}, {rope}")
                continue
            examine_one(check, kind, rope, implementation, dtype)
        if passed_over:
            check.tell(f"not examined for want of time: {implementation}, {dtype}", passed_over)


def doctor_runs(check: Check) -> Iterator[tuple[str, Sequence[tuple[str, str]], torch.dtype]]:
    if check.small:
        yield "sdpa", [("llama", "default")], torch.float32
        yield "eager", [("gemma3", "nested")], torch.float32
        return
    yield "sdpa", TINY_KINDS, torch.float32
    yield "eager", ARCHITECTURES, torch.float32
    if is_flash_attn_2_available():
        yield "flash_attention_2", ARCHITECTURES, torch.bfloat16
    else:
        check.tell("flash_attention_2", "flash-attn is not installed")
    yield "sdpa", [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")], torch.bfloat16


def examine_one(check: Check, kind: str, rope: str, implementation: str, dtype: torch.dtype) -> None:
    model = tiny_model(kind, rope)
    if not getattr(model, {"sdpa": "_supports_sdpa", "eager": "eval"}.get(implementation, "_supports_flash_attn")):
        return
    name = f"doctor: {kind}, {rope} RoPE, {implementation}, {str(dtype).removeprefix('torch.')}"
    if dtype != torch.float32:
        for parameter in model.parameters():  # model.to would round the frequencies, too
            parameter.data = parameter.data.to(dtype)
    model.set_attn_implementation(implementation)
    model.to(check.device)
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(64, device=check.device)[None])
    except Exception as error:
        check.tell(f"transformers alone cannot run {name.removeprefix('doctor: ')}", repr(error)[:300])
        return
    with check.case(name):
        require_healthy(examine(model, byte_tokenizer(), tokens=128 if check.small else 256))


# --- weights in fewer bits


def quantized(check: Check) -> None:
    """Examine a model whose weights a library keeps in fewer bits, and open its memory again, in each that is there."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(hidden_size=128, intermediate_size=256, head_dim=32, max_position_embeddings=4096)
        model.to(torch.bfloat16).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        for name, config in quantizations(check):
            try:
                loaded, tokenizer = load(folder, quantization_config=config, device_map=str(check.device))
            except Exception as error:
                check.tell(f"transformers alone cannot load {name}", repr(error)[:300])
                continue
            with check.case(f"doctor: {name}"):
                require_healthy(examine(loaded, tokenizer, tokens=128 if check.small else 256))
            with check.case(f"{name}: a memory is opened again"):
                found = []
                for _ in range(2):
                    with everlong.MemoryModel(loaded, tokenizer, Path(folder) / name, WORDS_ALONE, pack=None) as mm:
                        if not mm.memory.blocks():
                            mm.read(TEXT)
                        answer = mm.generate(QUOTES[0], max_new_tokens=8, remember=False)
                        found.append([(recall.block_id, recall.span) for recall in answer.recalled])
                require_equal("what came back", found[1], found[0])


def quantizations(check: Check) -> Iterator[tuple[str, Any]]:
    """Yield names and transformers' configs of what the libraries here can do."""
    if importlib.util.find_spec("bitsandbytes") is None:
        check.tell("bitsandbytes", "it is not installed")
    else:
        yield "bitsandbytes int8", transformers.BitsAndBytesConfig(load_in_8bit=True)
        yield (
            "bitsandbytes nf4",
            transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            ),
        )
    if importlib.util.find_spec("torchao") is None:
        check.tell("torchao", "it is not installed")
        return
    kinds: Any = importlib.import_module("torchao.quantization")
    yield "torchao int8", transformers.TorchAoConfig(kinds.Int8WeightOnlyConfig())
    yield "torchao int8 with activations", transformers.TorchAoConfig(kinds.Int8DynamicActivationInt8WeightConfig())
    if check.on_gpu:
        yield "torchao int4", transformers.TorchAoConfig(kinds.Int4WeightOnlyConfig())
        yield "torchao float8", transformers.TorchAoConfig(kinds.Float8WeightOnlyConfig())


def require_healthy(report: DoctorReport) -> None:
    """Require that no verdict is "wrong"; in 16 bits KL decides, as a tiny model's own rounding can be 0 there."""
    by_verdict = report.dtype == "float32"
    wrong = [
        f"{part.name}: logits differ by {part.difference.logit:.3g}, KL {part.difference.kl:.3g}"
        for part in report.checks
        if part.verdict == "wrong" and (by_verdict or not part.difference.kl <= KL_OF_16_BITS)
    ]
    if wrong:
        raise AssertionError(f"{'; '.join(wrong)}; the model's own rounding is {report.rounding.logit:.3g}")


# --- a device that is nearly full


def nearly_full(check: Check) -> None:
    small = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
    large = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 12, "head_dim": 128}
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2} | small
    if not check.small:
        shape = {"num_attention_heads": 16, "num_key_value_heads": 8} | large
    count = 2000 if check.small else 8000
    with check.case("a device that is nearly full is read and asked on within frame_bytes"):
        model, tokenizer = random_qwen3(check.device, vocab_size=count, **shape), word_tokenizer(count)
        config = everlong.MemoryConfig(search=everlong.SearchConfig(index="lexical"))
        need = frame_bytes(attach(model, config.frame.tokens), config).total
        refuses_a_smaller_budget(model, tokenizer, config.changed(frame={"bytes": need - 1}))
        ballast = Ballast(check.device)
        if check.on_gpu:
            empty_cache()
            before = torch.cuda.memory_allocated(check.device)
            before += ballast.leave(need + SPARE_BYTES)
            torch.cuda.reset_peak_memory_stats(check.device)
        try:
            fits(model, tokenizer, config.changed(frame={"bytes": need}), count)
        finally:
            if check.on_gpu:
                taken = torch.cuda.max_memory_allocated(check.device) - before
                check.figure("frame_bytes of the nearly full device", need / 1e6, "MB")
                check.figure("most that was taken beside the weights there", taken / 1e6, "MB")
                ballast.give_back()


def refuses_a_smaller_budget(model: Any, tokenizer: Any, config: everlong.MemoryConfig) -> None:
    with contextlib.suppress(everlong.CapacityError):
        everlong.MemoryModel(model, tokenizer, None, config, pack=None).close()
        raise AssertionError(f"frame_bytes={config.frame.bytes} holds no frame of this config, and was not refused")


def fits(model: Any, tokenizer: Any, config: everlong.MemoryConfig, words: int) -> None:
    common = Words(words, first=100)
    text, asked = common.ids(4600).tolist(), list(range(10, 16))
    text[700:706] = asked
    with everlong.MemoryModel(model, tokenizer, None, config, pack=None) as mm:
        mm.read(as_text(text))
        answer = mm.generate(as_text(asked), max_new_tokens=4, remember=False)
        begin, end = answer.recalled[0].span
        if not begin <= 700 < end:
            raise AssertionError(f"tokens {begin} to {end} came back first, expected those around 700")


# --- memory runs out


def memory_runs_out_within(check: Check, within: str) -> None:
    """Check that a read fails with the right type, loses nothing archived, and succeeds when it is repeated.

    The text is then read again as a whole, and an answer is the right one.
    """
    before, after = TEXT, random_text(1600, seed=5)
    with opened(check.device, config=WORDS_ALONE) as mm:
        mm.read(before, source="before")
        mm.read(after, source="after")
        expected = answer_of(mm)

    mm = opened(check.device, config=WORDS_ALONE)
    with contextlib.ExitStack() as last:
        last.callback(mm.memory.close)
        last.callback(lambda: mm.close())
        mm.read(before, source="before")
        with memory_runs_out(mm.model, check.device, within=within) as take:

            def progress(done: int, _: int | None) -> None:
                if done >= 640:
                    take()

            error = raised_by(lambda: mm.read(after, source="after", progress=progress))
        archived = stored(mm.memory)
        check.tell(f"what a read raises that finds no memory within a {within}", repr(error)[:300])
        require_equal("text archived before", text_of(mm, "before"), before)
        if mm.frame.steps.broken:
            memory = mm.memory
            mm.close()
            mm = everlong.MemoryModel(mm.model, byte_tokenizer(), memory, WORDS_ALONE, pack=None)
        mm.read(after, source="after")
        now = stored(mm.memory)
        for block, keys in archived.items():
            if not all(np.array_equal(one, other) for one, other in zip(now[block], keys, strict=True)):
                raise AssertionError(f"block {block} is not what it was before the read that failed")
        require_equal("text that was read again", text_of(mm, "after"), after)
        require_equal("the answer", answer_of(mm), expected)
        if not isinstance(error, everlong.DeviceMemoryError):
            raise AssertionError(f"the read raised {error!r}, expected a DeviceMemoryError")


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error.with_traceback(None)  # the traceback's frames hold tensors
    raise AssertionError("the read found memory enough, and was to find none")


def answer_of(mm: everlong.MemoryModel) -> tuple[str, tuple[int, ...]]:
    """Return the passage that a quote brings back, and what is said behind it."""
    answer = mm.generate(QUOTES[0], max_new_tokens=12, remember=False)
    if QUOTES[0] not in answer.recalled[0].text:
        raise AssertionError(f"{QUOTES[0]!r} brought back {answer.recalled[0].text!r}")
    return answer.recalled[0].passage, answer.token_ids


def text_of(mm: everlong.MemoryModel, source: str) -> str:
    return "".join(map(mm.text, ids_of(mm, source)))


def stored(memory: everlong.Memory) -> Mapping[tuple[int, int], list[np.ndarray[Any, Any]]]:
    """Return the keys of every page."""
    core = memory.core
    layers = range(core.manifest().layers)
    return {
        (page.block, page.page): [core.blocks.read_keys(page, layer) for layer in layers]
        for page in core.blocks.pages()
    }
