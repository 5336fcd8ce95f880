"""Two maps of the served model's own states into one space, in which a question meets the tokens that answer it.

They are a writer tower and a reader tower with late interaction (ColBERT, Khattab and Zaharia, SIGIR 2020) on frozen
states. A passage keeps a vector for every few tokens; a question has one for every token, with a learned weight.

    score = sum over question tokens t of w_t * max over passage vectors v of cos(q_t, v)
"""

from __future__ import annotations

import dataclasses

import torch

from everlong.models.pack import PackedModule

TOWERS = "towers"


@dataclasses.dataclass(frozen=True)
class TowerSettings:
    layers: tuple[int, ...]  # layers whose states are read, as `HiddenTap` counts them
    hidden_size: int
    dimension: int = 128
    group_tokens: int = 4  # neighbouring tokens that share one vector; groups do not cross pages
    # Size of the Detail Tokens that stand for passages in place of states, one a group; 0: means of states do.
    details_size: int = 0
    writer: str = ""  # id of the writer that made the Detail Tokens


class LateTowers(PackedModule):
    """Writer and reader over states [n, layers * hidden size], with the layers side by side.

    The writer reads Detail Tokens [n, details_size] where the settings have them.
    """

    settings: TowerSettings

    center: torch.Tensor
    scale: torch.Tensor
    details_center: torch.Tensor
    details_scale: torch.Tensor

    def __init__(self, settings: TowerSettings) -> None:
        super().__init__()
        self.settings = settings
        width = len(settings.layers) * settings.hidden_size
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        if settings.details_size:
            self.register_buffer("details_center", torch.zeros(settings.details_size))
            self.register_buffer("details_scale", torch.ones(settings.details_size))
        self.writer = torch.nn.Linear(settings.details_size or width, settings.dimension, bias=False)
        self.reader = torch.nn.Linear(width, settings.dimension, bias=False)
        self.importance = torch.nn.Linear(width, 1)

    def normal(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states [n, width] as fp32, centred and scaled as in training."""
        return (states.float() - self.center) * self.scale

    def written(self, rows: torch.Tensor) -> torch.Tensor:
        """Return unit vectors [n, dimension] of means of states [n, width], or of Detail Tokens [n, details_size]."""
        if self.settings.details_size:
            normal = (rows.float() - self.details_center) * self.details_scale
        else:
            normal = self.normal(rows)
        return torch.nn.functional.normalize(self.writer(normal), dim=-1)

    def query_vectors(self, states: torch.Tensor) -> torch.Tensor:
        """Return [T, dimension] of a question's states [T, width].

        The norm of a row is the weight of its token; the weights sum to 1.
        """
        return self.batched_query_vectors(states, torch.zeros(len(states), dtype=torch.int64, device=states.device), 1)

    def batched_query_vectors(self, states: torch.Tensor, asker: torch.Tensor, questions: int) -> torch.Tensor:
        """Do as `query_vectors` for several questions: states [T, width], and each row's question, asker [T] int64."""
        normal = self.normal(states)
        weight = torch.nn.functional.softplus(self.importance(normal))
        total = weight.new_zeros(questions, 1).index_add(0, asker, weight)
        return torch.nn.functional.normalize(self.reader(normal), dim=-1) * weight / total[asker].clamp(min=1e-6)


def groups_of(tokens: int, page_tokens: int, group_tokens: int) -> int:
    """Return how many vectors a block of `tokens` tokens has. Groups do not cross pages."""
    whole, rest = divmod(tokens, page_tokens)
    return whole * -(-page_tokens // group_tokens) + -(-rest // group_tokens)


def means(states: torch.Tensor, page_tokens: int, group_tokens: int) -> torch.Tensor:
    """Return means [groups, width] fp32 of runs of `group_tokens` rows of states [n, width]. No run crosses a page."""
    pieces = []
    for page in torch.split(states.float(), page_tokens):
        whole = len(page) // group_tokens * group_tokens
        if whole > 0:
            pieces.append(page[:whole].reshape(-1, group_tokens, page.shape[-1]).mean(dim=1))
        if whole < len(page):
            pieces.append(page[whole:].mean(dim=0, keepdim=True))
    return torch.cat(pieces) if pieces else states.new_zeros((0, states.shape[-1]), dtype=torch.float32)
