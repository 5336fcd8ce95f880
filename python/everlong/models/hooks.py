"""Hooks on the modules of a model that several threads use.

A hook that is put on a module stands for all threads at once. So each of everlong's looks whose call it hears. While it
is put on or taken off, a call of another thread may come without the arguments by name that it asked for: then the call
is none that it waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

_PUTTING_ON = threading.Lock()


def register_hook(register: Callable[..., RemovableHandle], hook: Callable[..., Any], **how: Any) -> RemovableHandle:
    """Do as `register(hook, **how)`, such as a module's `register_forward_hook`.

    torch numbers hooks without a lock. Two threads at once would get one number, and one hook would be lost.
    """
    with _PUTTING_ON:
        return register(hook, **how)
