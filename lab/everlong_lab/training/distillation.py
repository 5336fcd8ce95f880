"""What a model says behind blocks that it no longer sees, computed once and kept in a folder: writers learn from it.

A stream (corpora/evicted.py) is read once in full. Its blocks' states are kept. So is what the model says behind each
block with everything before it in sight, the teacher of context distillation (Askell et al. 2021, Snell et al. 2022).
For the KV writer, keys and values are kept too, un-rotated, in 8 bits. So one reading teaches as often as there are
blocks: behind the first, the first two, up to all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch
from transformers.cache_utils import DynamicCache

from everlong.frame.taps import side_by_side
from everlong.models.releases import cache_argument
from everlong.models.rope import RopeTable, rope_table, unrotated
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING
from everlong_lab.corpora.record import Record
from everlong_lab.training.states import require_same_reading

_PROBABILITIES = 64  # likeliest tokens kept at each place; the others count as one
_LARGEST_E4M3 = 448.0


@dataclasses.dataclass(frozen=True)
class TeacherLogProbs:
    """The likeliest tokens at each of the FOLLOWING places behind some blocks, by the model that sees everything."""

    tokens: torch.Tensor  # int64 [FOLLOWING, n]
    logs: torch.Tensor  # fp32 [FOLLOWING, n] of their probabilities

    def divergence(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """Return the KL to it of log probabilities [n, V] of the first n tokens, in nats a token.

        All tokens that are not named count as one.
        """
        logs = self.logs[: len(log_probabilities)].to(log_probabilities.device)
        own = log_probabilities.gather(-1, self.tokens[: len(log_probabilities)].to(log_probabilities.device))
        named = (logs.exp() * (logs - own)).sum(dim=-1)
        rest = (1 - logs.exp().sum(dim=-1)).clamp(min=1e-6)
        own_rest = (1 - own.exp().sum(dim=-1)).clamp(min=1e-6)
        return (named + rest * (rest.log() - own_rest.log())).mean()

    def losses(self, logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the divergence of logits [n, V], and the cross entropy of the ids [n] that came."""
        said = logits.log_softmax(dim=-1)
        return self.divergence(said), -said.gather(-1, ids[:, None].to(said.device)).mean()


@dataclasses.dataclass(frozen=True)
class EvictedRead:
    """One text as it was read. Its tensors lie in files until they are asked for."""

    text: Record
    file: pathlib.Path
    kv_file: pathlib.Path | None

    def states(self, blocks: int = BLOCKS) -> torch.Tensor:
        """Return [blocks, BLOCK_TOKENS, width] bf16 of the first blocks."""
        with safetensors.safe_open(self.file, "pt") as there:
            rows: torch.Tensor = there.get_slice("states")[: blocks * BLOCK_TOKENS]
        return rows.view(blocks, BLOCK_TOKENS, -1)

    def taught(self, blocks: int) -> TeacherLogProbs:
        """Return what is said behind `blocks` blocks, 1 to BLOCKS."""
        with safetensors.safe_open(self.file, "pt") as there:
            tokens, logs = (there.get_slice(name)[blocks - 1] for name in ("tokens", "logs"))
        return TeacherLogProbs(tokens.long(), logs.float())

    def sinks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [L, Hkv, SINK_TOKENS, D] at their positions."""
        with safetensors.safe_open(self._kv(), "pt") as there:
            return there.get_tensor("sink k"), there.get_tensor("sink v")

    def kv(self, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return un-rotated keys, and values, of one block, [L, Hkv, BLOCK_TOKENS, D] fp32 each."""
        own = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        with safetensors.safe_open(self._kv(), "pt") as there:
            k, v = (there.get_slice(name)[:, :, own] for name in ("k", "v"))
        return k.float(), v.float()

    def _kv(self) -> pathlib.Path:
        if self.kv_file is None:
            raise ValueError(f"{self.text.name} was read without its keys and values")
        return self.kv_file


def log_probs_of(texts: Sequence[Record]) -> dict[str, Any]:
    """Return what a pack says of the texts that a writer learned from."""
    return {
        "data": {split: sum(text.split == split for text in texts) for split in ("train", "fit")},
        "books": sorted({text.name for text in texts if text.split == "train"}),
    }


def read_evicted(
    model: Any,
    texts: Sequence[Record],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    with_kv: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[EvictedRead]:
    """Read all texts; return the readings. What `folder` lacks is computed and kept there.

    Only one process at a time may use the folder. A run that was cut short goes on where it stopped, with more texts,
    too. Raises EverlongError for a folder of another model or other layers. `progress(what, done, of)` is called after
    each text. `with_kv` is for models whose layers all attend to everything.
    """
    require_same_reading(folder, model, layers)
    reads = []
    for done, text in enumerate(texts):
        name = hashlib.sha256(text.ids.numpy().tobytes()).hexdigest()[:16]
        file, kv_file = folder / f"{name}.safetensors", folder / f"{name}.kv.safetensors"
        if not file.exists() or (with_kv and not kv_file.exists()):
            said, kv = read_one(model, text, layers)
            if with_kv:
                _write(kv_file, kv)
            _write(file, said)
            if progress is not None:
                progress("streams", done + 1, len(texts))
        reads.append(EvictedRead(text, file, kv_file if with_kv else None))
    return reads


@torch.no_grad()
def read_one(
    model: Any, text: Record, layers: Sequence[int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return what is kept of one text, and its keys and values."""
    cache = DynamicCache(config=model.config)
    ends = [SINK_TOKENS + blocks * BLOCK_TOKENS for blocks in range(1, BLOCKS + 1)]
    rows = torch.cat([torch.arange(end - 1, end - 1 + FOLLOWING) for end in ends])
    out = model(
        input_ids=text.ids[None].to(model.device),
        **{cache_argument(model): cache},
        use_cache=True,
        logits_to_keep=rows.to(model.device),
        output_hidden_states=True,
    )
    tokens, logs = [], []
    for logits in torch.split(out.logits[0], FOLLOWING):
        best = logits.float().log_softmax(dim=-1).topk(min(_PROBABILITIES, logits.shape[-1] - 1), dim=-1)
        tokens.append(best.indices.int().cpu())
        logs.append(best.values.half().cpu())
    blocks = slice(SINK_TOKENS, ends[-1])
    hidden = {layer: out.hidden_states[layer][0, blocks] for layer in layers}
    said = {
        "states": side_by_side(hidden, layers).to(torch.bfloat16).cpu(),
        "tokens": torch.stack(tokens),
        "logs": torch.stack(logs),
    }
    return said, _kv_of(cache, rope_table(model.config), blocks)


def _kv_of(cache: DynamicCache, table: RopeTable, blocks: slice) -> dict[str, torch.Tensor]:
    held: Any = cache.layers
    k, v = (torch.stack([getattr(layer, name)[0].cpu() for layer in held]) for name in ("keys", "values"))
    plain = unrotated(k[:, :, blocks].float(), torch.arange(blocks.start, blocks.stop), table)
    return {
        "sink k": k[:, :, :SINK_TOKENS].contiguous(),
        "sink v": v[:, :, :SINK_TOKENS].contiguous(),
        "k": _in_8_bits(plain),
        "v": _in_8_bits(v[:, :, blocks].float()),
    }


def _in_8_bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)


def _write(file: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    beside = file.with_name(file.name + ".new")
    safetensors.torch.save_file(tensors, beside)
    beside.replace(file)
