"""How a model is served: by keys and values, or by text alone where these cannot be spliced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from everlong.config import MemoryConfig
from everlong.config.frame import FrameConfig
from everlong.errors import UnsupportedModelError
from everlong.frame.budget import require_budget
from everlong.kv_cache.splice import require_splice
from everlong.models.attach import AttachedModel, attach, trained_window
from everlong.models.hardware import use_allowed_cpus
from everlong.models.text_model import TextModel, text_model
from everlong.models.tuned_settings import TUNED, tuned_settings


class TextAloneError(UnsupportedModelError):
    """The model can be served by text alone only, and that was not asked for. `reason` says what is in the way."""

    def __init__(self, reason: str, window: int) -> None:
        given = window if window < FrameConfig().tokens else ""
        super().__init__(
            f"{reason}. By text alone it works: MemoryConfig.text_alone({given}), --set answer.recall_mode=text"
        )
        self.reason = reason
        self._window = window

    def __reduce__(self) -> tuple[type[TextAloneError], tuple[str, int]]:
        return type(self), (self.reason, self._window)


def default_config(model: Any, *, text_alone: bool = False) -> MemoryConfig:
    """Return MemoryConfig(), scaled down for a model with a smaller window, with what was tuned for the model.

    Raise UnsupportedModelError where the model's config names no window, except for a memory of text alone.
    """
    config = untuned_config(model, text_alone=text_alone)
    try:
        tuned = tuned_settings(model)
        return config if tuned is None else config.with_settings(tuned.settings)
    except (ValueError, NotImplementedError):  # of an everlong that had other settings; or the model has no weights yet
        return config


def configured(model: Any, settings: Sequence[str], *, text_alone: bool = False) -> MemoryConfig:
    """Return the model's default config with settings `name=value`. ValueError as in `MemoryConfig.with_settings`.

    What was tuned for the model was measured together. So it is left out where one of these settings decides, too, what
    comes back for a question.
    """
    own = MemoryConfig().with_settings(settings)
    text_alone = text_alone or own.answer.recall_mode == "text"
    decided = {setting.partition("=")[0] for setting in settings} & TUNED
    config = untuned_config(model, text_alone=text_alone) if decided else default_config(model, text_alone=text_alone)
    return config.with_settings(settings)


def untuned_config(model: Any, *, text_alone: bool = False) -> MemoryConfig:
    """Do as `default_config`, without what was tuned for the model."""
    try:
        window = trained_window(model)
    except UnsupportedModelError as error:
        if text_alone:
            return MemoryConfig()
        raise _with_supported_parts(error, model, FrameConfig().tokens) from None
    return MemoryConfig.fitting(window)


def attach_model(model: Any, config: MemoryConfig, *, text_alone: bool = False) -> AttachedModel | TextModel:
    """Measure a model, and return how it is served: by keys and values, or by text alone.

    By text alone where the memory is `text_alone`, or where keys and values cannot be spliced and `answer.recall_mode`
    is "text". With another mode such a model is refused: UnsupportedModelError says why, and whether text alone would
    do. ValueError for a frame larger than the model's window, CapacityError for one over its byte budget.
    """
    use_allowed_cpus()
    model = getattr(model, "_orig_mod", model)  # torch.compile(model) wraps it; a memory computes without the compiler
    require_plain(model)
    _make_buffers_plain(model)
    if text_alone:
        return text_model(model, config.frame.tokens)
    try:
        served = attach(model, config.frame.tokens)
        _require_archived_dtype(served)
        require_budget(served, config)
        require_splice(served)
    except UnsupportedModelError as error:
        if config.answer.recall_mode == "text":
            return text_model(model, config.frame.tokens)
        raise _with_supported_parts(error, model, config.frame.tokens) from None
    return served


def _require_archived_dtype(served: AttachedModel) -> None:
    """Raise UnsupportedModelError for a model in a dtype from which no keys are archived."""
    if served.dtype == torch.float64:
        raise UnsupportedModelError(
            f"{served.model.config.model_type}: it computes in float64, and keys are archived from float32, float16 or "
            "bfloat16; the model loaded with dtype=torch.float32 works"
        )


# Modules that compute the same in training. transformers makes new ones in that mode where a vocabulary grows.
_ALIKE = (torch.nn.Linear, torch.nn.Embedding)


def require_plain(model: Any) -> None:
    """Raise UnsupportedModelError where a module is in training mode, or was compiled in place.

    Dropout makes other keys than those that are asked for. A checkpointed layer keeps no keys at all. A compiled module
    does not call the hooks that take its rotations and queries.
    """
    name = model.config.model_type
    for path, module in model.named_modules():
        what = f"its module {path}" if path else "it"
        if module.training and not isinstance(module, _ALIKE):
            raise UnsupportedModelError(f"{name}: {what} is in training mode; model.eval() works")
        if _is_compiled(module):
            raise UnsupportedModelError(
                f"{name}: {what} was compiled in place; the model as it was loaded works, and so does what "
                "torch.compile(model) returns, because that leaves the model as it is"
            )


def _is_compiled(module: torch.nn.Module) -> bool:
    in_place = getattr(module, "_compiled_call_impl", None) is not None  # by module.compile()
    wrapped = hasattr(module, "_orig_mod") or hasattr(module.forward, "_torchdynamo_orig_callable")
    return in_place or wrapped


@torch.inference_mode(False)
def _make_buffers_plain(model: Any) -> None:
    """Make buffers from inference mode writable outside of it: some rotary embeddings write theirs in every forward."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.is_inference():
                setattr(module, name, buffer.clone())


def _with_supported_parts(error: UnsupportedModelError, model: Any, frame_tokens: int) -> UnsupportedModelError:
    """Return the refusal, with the advice that text alone works, where it does."""
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or frame_tokens
    try:
        text_model(model, min(frame_tokens, window))
    except UnsupportedModelError:
        return error
    return TextAloneError(str(error), window)
