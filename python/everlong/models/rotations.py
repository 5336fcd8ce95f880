"""Rotary embeddings that choose their table in every forward, and are asked by several threads.

Those of longrope and dynamic NTK write the table of the newest call into themselves. So a forward of another thread
may get a table that is not its own. Inside `own_rotations` each thread asks a copy of its own, and nothing of the model
is written. Calls elsewhere do what transformers does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

_ORIGINAL, _CHOSEN, _LONGEST = "original_inv_freq", "inv_freq", "max_seq_len_cached"
_CHANGING = threading.Lock()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.depth = 0  # of `own_rotations` around what runs
        self.copies: weakref.WeakKeyDictionary[torch.nn.Module, _Copy] = weakref.WeakKeyDictionary()


_own = _OfThread()


@contextlib.contextmanager
def own_rotations() -> Iterator[None]:
    """Context manager, and a decorator: forwards of this thread inside it write to no rotary embedding.

    It is for models that `isolate_rotations` was called with.
    """
    _own.depth += 1
    try:
        yield
    finally:
        _own.depth -= 1


def isolate_rotations(model: torch.nn.Module) -> None:
    """Let the model's rotary embeddings be asked inside `own_rotations`, by any number of threads."""
    for module in model.modules():
        kind = type(module)
        if _chooses(module) and not hasattr(kind.forward, "everlong_apart"):
            with _CHANGING:
                if not hasattr(kind.forward, "everlong_apart"):
                    kind.forward = _apart(kind.forward)


def _chooses(module: torch.nn.Module) -> bool:
    kwargs = getattr(module, "rope_type", None)
    kinds = kwargs.values() if isinstance(kwargs, dict) else (kwargs,)
    return any(kind == "longrope" or "dynamic" in str(kind) for kind in kinds)


def _apart(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a class of rotary embeddings, which asks the thread's own copy inside `own_rotations`."""

    @functools.wraps(forward)
    def apart(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _own.depth == 0 or not _chooses(self):
            return forward(self, *args, **kwargs)
        return forward(_copy_of(self), *args, **kwargs)

    apart.everlong_apart = True  # type: ignore[attr-defined]
    return apart


class _Copy:
    """A copy of a rotary embedding, with what it was made of."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.made_of = _tensors(module)
        self.rotary = copy.copy(module)
        own = self.rotary.__dict__
        own["_buffers"] = dict(module._buffers)
        own["config"] = copy.deepcopy(own.get("config"))  # its table is made of it, and is noted there
        with torch.inference_mode(False):
            for name, tensor in _tensors(module).items():
                if name.endswith(_ORIGINAL):  # another thread may be writing the chosen one
                    before = name.removesuffix(_ORIGINAL)
                    setattr(self.rotary, before + _CHOSEN, tensor.clone())
                    if hasattr(module, before + _LONGEST):
                        setattr(self.rotary, before + _LONGEST, module.original_max_seq_len)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that a rotary embedding chooses from."""
    kwargs = {**vars(module), **module._buffers}
    return {name: one for name, one in kwargs.items() if name.endswith(_ORIGINAL) and isinstance(one, torch.Tensor)}


def _copy_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return this thread's copy. It is made anew where the module has other tensors by now, as `model.to` gives it."""
    found = _own.copies.get(module)
    stands = _tensors(module)
    if found is None or [*map(id, found.made_of.values())] != [*map(id, stands.values())]:
        _own.copies[module] = found = _Copy(module)
    return found.rotary
