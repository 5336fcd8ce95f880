"""Loads a GGUF file, which is read once: later loads take the weights and the tokenizer from the cache."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everlong.models.conversion_cache import entry_of
from everlong.models.quiet import without_progress_bars
from everlong.text.progress import show_working

# Arguments of `load` that say which files are read, the tokenizer's too.
FILES = ("gguf_file", "revision", "trust_remote_code", "cache_dir", "local_files_only", "token", "subfolder")
# Arguments with which the weights are others than the file's.
_OTHER_WEIGHTS = {"config", "state_dict", "key_mapping", "adapter_kwargs"}
_HUBS_OWN = ("revision", "cache_dir", "local_files_only", "token", "subfolder")

_one_at_a_time = threading.RLock()


def from_pretrained(source: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the model (in evaluation mode) and its tokenizer, as transformers loads them."""
    import transformers

    files = {name: arguments[name] for name in FILES if name in arguments}
    # mistral-common's own tokenizer, preferred where installed, shows no chat template and no places of tokens.
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **files, mistral_format=False)
    return transformers.AutoModelForCausalLM.from_pretrained(source, **arguments).eval(), tokenizer


def load_gguf(source: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the model and the tokenizer of the file `gguf_file` in a folder or a repository of the Hub.

    Its weights are unpacked: in fp32, or in the dtype of the arguments. Another `quantization_config` leaves them as
    they are; then nothing is kept in the cache.
    """
    import transformers

    packed = arguments.get("quantization_config")
    arguments = {**arguments, "quantization_config": packed or transformers.GgufConfig(dequantize=True)}
    if arguments.get("dtype", "auto") == "auto":
        arguments["dtype"] = torch.float32
    file = _local(source, arguments)
    dtype = arguments["dtype"]
    is_plain = packed is None or getattr(packed, "dequantize", False)
    if file is None or not is_plain or not isinstance(dtype, torch.dtype) or _OTHER_WEIGHTS & arguments.keys():
        with _gguf_read_once():
            return from_pretrained(source, arguments)
    made_by = {name: arguments[name] for name in (*FILES, "dtype", "quantization_config") if name in arguments}
    converting = contextlib.ExitStack()

    def bytes_of() -> int:
        converting.enter_context(_gguf_read_once())
        tensors = importlib.import_module("gguf").GGUFReader(str(file)).tensors
        return sum(int(tensor.n_elements) for tensor in tensors) * dtype.itemsize

    def write(folder: pathlib.Path) -> None:
        with without_progress_bars():
            for made in from_pretrained(source, made_by):
                made.save_pretrained(folder)

    with converting:
        converting.enter_context(show_working(f"{file.name} is converted, once", enabled=True))
        with entry_of(file, _kind(dtype), bytes_of, write) as folder:
            converting.close()
            if folder is None:
                with _gguf_read_once():
                    return from_pretrained(source, arguments)
            kept = {name: arguments[name] for name in arguments if name not in {*FILES, "quantization_config"}}
            model, tokenizer = from_pretrained(str(folder), {**kept, "local_files_only": True})
            tokenizer.name_or_path = source
            return model, tokenizer


def _kind(dtype: torch.dtype) -> str:
    """Return what is made of a file, as a name: another transformers may read it otherwise."""
    import transformers

    return f"{dtype}-transformers-{transformers.__version__}".removeprefix("torch.").replace(".", "_")


def _local(source: str, arguments: Mapping[str, Any]) -> pathlib.Path | None:
    """Return the file where it lies on this machine, downloaded if need be; None where it cannot be had."""
    hub: Any = importlib.import_module("transformers.utils.hub")
    value = {name: arguments[name] for name in _HUBS_OWN if arguments.get(name) is not None}
    try:
        return pathlib.Path(hub.cached_file(source, arguments["gguf_file"], **value)).resolve()
    except (OSError, ValueError):  # transformers says why
        return None


@contextlib.contextmanager
def _gguf_read_once() -> Iterator[None]:
    """Context manager: parse a GGUF file once, and make the table of its tensor names once.

    transformers parses it for the tokenizer, for the config and for the weights, and makes the table for every module
    of the model. Both are Python loops over tens of thousands of entries.
    """
    if importlib.util.find_spec("gguf") is None:  # transformers says so
        yield
        return
    with _one_at_a_time:
        gguf = importlib.import_module("gguf")
        own = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map") if hasattr(gguf, name)}
        try:
            for name, make in own.items():
                setattr(gguf, name, functools.cache(make))
            yield
        finally:
            for name, make in own.items():
                setattr(gguf, name, make)
