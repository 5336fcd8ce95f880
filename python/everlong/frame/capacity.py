"""Checks that disk and RAM can hold what is going to be read, before anything is read."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import everlong._core as _core
import everlong.ops as ops
from everlong.config import MemoryConfig
from everlong.errors import CapacityError
from everlong.frame.model_setup import attach_model, default_config

# RAM for a token's index and ids, beside model and payload.
_RAM_TOKEN_BYTES = 1_024
_SHARE_OF_DISK = 1.05  # catalog and rounding of records


def check_capacity(
    model: Any, config: MemoryConfig | None, tokens: int, folder: pathlib.Path | None, advice: str = "fewer tokens"
) -> None:
    """Raise CapacityError where disk or RAM are too small for `tokens` tokens. It says what they would need.

    `folder` is that of the memory, which may be there already; without one the memory is in RAM. `advice` is what to
    ask for instead.
    """
    config = config if config is not None else default_config(model)
    payload = _payload_bytes(model, config, tokens)
    if folder is None:
        _check_ram(model, config, tokens, payload, advice)
        return
    held = sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
    place = folder
    while not place.exists():
        place = place.parent
    disk, free = int(payload * _SHARE_OF_DISK), shutil.disk_usage(place).free + held
    if disk > free:
        raise CapacityError(
            f"{tokens:,} tokens of this model need {_human(disk)} of disk as {config.archive.codec}, "
            f"{place} has {_human(free)}: ask for {advice} or name another folder"
        )
    ram, available = tokens * _RAM_TOKEN_BYTES, _core.free_memory_bytes()
    if 0 < available < ram:
        raise CapacityError(
            f"{tokens:,} tokens need {_human(ram)} of RAM for their index, this process may take "
            f"{_human(available)}: ask for {advice}"
        )


def _check_ram(model: Any, config: MemoryConfig, tokens: int, payload: int, advice: str) -> None:
    """Check a memory in RAM: its index and its payload share `archive.host_bytes`, by default half of what is free."""
    budget = config.archive.host_bytes if config.archive.host_bytes is not None else _core.free_memory_bytes() // 2
    ram = payload + tokens * _RAM_TOKEN_BYTES
    if 0 < budget < ram:
        raise CapacityError(
            f"{tokens:,} tokens of this model need {_human(ram)} of RAM as {config.archive.codec}, a memory in RAM may "
            f"take {_human(budget)}: ask for {advice}"
        )


def _payload_bytes(model: Any, config: MemoryConfig, tokens: int) -> int:
    """Return the bytes of the layers that are archived; 0 for a memory of text alone."""
    # A layer's size does not depend on the frame.
    most = default_config(model, text_alone=config.answer.recall_mode == "text").frame.tokens
    served = attach_model(model, config.changed(frame={"tokens": min(config.frame.tokens, most)}))
    if served.keyed is None:
        return 0
    hidden_size = int(served.model.get_input_embeddings().embedding_dim)
    details = tokens // config.archive.block_tokens * config.detail_tokens * hidden_size * 2
    if config.keeps_payloads:
        tokens += tokens // config.frame.kept_share
    layers, kv_heads, head_dim = served.layers, served.kv_heads, served.head_dim
    pages = config.archive
    return details + ops.payload_bytes(tokens, pages.page_tokens, layers, kv_heads, head_dim, pages.codec)


def _human(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
