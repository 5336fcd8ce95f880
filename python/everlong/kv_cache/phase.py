"""Reads the rotation that a model gives its keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from everlong.models.attach import AttachedModel
from everlong.models.hooks import register_hook

_CALL = 4  # what a hook gets: module, arguments, arguments by name, output


class _Unobserved:
    """The hook of a copy."""

    def __call__(self, *call: object, **named: object) -> None:
        """Do nothing."""


class _Hook:
    """A hook on a module. A copy of that module, in memory or in a file, gets one that does nothing."""

    def __init__(self, callback: Callable[..., None]) -> None:
        self._observed = callback

    def __call__(self, *call: Any) -> None:
        if len(call) == _CALL:  # else another thread called while it was put on or taken off
            self._observed(*call)

    def __reduce__(self) -> tuple[type[_Unobserved], tuple[()]]:
        return _Unobserved, ()


class PhaseTap:
    """Keeps cos and sin of the newest forward, exactly as the archived layers applied them. `close` takes its hook off.

    A context manager, too. Each thread has its own newest forward: several frames may share a model, each in a thread.
    """

    def __init__(self, served: AttachedModel) -> None:
        self._served = served
        self._observed = threading.local()
        self._hook = register_hook(served.rotary.register_forward_hook, _Hook(self._keep), with_kwargs=True)

    @property
    def newest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [tokens, rotary_dim / 2] fp32."""
        newest: tuple[torch.Tensor, torch.Tensor] = self._observed.newest
        return newest

    def close(self) -> None:
        self._hook.remove()

    @staticmethod
    def observes(hook: object) -> bool:
        """Return whether a hook of a module is that of a tap like this one."""
        return isinstance(hook, _Hook)

    def _keep(
        self, module: object, args: Sequence[Any], kwargs: dict[str, Any], output: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        layer_type = self._served.layer_type
        called_for = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
        if layer_type is None or called_for == layer_type:
            cos, sin = (x[0, :, self._served.phase_columns].float() for x in output)
            self._observed.newest = (cos, sin)

    def __enter__(self) -> PhaseTap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
