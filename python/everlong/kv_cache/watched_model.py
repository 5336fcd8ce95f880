"""Whether a model is still the one that a prepared step was made for."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping

import torch
import torch.nn.modules.module as hooks_of_all

from everlong.kv_cache.phase import PhaseTap
from everlong.models.attach import AttachedModel


class WatchedModel:
    """What a step that does not run a model's modules must know of them: which they are, and who listens to them.

    It looks at each token, so it compares what it saw in place of collecting it anew.
    """

    def __init__(self, served: AttachedModel) -> None:
        self._served = served
        self._modules: list[torch.nn.Module] = []
        self._children: list[tuple[Mapping[str, object], Mapping[str, object]]] = []  # by name, now and then
        # Parameters by name now, and of each its name, itself and where it lay.
        self._parameters: list[tuple[Mapping[str, torch.Tensor | None], str, torch.Tensor | None, int]] = []
        self._hooks: list[Mapping[int, object]] = []  # of all modules but the one that the phase is read from

    def changed(self) -> bool:
        """Return whether it has other modules or parameters than at the last call. The first one returns True."""
        if self._modules and self._is_same():
            return False
        self._modules = list(self._served.model.modules())
        self._children = [(module._modules, dict(module._modules)) for module in self._modules]
        self._parameters = [
            (module._parameters, name, parameter, _place_of(parameter))
            for module in self._modules
            for name, parameter in module._parameters.items()
        ]
        heard = [module for module in self._modules if module is not self._served.rotary]
        self._hooks = [hooks for one in heard for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        return True

    def listened_to(self) -> bool:
        """Return whether anyone hears of the modules' forwards, beside those that read the rotation.

        That is a hook, of a module or of all, or a forward that stands in the place of a module's own.
        """
        return (
            any(self._hooks)
            or bool(hooks_of_all._global_forward_hooks or hooks_of_all._global_forward_pre_hooks)
            or any("forward" in vars(module) for module in self._modules)
            or not all(map(PhaseTap.observes, self._served.rotary._forward_hooks.values()))
        )

    def mark(self) -> ModelMark:
        """Return what tells this state of the model from others."""
        return ModelMark(self._modules, [place for *_, place in self._parameters])

    def _is_same(self) -> bool:
        return all(now == then for now, then in self._children) and all(
            now.get(name) is parameter and _place_of(parameter) == place
            for now, name, parameter, place in self._parameters
        )


class ModelMark:
    """A state of a model: its modules, and where their parameters lie. It keeps none of them alive."""

    def __init__(self, modules: list[torch.nn.Module], places: list[int]) -> None:
        self._modules = list(map(weakref.ref, modules))
        self._places = places

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelMark) or self._places != other._places:
            return False
        both = itertools.zip_longest(self._modules, other._modules)
        return all(one is not None and two is not None and one() is two() is not None for one, two in both)

    __hash__ = None  # type: ignore[assignment]  # its modules may go


def _place_of(parameter: torch.Tensor | None) -> int:
    return 0 if parameter is None else parameter.data_ptr()
