"""A token that the core computes through all layers at once, beside the same model's own forward."""

from __future__ import annotations

import contextlib
import gc
import logging
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

import everlong
from everlong import ops
from everlong.kv_cache.block_step import BlockStep
from everlong.models import load
from everlong.models.custom_attention import attend_plainly, override_attention
from everlong.models.low_rank import AttachedMaps, LowRankMaps, MapSettings, mapped_layers
from everlong.models.rounded_weights import round_weights
from everlong.models.tokens import Tokens
from everlong.models.trial import spread
from support import SMALL, byte_tokenizer, random_text
from support.gguf_files import HALVES, Q, write_gguf
from support.models import SHAPE
from support.settings import changed


class Louder(torch.nn.Module):
    """Another activation than the config's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 50 * x


# A number of a token may be turned to the next code of 8 bits by rounding alone.
NOISE = 0.02


def from_file(folder: pathlib.Path, format: Any, *, width: int = 256) -> Any:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EVERLONG_CACHE", str(folder / "cache"))
        return load(str(write_gguf(folder / "tiny.gguf", format=format, width=width, context=4096)))[0]


def rounded(kind: str) -> Any:
    """Return a tiny model with biases, or with norms of its heads, whose matrices were rounded to blocks."""
    torch.manual_seed(0)
    config = (Qwen2Config if kind == "qwen2" else Qwen3Config)(**SHAPE)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
            elif "proj" in name:
                parameter.mul_(6)  # so that each layer tells
    round_weights(model, "int8")
    return model.eval()


@contextlib.contextmanager
def calls() -> Iterator[mock.Mock]:
    """Context manager: yield a mock that counts the calls of the core."""
    with mock.patch.object(ops, "decode_tokens_", wraps=ops.decode_tokens_) as counted:
        yield counted


def compared(mm: everlong.MemoryModel, token: int) -> float:
    """Compute a token both ways. Return how far apart the logits are. What is written must agree as well."""
    frame: Any = mm.frame
    cache = frame.zones.cache
    end = cache.end
    found, written = [], []
    for own in (True, False):
        with frame.branch(), contextlib.ExitStack() as undo:
            if not own:
                undo.enter_context(mock.patch.object(BlockStep, "tokens", return_value=None))
            counted = undo.enter_context(calls())
            found.append(frame.extend(torch.tensor([token]), "generated"))
            assert counted.call_count == own
            assert cache.end == end + 1
            written.append([x[..., end, :].clone() for x in (cache.k, cache.v, cache.cos, cache.sin)])
    for one, other in zip(*written, strict=True):
        assert float((one - other).norm() / other.norm()) < NOISE
    return float((found[0] - found[1]).norm() / spread(found[1]))


def in_all_states(model: Any) -> None:
    """In an empty frame, in one that has evicted, and behind pages that came back."""
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm:
        frame: Any = mm.frame
        mm.frame.extend(mm.encode(random_text(60)), "read")
        with frame.branch(), calls() as counted:
            frame.extend(torch.tensor([7]), "generated")
            assert counted.call_count == 2, "a model's first token is tried"
        errors = [compared(mm, 17)]
        mm.read(random_text(900))
        assert mm.frame.os.evicted
        errors.append(compared(mm, 99))
        mm.frame.recall(mm.memory.core.blocks.pages()[2:5])
        assert frame.zones.cache.recalled > 0
        errors.append(compared(mm, 200))
        assert max(errors) < NOISE


@pytest.mark.parametrize("format", sorted(HALVES), ids=lambda format: format.name)
def test_a_files_model_decodes_as_by_its_modules(format: Any, tmp_path: pathlib.Path) -> None:
    in_all_states(from_file(tmp_path, format))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_biases_and_norms_of_heads_are_computed_too(kind: str) -> None:
    in_all_states(rounded(kind))


def test_an_answer_is_computed_by_it_and_is_that_of_the_modules() -> None:
    model = rounded("qwen2")
    answers = []
    for able in (True, False):
        with (
            everlong.MemoryModel(model, byte_tokenizer(), None, changed(SMALL, draft_tokens=0)) as mm,
            calls() as counted,
            contextlib.nullcontext() if able else mock.patch.object(BlockStep, "tokens", return_value=None),
        ):
            mm.read(random_text(900))
            answers.append(mm.generate("What did it say?", max_new_tokens=16, eos_token_id=-1).token_ids)
            assert (counted.call_count >= 15) is able, "one for each token but the last"
            assert able or counted.call_count == 0
    assert answers[0] == answers[1]


def test_it_stands_aside_for_whoever_listens() -> None:
    model = rounded("qwen3")
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm, calls() as counted:
        mm.read(random_text(300))

        def played(tokens: int = 1) -> int:
            counted.reset_mock()
            with mm.frame.branch():
                mm.frame.extend(torch.arange(5, 5 + tokens), "generated")
            return counted.call_count

        assert played() == 2, "a model's first token is tried"
        assert played() == 1
        heard: list[int] = []
        hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: heard.append(1))
        assert played() == 0
        assert heard == [1]
        hook.remove()
        assert played() == 1
        with override_attention(model, attend_plainly):
            assert played() == 0
        maps = LowRankMaps(MapSettings(2), mapped_layers(model))
        maps.requires_grad_(requires_grad=False)
        with AttachedMaps(maps, model).active():
            assert played() == 0
        assert played() == 1
        model.model.layers[0].mlp.up_proj = torch.nn.Linear(64, 96, bias=False)
        assert played(2) == 0, "the model was changed"
        assert played() == 0


def test_a_model_with_heads_of_another_width_is_left_to_its_modules(tmp_path: pathlib.Path) -> None:
    model = from_file(tmp_path, Q.Q8_0, width=32)  # heads of 8 numbers
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm, calls() as counted:
        mm.read(random_text(100))
        mm.generate("And?", max_new_tokens=4, eos_token_id=-1)
        assert counted.call_count == 0


class Negated(torch.nn.Module):
    """What another module computes, with the other sign."""

    def __init__(self, other: torch.nn.Module) -> None:
        super().__init__()
        self.other = other
        self.act_fn = other.act_fn
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self, name, getattr(other, name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = -self.other(x)
        return out


def replace_a_matrix(model: Any) -> None:
    model.model.layers[1].mlp.down_proj = rounded("qwen2").model.layers[0].mlp.down_proj


def unpack_a_matrix(model: Any) -> None:
    model.model.layers[1].mlp.down_proj = torch.nn.Linear(96, 64, bias=False).eval()


def give_a_norm_other_data(model: Any) -> None:
    model.model.layers[0].input_layernorm.weight.data = torch.randn(64)


def reorder_layers(model: Any) -> None:
    layers = model.model.layers
    layers[0].mlp, layers[2].mlp = layers[2].mlp, layers[0].mlp


def swap_gate_and_up(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def wrap_a_module(model: Any) -> None:
    model.model.layers[1].mlp = Negated(model.model.layers[1].mlp).eval()


def change_an_activation(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = Louder().eval()


def change_a_norm(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 50.0


def change_all_norms(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 50.0


def change_a_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 3


def change_a_forward(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: -own(x)


CHANGES = (
    replace_a_matrix,
    unpack_a_matrix,
    give_a_norm_other_data,
    reorder_layers,
    swap_gate_and_up,
    wrap_a_module,
    change_an_activation,
    change_a_norm,
    change_all_norms,
    change_a_scale,
    change_a_forward,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_the_model_is_noticed_at_the_next_token(change: Callable[[Any], None]) -> None:
    found = []
    for own in (True, False):
        model = rounded("qwen2")
        with contextlib.ExitStack() as undo:
            mm = undo.enter_context(everlong.MemoryModel(model, byte_tokenizer(), None, SMALL))
            if not own:
                undo.enter_context(mock.patch.object(BlockStep, "takes", return_value=False))
            mm.frame.extend(mm.encode(random_text(60)), "read")
            counted = undo.enter_context(calls())
            undo.enter_context(mm.frame.branch())
            before = [mm.frame.extend(torch.tensor([token]), "generated") for token in (3, 4)]
            assert (counted.call_count == 3) is own, "tried once"
            torch.manual_seed(1)
            change(model)
            found.append(mm.frame.extend(torch.tensor([4]), "generated"))
    error = float((found[0] - found[1]).norm() / spread(found[1]))
    assert error < NOISE < float((before[1] - found[1]).norm() / spread(found[1])) / 3


def test_a_hook_of_all_modules_is_heard() -> None:
    model = rounded("qwen2")
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm:
        mm.read(random_text(60))
        heard: list[object] = []
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *of: heard.append(of[0]))
        try:
            with mm.frame.branch(), calls() as counted:
                mm.frame.extend(torch.tensor([5]), "generated")
        finally:
            hook.remove()
        assert counted.call_count == 0
        assert model.model.layers[2].mlp in heard


def test_layers_with_numbers_of_their_own_are_left_to_the_modules() -> None:
    for change in (change_a_norm, change_a_scale):
        model = rounded("qwen3")
        change(model)
        with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm, calls() as counted:
            mm.read(random_text(60))
            with mm.frame.branch():
                mm.frame.extend(torch.tensor([5]), "generated")
            assert counted.call_count == 0


def test_what_was_learned_of_a_model_does_not_keep_it() -> None:
    model = rounded("qwen2")
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm:
        mm.generate("And?", max_new_tokens=2)
    gone = weakref.ref(model)
    del model, mm
    gc.collect()
    assert gone() is None


def test_a_model_that_computes_something_else_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    model = rounded("qwen2")
    with (
        everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm,
        mock.patch.object(ops, "decode_tokens_", side_effect=lambda x, *_: x.mul_(-1)) as wrong,
    ):
        mm.read(random_text(100))
        with caplog.at_level(logging.INFO, logger="everlong"):
            answer = mm.generate("And?", max_new_tokens=4)
        assert wrong.call_count == 1
        assert "tokens are computed module by module" in caplog.text
    with (
        everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm,
        mock.patch.object(BlockStep, "takes", return_value=False),
    ):
        mm.read(random_text(100))
        assert mm.generate("And?", max_new_tokens=4).token_ids == answer.token_ids


@pytest.mark.parametrize("ahead", [2, 5, 17])
def test_tokens_at_once_are_bit_for_bit_those_one_by_one(ahead: int) -> None:
    """So a draft changes no answer."""
    with everlong.MemoryModel(rounded("qwen3"), byte_tokenizer(), None, SMALL) as mm, calls() as counted:
        mm.read(random_text(900))
        frame: Any = mm.frame
        ids = torch.arange(3, 3 + ahead)
        with frame.branch():
            frame.extend(torch.tensor([1]), "generated")
            counted.reset_mock()
            together = frame.zones.computing.ahead(frame.os.next_position(), Tokens(ids))[0]
            assert counted.call_count == 1
            one_by_one = [frame.extend(ids[at : at + 1], "generated") for at in range(ahead)]
        assert torch.equal(together, torch.cat(one_by_one))


def test_answers_at_once_are_bit_for_bit_those_one_by_one() -> None:
    """Frames of one model, whose tokens are computed by one call."""
    model = rounded("qwen2")
    how: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": 1}
    found = []
    for at_once in (1, 3):
        config = changed(SMALL, at_once=at_once, draft_tokens=0)
        with everlong.MemoryModel(model, byte_tokenizer(), None, config) as mm, calls() as counted:
            mm.read(random_text(900))
            counted.reset_mock()
            found.append([one.token_ids for one in mm.answer_many(["Who?", "What did it say?", "When?"], **how)])
            streams = [len(call.args[4]) for call in counted.call_args_list]
            assert max(streams) == at_once
    assert found[0] == found[1]


def test_wrong_arguments_are_named() -> None:
    model = rounded("qwen2")
    with everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm, calls() as counted:
        mm.read(random_text(100))
        mm.frame.extend(torch.tensor([5]), "generated")
        given = list(counted.call_args.args)
        torch.library.opcheck(
            torch.ops.everlong.decode_tokens_.default, tuple(given), test_utils=("test_schema", "test_faketensor")
        )
        before = given[0].clone()
        for at, wrong, words in (
            (0, given[0][:, :32].contiguous(), "expected"),
            (0, given[0].double(), "hidden is Double"),
            (0, given[0][0], "hidden is"),
            (1, given[1][1:], "7, 7 and 11 for each layer"),
            (1, [given[1][1], *given[1][1:]], "query is"),
            (1, [given[1][0].float(), *given[1][1:]], "blocks is Float"),
            (2, [given[2][0].double(), *given[2][1:]], "a norm is Double"),
            (2, [*given[2][:4], given[2][4][:3], *given[2][5:]], "bias of 3"),
            (3, [9, *given[3][1:]], "the format of a matrix is 9"),
            (4, [given[4][0].double()], "k is Double"),
            (4, [], "the streams is 0 k"),
            (4, given[4] * 2, "the streams is 2 k"),
            (5, [given[5][0][:2]], "v is"),
            (6, given[6][:2], "the streams is 1 k, 1 v and 2 numbers"),
            (6, [-1, *given[6][1:]], "begin, end, tokens is -1"),
            (6, [given[6][0], given[4][0].shape[2], 1], "begin, end, tokens is"),
            (6, [*given[6][:2], 0], "begin, end, tokens is"),
            (6, [*given[6][:2], 2], "the streams' 2 tokens"),
            (7, given[7][:, :3].contiguous(), "cos, sin is"),
        ):
            with pytest.raises(RuntimeError, match=words):
                ops.decode_tokens_(*given[:at], wrong, *given[at + 1 :])
        assert torch.equal(before, given[0])
