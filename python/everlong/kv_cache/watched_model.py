"""Whether a model is still the one that a prepared step was made for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from everlong.kv_cache.phase import PhaseTap
from everlong.models.attach import AttachedModel


class WatchedModel:
    """What a step that does not run a model's modules must know of them: which they are, and who listens to them."""

    def __init__(self, served: AttachedModel) -> None:
        self._served = served
        self._modules: list[torch.nn.Module] = []
        self.weights: list[int] = []  # where they lie
        self._hooks: list[Mapping[int, object]] = []  # of all modules but the one that the phase is read from

    def changed(self) -> bool:
        """Return whether it has other modules or weights than at the last call. The first one returns True."""
        modules = list(self._served.model.modules())
        weights = [weight.data_ptr() for weight in self._served.model.parameters()]
        if modules == self._modules and weights == self.weights:
            return False
        self._modules, self.weights = modules, weights
        heard = [module for module in modules if module is not self._served.rotary]
        self._hooks = [hooks for one in heard for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        return True

    def listened_to(self) -> bool:
        """Return whether a module has a hook, beside those that read the rotation."""
        return any(self._hooks) or not all(map(PhaseTap.observes, self._served.rotary._forward_hooks.values()))
