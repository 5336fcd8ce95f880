"""Re-ranking 32 candidates from the archive, beside reading them as text, in one run.

    python benchmarks/rerank.py [--model smollm2] [--tokens 8192] [--candidates 32] [--rounds 5] [--json]

A candidate is a page and its two neighbours, some 192 tokens. The question stands in the chat template. `archive`: keys
and values come back from a memory on disk (through the page cache), decoded and rotated into windows of their own; then
comes the question's forward pass over them. `text`: a forward pass of the pages' tokens and the question's, which is
what a re-ranker without an archive computes. Both run in batches of 8, up to the question's log-likelihoods. Figures
are medians of alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from typing import Any

import torch

import everlong
from everlong.bench.clock import now
from everlong.bench.grown_memory import read_seed
from everlong.frame.kv_frame import KvFrame
from everlong.frame.windows import window_tokens
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.retrieval.rerank import Reranker, RerankQuery, is_archived_whole
from everlong.text.prompt import build_prompt, start_ids

QUESTION = "Who was it that came to see them in the evening, and what did he ask of them?"
BATCH = 8


def measure(mm: everlong.MemoryModel, count: int, rounds: int) -> dict[str, Any]:
    frame, core = mm.frame, mm.memory.core
    assert isinstance(frame, KvFrame), "a memory of text alone has no archive"
    assert is_archived_whole(frame.served), "a model with layers of its own has to read its candidates"
    pages = [page for page in core.blocks.pages() if page.end <= frame.os.rolling[0]]
    middles = torch.linspace(1, len(pages) - 2, count).long().tolist()
    groups = [pages[middle - 1 : middle + 2] for middle in middles]
    asked = RerankQuery.of(build_prompt(mm.tokenizer, QUESTION))
    reranker = Reranker(frame, start_ids(mm.tokenizer))
    taken: dict[str, list[float]] = {"archive": [], "text": []}
    likelihoods: dict[str, torch.Tensor] = {}
    for number in range(rounds + 1):  # the first one warms up
        for name, of in taken.items():
            started = now(frame.served.device)
            batches = [groups[first : first + BATCH] for first in range(0, count, BATCH)]
            likelihoods[name] = torch.cat(
                [reranker.log_likelihoods(asked, batch, as_text=name == "text") for batch in batches]
            )
            if number > 0:
                of.append(now(frame.served.device) - started)
    both = torch.stack([likelihoods["archive"], likelihoods["text"]])
    return {
        "candidates": count,
        "window_tokens": statistics.mean(map(window_tokens, groups)),
        "question_tokens": len(asked.inputs),
        **{name: statistics.median(seconds) for name, seconds in taken.items()},
        "correlation": float(torch.corrcoef(both)[0, 1]),  # between what both say of the candidates
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens in the memory")
    parser.add_argument("--candidates", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, f"{folder}/read.everlong") as mm,
    ):
        read_seed(mm, options.tokens)
        found = measure(mm, options.candidates, options.rounds)
    ratio = found["text"] / found["archive"]
    if options.json:
        about = {"cpu": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        print(json.dumps({**about, "model": options.model, **found, "ratio": ratio}, indent=2))
        return
    print(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {options.model}")
    print(
        f"{found['candidates']} candidates of {found['window_tokens']:.0f} tokens, {found['question_tokens']} tokens "
        f"asked; log-likelihoods correlate by {found['correlation']:.2f}"
    )
    print(f"from the archive {found['archive']:.2f} s, as text {found['text']:.2f} s: {ratio:.1f} times as long")


if __name__ == "__main__":
    main()
