"""What a frame and all above it need of a model, however it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from everlong.models.attach import AttachedModel


class ModelInterface(Protocol):
    """A model by its keys and values (`AttachedModel`), or by text alone (`TextModel`), without archived layers."""

    @property
    def model(self) -> Any: ...

    @property
    def window(self) -> int | None:
        """Tokens that the model was trained for; None: its config does not say."""

    @property
    def layers(self) -> int:
        """Number of archived layers. For text alone it is 0, and so are the two below."""

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def keyed(self) -> AttachedModel | None:
        """What knows queries and keys of the archived layers; None for text alone."""

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that a token takes while it is resident."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


def gpu_of(attached: ModelInterface, most_bytes: int) -> int | None:
    """Return the GPU where the model computes, if it is one and `most_bytes` is above 0."""
    return attached.device.index if attached.device.type != "cpu" and most_bytes > 0 else None
