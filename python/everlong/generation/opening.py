"""Opens what a MemoryModel is made of: the memory, how the model is served, and the settings."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import uuid
from typing import Any

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import ModelMismatchError
from everlong.frame.frame import Frame
from everlong.frame.model_setup import attach_model, default_config, require_plain
from everlong.frame.open_frame import open_frame
from everlong.frame.part import LoadContext
from everlong.frame.parts import Parts, available_parts
from everlong.generation.validation import require_config
from everlong.memory import Memory
from everlong.memory.fingerprint import Fingerprint
from everlong.memory.memory import MEMORY_ID
from everlong.models.fingerprint import fingerprint, is_noted_as
from everlong.models.model_interface import ModelInterface
from everlong.models.pack import open_pack
from everlong.models.rounded_weights import rounding_of
from everlong.models.tokenizer_check import TokenizerCheck, require_rows
from everlong.models.validation import require_model_and_tokenizer
from everlong.models.weights import WeightsCheck
from everlong.retrieval.embedding import Encoder, load_encoder

_WEIGHTS = "weights"  # an attribute of a memory: what its model was rounded to


@dataclasses.dataclass(frozen=True)
class OpenedMemory:
    """A memory that its writer holds, and what goes with it."""

    memory: Memory
    frame: Frame
    config: MemoryConfig  # as the memory is written
    prints: Fingerprint
    encoder: Encoder | None


def open_memory(
    model: Any,
    tokenizer: Any,
    memory: str | pathlib.Path | Memory | None,
    config: MemoryConfig | None,
    pack: str | pathlib.Path | None,
    writer: object,
    undo: contextlib.ExitStack,
) -> OpenedMemory:
    """Open or make the memory for this model, for `writer` alone, and put a frame over it.

    `undo` takes what must be undone where something fails, here or later. Errors as in `MemoryModel`.
    """
    require_model_and_tokenizer(model, tokenizer)
    require_config(memory, config)
    there = memory if isinstance(memory, Memory) else _existing(memory, config)
    if there is not None:
        if there is not memory:
            undo.callback(there.close)
        _hold_open(there, writer, undo)
    text_alone = there is not None and there.core.manifest().text_alone
    config = config if config is not None else default_config(model, text_alone=text_alone)
    # Refuse before there is a folder, which would keep its codec and page length.
    _core.MemoryOs(config.os_config())
    served = attach_model(model, config, text_alone=text_alone)
    config = config if served.layers > 0 else config.of_text_alone()
    named = config.search.encoder if "embedding" in config.search.index else None
    encoder = load_encoder(named) if isinstance(named, str) else named
    prints = fingerprint(served, tokenizer)
    trained = open_pack(pack, prints) if served.layers > 0 else None
    wanted = available_parts(config.parts, trained)
    if there is not None:
        _require_same_model(there, prints, served)
    require_rows(served.model, tokenizer)
    if there is None:
        assert not isinstance(memory, Memory)
        there = Memory.open(memory, create=_manifest(served, prints, config), host_bytes=config.archive.host_bytes)
        undo.callback(there.close)
        _hold_open(there, writer, undo)
    # How a memory is written was decided when it was made.
    config = config.written_as(there.core.manifest())
    opening = LoadContext(served.model, tokenizer, served, trained, there.core, there.path, config)
    parts = Parts.loaded(wanted, opening)
    undo.callback(parts.close)
    frame = open_frame(served, there, config, tokenizer, parts)
    undo.callback(frame.detach)
    return OpenedMemory(there, frame, config, prints, encoder)


def require_ready(frame: Frame, weights: WeightsCheck, words: TokenizerCheck) -> None:
    """Raise where a call that needs the frame cannot go on.

    The frame is broken, or the model or the tokenizer is not what it was.
    """
    frame.steps.require_whole()
    require_plain(frame.served.model)
    weights.require_unchanged()
    words.require_unchanged()


def _hold_open(memory: Memory, writer: object, undo: contextlib.ExitStack) -> None:
    memory.begin_writing(writer)
    undo.callback(memory.end_writing, writer)


def _require_same_model(memory: Memory, prints: Fingerprint, served: ModelInterface) -> None:
    noted = memory.core.manifest().rope
    try:
        memory.check(dataclasses.replace(prints, rope=noted) if is_noted_as(served, noted) else prints)
    except ModelMismatchError as error:
        made, now = memory.core.manifest().attributes.get(_WEIGHTS, ""), rounding_of(served.model)
        if made != now:
            ways = [f"weights={name!r}" if name else "no weights=" for name in (made, now)]
            hint = f"the memory's model was loaded with {ways[0]}, and this one with {ways[1]}"
        elif served.dtype == torch.float16:
            hint = (
                "float16 rounds small weights away: for a memory read in another dtype load it in bfloat16 or float32"
            )
        else:
            raise
        raise ModelMismatchError(f"{error}; {hint}") from None


def _existing(memory: str | pathlib.Path | None, config: MemoryConfig | None) -> Memory | None:
    """Return the memory in that folder, where there is one."""
    if memory is None or not Memory.exists(memory):
        return None
    return Memory.open(memory, host_bytes=None if config is None else config.archive.host_bytes)


def _manifest(served: ModelInterface, prints: Fingerprint, config: MemoryConfig) -> _core.Manifest:
    """Return the manifest of a new memory. For text alone it has no layers."""
    from everlong.models import name_from_anywhere

    rounding = rounding_of(served.model)
    return _core.Manifest(
        weights=prints.weights,
        rope=prints.rope,
        tokenizer=prints.tokenizer,
        layers=served.layers,
        kv_heads=served.kv_heads,
        head_dim=served.head_dim,
        page_tokens=config.archive.page_tokens,
        codec=config.archive.codec,
        attributes={
            "model": name_from_anywhere(str(getattr(served.model, "name_or_path", ""))),
            MEMORY_ID: uuid.uuid4().hex,
            **({_WEIGHTS: rounding} if rounding else {}),
        },
    )
