"""What can go wrong, as types. The native core raises these too (cpp/bindings/core_errors.cc)."""

from __future__ import annotations

from typing import TYPE_CHECKING


class EverlongError(Exception):
    """Everything that everlong raises on purpose."""


class CorruptMemoryError(EverlongError):
    """Stored bytes do not match their checksum or their format. The message names path and block."""


class ModelMismatchError(EverlongError):
    """The memory belongs to another model, RoPE or tokenizer, which the message names. The memory is untouched."""


class MemoryBusyError(EverlongError):
    """Another process or MemoryModel writes to this memory. The message names it."""


class CapacityError(EverlongError):
    """A byte or frame budget does not hold what was asked for. What was there before stays."""


if TYPE_CHECKING:
    import torch

    class DeviceMemoryError(CapacityError, torch.OutOfMemoryError):
        """The model's device has no room for a step. What was archived stays, and so does a frame that is whole."""

else:

    def __getattr__(name):
        """Make DeviceMemoryError when it is first asked for: it is one of torch's errors, and torch takes seconds."""
        if name != "DeviceMemoryError":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import torch

        made = type(name, (CapacityError, torch.OutOfMemoryError), {"__module__": __name__})
        return globals().setdefault(name, made)


class MemoryNotFoundError(EverlongError, FileNotFoundError):
    """No memory, block or page of that name."""


class MemoryExistsError(EverlongError, FileExistsError):
    """There is a memory already where a new one was to be made."""


class ReadOnlyMemoryError(EverlongError):
    """The memory was opened for reading."""


class NewerFormatError(EverlongError):
    """The memory was written by a later version of everlong."""


class MemoryIOError(EverlongError, OSError):
    """The operating system refused a read or a write. The message names path and cause."""


class MemoryGoneWarning(UserWarning):
    """The folder of an open memory was removed or replaced. Nothing is written there any more."""


class ClosedError(EverlongError):
    """The memory or model was closed, or is that of the process of which this one is a fork."""


class BrokenFrameError(EverlongError):
    """An error cut a step of a MemoryModel's frame short. Close it, and another one goes on."""


class NotFiniteError(EverlongError, ArithmeticError):
    """The model computed a key or value that is NaN or infinite. The message names layer, token and dtype.

    Nothing of the tokens that were computed with it is kept.
    """


class MostFilesGoneError(EverlongError):
    """A `sync` would forget most of a folder's files, as where it is empty or not mounted. Nothing was done."""


class UnsupportedModelError(EverlongError):
    """A model that everlong cannot serve exactly. The message says why and what would work."""


class ControlTokenError(EverlongError, ValueError):
    """Words of a message would act as a token of the chat template, and nothing keeps them from it."""
