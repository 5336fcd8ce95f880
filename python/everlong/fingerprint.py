"""What a memory depends on, as three opaque strings: weights, RoPE and tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch

from everlong.rope import RopeTable

_SAMPLES = 64


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Equal strings mean that the archived KV of one model can be restored into the other."""

    weights: str
    rope: str
    tokenizer: str


def fingerprint(model: torch.nn.Module, rope: RopeTable, tokenizer: Any) -> Fingerprint:
    """The fingerprint of a model as it stands now.

    Weights are sampled: name, shape and 64 evenly spaced elements of every parameter, rounded to bf16, so that a model
    loaded in fp32 and in bf16 is the same model and a model of many gigabytes costs milliseconds.
    """
    return Fingerprint(_weights(model), rope.fingerprint(), _tokenizer(tokenizer))


def _weights(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        places = torch.linspace(0, max(flat.numel() - 1, 0), min(_SAMPLES, flat.numel()), dtype=torch.float64).long()
        sample = flat[places.to(flat.device)].to(device="cpu", dtype=torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def _tokenizer(tokenizer: Any) -> str:
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{index} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
