"""After a restart: how long until the first token of an answer, and how fast its tokens come.

    pip install xllamacpp    # its row is left out without it
    python benchmarks/restart.py MODEL.gguf FOLDER [--memory 100000] [--slot 8192] [--tokens 32] [--threads 2] [--json]

everlong opens a memory of --memory tokens, recalls, and answers in the file's blocks. Its first pages are of the
shipped books; the others are copies of them, with token ids of their own. llama.cpp loads the slot that it saved behind
--slot tokens, and goes on from there with 16 tokens of a question: it has no other memory. FOLDER keeps both, and each
part runs in a process of its own, three times; figures are the best. Seconds begin before the model is loaded, when the
libraries are imported. everlong's tokens are counted as they come: a piece of text has one or, seldom, two.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
import urllib.request
from typing import Any

from everlong.models.hardware import processor

ROUNDS = 3
QUESTION = "What did the old man say about the sea?"
SLOT = "slot.bin"


@dataclasses.dataclass(frozen=True)
class Restart:
    """What one process took."""

    tokens: int  # that it remembers
    loaded: float  # seconds until the model is there
    opened: float  # seconds until it can be asked
    first: float  # seconds until the first token
    decode: float  # tokens a second behind it
    ram_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--memory", type=int, default=100_000, help="tokens")
    parser.add_argument("--slot", type=int, default=8_192, help="tokens")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=[*STEPS], help=argparse.SUPPRESS)  # what this very process does
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps(STEPS[options.step](options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in ("everlong", "llama.cpp"):
        if name == "llama.cpp" and importlib.util.find_spec("xllamacpp") is None:
            continue
        in_process(options, f"{name} makes")
        done = [Restart(**in_process(options, f"{name} answers")) for _ in range(ROUNDS)]
        rows[name] = dataclasses.replace(
            min(done, key=lambda one: one.first),
            decode=max(one.decode for one in done),
            ram_mb=min(one.ram_mb for one in done),
        )
    if options.json:
        print(json.dumps({"cpu": processor(), "rows": {name: dataclasses.asdict(row) for name, row in rows.items()}}))
        return
    print(f"{options.file}: {processor()}, {options.threads} threads")
    for name, row in rows.items():
        print(
            f"{name:>10}: {row.tokens:8,} tokens; model {row.loaded:5.2f} s, memory {row.opened:5.2f} s, first token "
            f"{row.first:5.2f} s; {row.decode:5.1f} tokens/s; {row.ram_mb:6,.0f} MB"
        )


def in_process(options: argparse.Namespace, step: str) -> Any:
    command = [sys.executable, __file__, str(options.file), str(options.folder), "--step", step]
    for name in ("memory", "slot", "tokens", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def make_memory(options: argparse.Namespace) -> None:
    import everlong
    from everlong.bench.grown_memory import grow, read_seed

    if everlong.Memory.exists(memory_folder(options)):
        return
    with everlong.MemoryModel.from_pretrained(str(options.file), memory_folder(options)) as mm:
        read_seed(mm)
        grow(mm, options.memory)


def answer_from_memory(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    import everlong
    from everlong.models import load

    torch.set_num_threads(options.threads)
    for name in ("gguf", "transformers.models.llama.modeling_llama", "transformers.models.qwen2.modeling_qwen2"):
        importlib.import_module(name)
    before, started = resident_mb(), time.perf_counter()
    model, tokenizer = load(str(options.file))
    loaded = time.perf_counter() - started
    with everlong.MemoryModel(model, tokenizer, memory_folder(options)) as mm:
        opened = time.perf_counter() - started
        times = []
        for _ in mm.stream(QUESTION, max_new_tokens=options.tokens, min_new_tokens=options.tokens):
            times.append(time.perf_counter() - started)
        rate = (len(times) - 1) / (times[-1] - times[0])
        ram = resident_mb() - before
        return dataclasses.asdict(Restart(mm.memory.stats().tokens, loaded, opened, times[0], rate, ram))


def save_slot(options: argparse.Namespace) -> None:
    if (options.folder / SLOT).exists():
        return
    server = llama(options)
    ask(server, options, extra=0, tokens=1)
    post(server, "save")


def answer_from_slot(options: argparse.Namespace) -> dict[str, Any]:
    importlib.import_module("xllamacpp")
    before, started = resident_mb(), time.perf_counter()
    server = llama(options)
    loaded = time.perf_counter() - started
    post(server, "restore")
    opened = time.perf_counter() - started
    timings = ask(server, options, extra=16, tokens=options.tokens)
    if timings["prompt_n"] > 64:
        raise SystemExit("the slot was not used")
    first = opened + (timings["prompt_ms"] + timings["predicted_ms"] / options.tokens) / 1000
    ram = resident_mb() - before
    return dataclasses.asdict(Restart(options.slot, loaded, opened, first, timings["predicted_per_second"], ram))


def llama(options: argparse.Namespace) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(options.file)
    wanted.n_ctx = options.slot + options.tokens + 64
    wanted.n_parallel = 1
    wanted.n_gpu_layers = 0
    wanted.verbosity = 0
    wanted.warmup = False
    wanted.endpoint_slots = True
    wanted.slot_save_path = f"{options.folder}/"
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = options.threads
    return xllamacpp.Server(wanted)


def ask(server: Any, options: argparse.Namespace, *, extra: int, tokens: int) -> Any:
    ids = [place * 7919 % 40_000 + 1000 for place in range(options.slot)] + [500 + place for place in range(extra)]
    asking = {"prompt": ids, "n_predict": tokens, "cache_prompt": True, "id_slot": 0, "ignore_eos": True}
    answer = server.handle_completions(asking)
    return (json.loads(answer) if isinstance(answer, str) else answer)["timings"]


def post(server: Any, action: str) -> None:
    address = f"{server.listening_address}/slots/0?action={action}"
    body = json.dumps({"filename": SLOT}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"})) as reply:
        reply.read()


def memory_folder(options: argparse.Namespace) -> pathlib.Path:
    folder: pathlib.Path = options.folder / "memory.everlong"
    return folder


def resident_mb() -> float:
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


STEPS = {
    "everlong makes": make_memory,
    "everlong answers": answer_from_memory,
    "llama.cpp makes": save_slot,
    "llama.cpp answers": answer_from_slot,
}


if __name__ == "__main__":
    main()
