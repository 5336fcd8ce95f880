"""How much what a model says hangs on each number of its cache.

A change d of a cache changes what is said behind it by a KL of about d^T F d / 2, where F is Fisher's information: the
mean square of the gradient of the log-likelihood of tokens that the model itself draws. Its diagonal is taken.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from everlong.codecs.coded_context import NEWEST, SINKS, CodedContext
from everlong.models.releases import cache_argument

_DRAWS = 2  # of the tokens behind a context


def sensitivity(context: CodedContext, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean squared gradient of a number of keys, and of values: [layers, heads] each."""
    served, tokens = context.served, context.k.shape[2]
    cache: Any = copy.deepcopy(context.cache)
    wanted = []
    for layer in served.archived:
        held = cache.layers[layer]
        held.keys, held.values = held.keys.requires_grad_(), held.values.requires_grad_()
        wanted += [held.keys, held.values]
    positions = torch.arange(tokens, tokens + len(context.after), device=served.device)[None] + served.first_position
    with torch.enable_grad():
        out = served.model(
            input_ids=context.after[None].to(served.device),
            position_ids=positions,
            **{cache_argument(served.model): cache},
            use_cache=True,
        )
        log_probs = torch.log_softmax(out.logits[0].float(), -1)
        drawn = torch.multinomial(log_probs.detach().exp().cpu(), _DRAWS, replacement=True, generator=generator)
        likelihoods = log_probs.gather(1, drawn.to(log_probs.device)).sum(0)
        squares = torch.zeros(2, *context.k.shape[:2])
        inside = slice(SINKS, tokens - NEWEST)
        for draw in range(_DRAWS):
            found = torch.autograd.grad(likelihoods[draw], wanted, retain_graph=draw < _DRAWS - 1)
            for place, gradient in enumerate(found):
                # Rotation changes no length, so keys need not be un-rotated.
                squares[place % 2, place // 2] += gradient[0, :, inside].float().square().mean((1, 2)).cpu() / _DRAWS
    return squares[0], squares[1]
