"""The encoder: it maps text into one space, in which a memory is searched by meaning, whichever model reads it."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.model_interface import gpu_of
from everlong.parts.encoder.model import trained_encoder
from everlong.parts.encoder.runtime import EncoderRuntime


@dataclasses.dataclass(frozen=True)
class Encoder(PartSettings, group="encoder", least={"device_bytes": 0}):
    """What `search.index` "encoder" searches by; passed over where its package is not installed, which is logged."""

    optional = True

    # Memory for the vectors, in bytes, on the model's GPU, taken from when the memory is opened. 0: they are searched
    # on the host.
    device_bytes: int = 1 << 28

    def without_keys(self) -> Encoder:
        return self

    def load(self, opening: LoadContext) -> EncoderRuntime | None:
        if "encoder" not in opening.config.search.index:
            return None
        part = trained_encoder()
        if part is None:
            return None
        gpu = gpu_of(opening.served, self.device_bytes)
        return EncoderRuntime(part, opening.core, opening.tokenizer, opening.served.device, gpu, self.device_bytes)
