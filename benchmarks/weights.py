"""The weights of a GGUF file: unpacked to bf16, in the file's blocks, and as llama.cpp computes with them.

    pip install xllamacpp
    python benchmarks/weights.py MODEL.gguf [--context 512 4096] [--tokens 32] [--rounds 3] [--threads 2] [--json]
    python benchmarks/weights.py MODEL.gguf --kl

Each round runs every subject in a process of its own, one after another, on the same file with as many threads. A
process loads the model, reads so many tokens at once (prefill), and decodes further ones. Figures are the best of the
rounds, because other work on a machine only slows one down. RAM is what the process holds at its end beyond what it
held before it loaded the model; a mapped file counts with the pages that were read. `everlong` and `bf16` decode
over a memory's frame, whose buffers are in its RAM, as llama.cpp's context is in its own. The first load also makes the
tokenizer or unpacks the file, so a process before the rounds does it, and is not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from everlong.models.hardware import processor

SUBJECTS = ("bf16", "everlong", "llama.cpp")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Figures of one process, or the best of several."""

    load_seconds: float
    ram_mb: float
    prefill: dict[int, float]  # tokens a second, by tokens of the context
    decode: dict[int, float]

    @classmethod
    def from_json(cls, text: str) -> Measured:
        fields = json.loads(text)
        prefill, decode = ({int(n): value for n, value in fields[name].items()} for name in ("prefill", "decode"))
        return cls(fields["load_seconds"], fields["ram_mb"], prefill, decode)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="a GGUF file, or smollm2")
    parser.add_argument("--context", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--tokens", type=int, default=32, help="that are decoded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kl", action="store_true", help="how far results are from the file's numbers, nothing else")
    parser.add_argument("--subject", choices=SUBJECTS, help=argparse.SUPPRESS)  # what this very process measures
    options = parser.parse_args(arguments)
    if options.kl:
        for name, kl in divergences(str(options.file), options.context[0]).items():
            print(f"{name}: KL {kl:.5f} to the file unpacked to fp32, over {options.context[0]} tokens of a book")
        return
    if options.subject is not None:
        measure = measure_llama if options.subject == "llama.cpp" else measure_everlong
        print(json.dumps(dataclasses.asdict(measure(options))))
        return
    found: dict[str, list[Measured]] = {subject: [] for subject in options.subjects}
    for warm_up in [True, *([False] * options.rounds)]:
        for subject in options.subjects:
            measured = in_process(options, subject, warm_up=warm_up)
            if not warm_up:
                found[subject].append(measured)
    report(options, {subject: best(rounds) for subject, rounds in found.items()})


def in_process(options: argparse.Namespace, subject: str, *, warm_up: bool) -> Measured:
    context = [16] if warm_up else options.context
    command = [sys.executable, __file__, str(options.file), "--subject", subject]
    command += ["--tokens", str(options.tokens), "--threads", str(options.threads)]
    command += ["--context", *map(str, context)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return Measured.from_json(done.stdout.strip().splitlines()[-1])


def best(rounds: Sequence[Measured]) -> Measured:
    sizes = rounds[0].prefill
    return Measured(
        load_seconds=min(one.load_seconds for one in rounds),
        ram_mb=min(one.ram_mb for one in rounds),
        prefill={n: max(one.prefill[n] for one in rounds) for n in sizes},
        decode={n: max(one.decode[n] for one in rounds) for n in sizes},
    )


def measure_everlong(options: argparse.Namespace) -> Measured:
    import torch

    import everlong
    from everlong.models import load

    torch.set_num_threads(options.threads)
    load_imports()
    before, started = resident_mb(), time.perf_counter()
    model, tokenizer = load(str(options.file), "bfloat16" if options.subject == "bf16" else None)
    seconds = time.perf_counter() - started
    rolling = max(512, *options.context) + options.tokens + 64
    config = everlong.MemoryConfig().changed(frame={"tokens": rolling + 2048, "rolling_tokens": rolling})
    prefill, decode = {}, {}
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        for size in options.context:
            ids = torch.tensor(token_ids(size))
            with mm.frame.branch():
                started = time.perf_counter()
                mm.frame.extend(ids, "prompt")
                prefill[size] = size / (time.perf_counter() - started)
                mm.frame.extend(ids[:1], "generated")  # what is tried once is tried now
                started = time.perf_counter()
                for _ in range(options.tokens):
                    mm.frame.extend(ids[:1], "generated")
                decode[size] = options.tokens / (time.perf_counter() - started)
        ram = resident_mb() - before
    return Measured(seconds, ram, prefill, decode)


def divergences(file: str, tokens: int) -> dict[str, float]:
    """Return the mean KL of the next token's probabilities to those of the file unpacked to fp32, in nats."""
    import torch

    from everlong.data import shipped_books
    from everlong.models import load

    @torch.inference_mode()
    def logs(dtype: str | None) -> torch.Tensor:
        model, tokenizer = load(file, dtype)
        ids = torch.tensor([tokenizer(shipped_books()[0].text[: 12 * tokens])["input_ids"][:tokens]])
        logits: torch.Tensor = model(ids).logits[0].double()
        return logits.log_softmax(-1)

    true = logs("float32")
    found = {"everlong": logs(None), "bf16": logs("bfloat16")}
    return {name: float((true.exp() * (true - other)).sum(-1).mean()) for name, other in found.items()}


def load_imports() -> None:
    """Import what a first load imports, so that a load is compared with one of a program that is compiled."""
    for name in ("gguf", "transformers.models.llama.modeling_llama", "transformers.models.qwen2.modeling_qwen2"):
        importlib.import_module(name)


def measure_llama(options: argparse.Namespace) -> Measured:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    file = options.file
    if str(file) == "smollm2":
        from everlong.models import embedded_file

        file = embedded_file()
    before, started = resident_mb(), time.perf_counter()
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(file)
    wanted.n_ctx = max(options.context) + options.tokens + 64
    wanted.n_parallel = 1
    wanted.n_gpu_layers = 0
    wanted.verbosity = 0
    wanted.warmup = False
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(wanted)
    seconds = time.perf_counter() - started
    prefill, decode = {}, {}
    for size in options.context:
        asking = {"prompt": token_ids(size), "n_predict": options.tokens, "cache_prompt": False, "ignore_eos": True}
        answer = server.handle_completions(asking)
        timings = (json.loads(answer) if isinstance(answer, str) else answer)["timings"]
        prefill[size] = timings["prompt_per_second"]
        decode[size] = timings["predicted_per_second"]
    return Measured(seconds, resident_mb() - before, prefill, decode)


def token_ids(size: int) -> list[int]:
    """Return ids of ordinary tokens, the same for all."""
    return [place * 7919 % 40_000 + 1000 for place in range(size)]


def resident_mb() -> float:
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def report(options: argparse.Namespace, found: dict[str, Measured]) -> None:
    if options.json:
        rows = {subject: dataclasses.asdict(measured) for subject, measured in found.items()}
        print(json.dumps({"cpu": processor(), "file": str(options.file), "threads": options.threads, "rows": rows}))
        return
    print(f"{options.file}: {processor()}, {options.threads} threads")
    for subject, measured in found.items():
        print(f"{subject:>10}: loads in {measured.load_seconds:5.2f} s, holds {measured.ram_mb:7.0f} MB", end="")
        for size in measured.prefill:
            print(f"; {size}: prefill {measured.prefill[size]:7.1f}, decode {measured.decode[size]:6.1f} tok/s", end="")
        print()
    for other in (subject for subject in ("bf16", "llama.cpp") if {subject, "everlong"} <= found.keys()):
        print(f"everlong / {other}:", end="")
        for size in found[other].prefill:
            prefill, decode = (
                getattr(found["everlong"], name)[size] / getattr(found[other], name)[size]
                for name in ("prefill", "decode")
            )
            print(f"  {size}: prefill {prefill:.2f}, decode {decode:.2f}", end="")
        print(f"  RAM {found['everlong'].ram_mb / found[other].ram_mb:.2f}")


if __name__ == "__main__":
    main()
