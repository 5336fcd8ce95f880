"""Settings that serve one model best, as `everlong tune` measured them.

How many groups a question brings back, and whether they come back as keys and values or as a few sentences in words, is
a property of the model: what helps one of 0.5B costs one of 135M answers. Those of some models are shipped
(`tuned_settings.json`), by the models' shapes, so that another number format of the same model has them, too. What was
measured on this machine comes before them, by the weights' fingerprint.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from everlong.models.fingerprint import weights_fingerprint
from everlong.models.profiles import store_measurement, stored_measurement

# Settings that decide together what comes back for a question.
TUNED = frozenset(
    {"search.groups", "answer.quotes", "answer.quotes_alone", "answer.recall_mode", "answer.recalled_temperature"}
)
_SHIPPED = pathlib.Path(__file__).with_suffix(".json")


@dataclasses.dataclass(frozen=True)
class TunedSettings:
    """`settings` are `group.name=value`, as `MemoryConfig.with_settings` takes them; none where the defaults serve."""

    model: str  # the name of the model that was measured
    settings: tuple[str, ...]
    measured: Mapping[str, Any]  # figures, for people

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TunedSettings:
        """Read what JSON made of it. ValueError, TypeError or KeyError for what is none."""
        settings = fields["settings"]
        if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
            raise ValueError(f"settings {settings!r} are no list of texts")
        if others := {one.partition("=")[0] for one in settings} - TUNED:
            raise ValueError(f"settings that are not tuned: {', '.join(sorted(others))}")
        return cls(str(fields["model"]), tuple(settings), dict(fields["measured"]))


def tuned_settings(model: Any) -> TunedSettings | None:
    """Return the settings that were measured on this machine for a model, or else those shipped for its shape."""
    text = stored_measurement(_name(model))
    if text is not None:
        try:
            return TunedSettings.from_dict(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # damaged: it is measured anew when someone does
    return _shipped().get(shape_of(model))


def store_tuned_settings(model: Any, tuned: TunedSettings) -> None:
    """Keep the settings for a model on this machine."""
    store_measurement(_name(model), tuned.to_json() + "\n")


def shape_of(model: Any) -> str:
    """Return what tells a model from models of other sizes and families: "qwen2, 24 layers of 896, 151936 words"."""
    config = _plain(model).config.get_text_config(decoder=True)
    kind, layers, width, words = (
        getattr(config, name, None) for name in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")
    )
    return f"{kind}, {layers} layers of {width}, {words} words"


@functools.cache
def _shipped() -> Mapping[str, TunedSettings]:
    shapes = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    return {shape: TunedSettings.from_dict(fields) for shape, fields in shapes.items()}


def _name(model: Any) -> str:
    return hashlib.sha256(f"tuned {weights_fingerprint(_plain(model))}".encode()).hexdigest()[:32]


def _plain(model: Any) -> Any:
    return getattr(model, "_orig_mod", model)  # torch.compile(model) wraps it
