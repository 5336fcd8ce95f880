"""How a model rotates its keys, read from its config: RoPE as one value.

Frequencies and attention scaling are transformers' own (`modeling_rope_utils`): RoFormer's table and its linear, llama3
and YaRN variants, none of which changes with the length of the text.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import struct
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from everlong.errors import UnsupportedModelError

# Model types whose pairs are (2i, 2i + 1); all others split a head in halves, (i, i + R/2).
INTERLEAVED_MODEL_TYPES = frozenset(
    {"blt", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium", "moonshine"}
)
# Model types whose keys are rotated in yet another way: backwards, as complex numbers, permuted first, or as latents.
OTHER_ROTATION_MODEL_TYPES = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "codegen",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gptj",
        "llama4",
        "llama4_text",
        "longcat_flash",
        "mistral4",
        "nanochat",
        "youtu",
    }
)
SUPPORTED_KINDS = ("default", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True, eq=False)
class RopeTable:
    """A key in the frame is attention_scaling * R(position) k; inv_freq float64 [rotary_dim / 2], radians per token."""

    inv_freq: torch.Tensor
    attention_scaling: float
    interleaved: bool

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return 2 * self.inv_freq.numel()

    def fingerprint(self) -> str:
        """sha256 of all values: equal exactly when two tables rotate the same way."""
        digest = hashlib.sha256()
        digest.update(struct.pack("<d?q", self.attention_scaling, self.interleaved, self.rotary_dim))
        digest.update(struct.pack(f"<{self.inv_freq.numel()}d", *self.inv_freq.tolist()))
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RopeTable) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())


def rope_table(config: Any) -> RopeTable:
    """The table of a transformers config; UnsupportedModelError names a kind that everlong does not serve."""
    name = getattr(config, "model_type", type(config).__name__)
    parameters = getattr(config, "rope_parameters", None)
    supported = f"RoPE kinds {', '.join(SUPPORTED_KINDS)} work"
    if not isinstance(parameters, dict) or not parameters:
        raise UnsupportedModelError(f"{name}: its config has no rope_parameters; {supported}")
    nested = sorted(key for key, value in parameters.items() if value is None or isinstance(value, dict))
    if nested:
        raise UnsupportedModelError(f"{name}: a RoPE of its own for each of {nested}; one RoPE for all layers works")
    if parameters.get("mrope_section") is not None:
        raise UnsupportedModelError(
            f"{name}: multimodal RoPE, mrope_section={parameters['mrope_section']}; {supported}"
        )
    if name in OTHER_ROTATION_MODEL_TYPES:
        raise UnsupportedModelError(f"{name}: it rotates its keys in a way of its own; half-split and interleaved work")
    kind = parameters.get("rope_type", "default")
    if kind not in SUPPORTED_KINDS:
        raise UnsupportedModelError(f"{name}: RoPE of the kind {kind!r}; {supported}")
    # The init functions normalise the config that they are given: they get a copy. RoFormer's own table has none: it is
    # linear scaling by 1, which divides by exactly 1.
    own = copy.copy(config)
    own.rope_parameters = (
        dict(parameters) if kind != "default" else {**parameters, "rope_type": "linear", "factor": 1.0}
    )
    inv_freq, attention_scaling = ROPE_INIT_FUNCTIONS[own.rope_parameters["rope_type"]](own)
    return RopeTable(inv_freq.double().contiguous(), float(attention_scaling), name in INTERLEAVED_MODEL_TYPES)
