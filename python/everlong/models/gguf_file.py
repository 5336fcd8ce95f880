"""Loads a GGUF file: its matrices stay in their blocks, or are unpacked for a dtype.

The cache has what is slow to make: the tokenizer and, of a file that was unpacked, the weights.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from everlong.models.conversion_cache import entry_of
from everlong.models.gguf_blocks import block_model, has_blocks
from everlong.models.gguf_checks import faults_are_the_files, require_all, require_sizes, require_sound
from everlong.models.gguf_reader import GgufReader
from everlong.models.quiet import without_progress_bars
from everlong.text.progress import show_working

# Arguments of `load` that say which files are read, the tokenizer's too.
FILES = ("gguf_file", "revision", "trust_remote_code", "cache_dir", "local_files_only", "token", "subfolder")
# Arguments with which the weights are others than the file's.
_OTHER_WEIGHTS = {"config", "state_dict", "key_mapping", "adapter_kwargs"}
# Arguments that leave the weights in their blocks.
_OF_BLOCKS = {*FILES, "dtype", "attn_implementation"}
# Arguments with which a fault is the file's.
_OF_THE_FILE = {*FILES, "dtype", "quantization_config"}
_HUBS_OWN = ("revision", "cache_dir", "local_files_only", "token", "subfolder")

_CHECKED = 2  # changes with the checks of files: what was made without them is made anew

_one_at_a_time = threading.RLock()


def from_pretrained(source: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the model (in evaluation mode) and its tokenizer, as transformers loads them."""
    import transformers

    files = {name: arguments[name] for name in FILES if name in arguments}
    # mistral-common's own tokenizer, preferred where installed, shows no chat template and no places of tokens.
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **files, mistral_format=False)
    return transformers.AutoModelForCausalLM.from_pretrained(source, **arguments).eval(), tokenizer


def load_gguf(source: str, arguments: Mapping[str, Any], *, keep_blocks: bool) -> tuple[Any, Any]:
    """Return the model and the tokenizer of the file `gguf_file` in a folder or a repository of the Hub.

    With `keep_blocks` its matrices stay in their blocks, where everlong can multiply with them, and all else is fp32:
    attention over few tokens is faster than in bf16, and the results are closer to the file's own numbers. Otherwise
    its weights are unpacked: in fp32, or in the dtype of the arguments. Another `quantization_config` leaves them as
    they are; then nothing is kept in the cache. Raises ModelFileError for a damaged file, for one that lacks a tensor
    of its model, and where the file is replaced or written to meanwhile.
    """
    path = _local(source, arguments)
    if path is None:  # transformers says why
        with _gguf_read_once():
            return from_pretrained(source, _to_unpack(arguments))
    reader = GgufReader(path)
    # By its whole path: transformers takes the weights of a file of that name in the working directory, if it is there.
    folder = str(path.parent)
    own = {name: value for name, value in arguments.items() if name not in _HUBS_OWN} | {"gguf_file": str(path)}
    try:
        made = None
        if keep_blocks and own.keys() <= _OF_BLOCKS and has_blocks(reader):
            made = _load_blocks(folder, own, reader)
        model, tokenizer = made or _load_unpacked(folder, own, reader)
    finally:
        reader.require_unchanged()
    tokenizer.name_or_path = source
    return model, tokenizer


def config_of(file: str | pathlib.Path) -> Any:
    """Return the config of the model in a file, which its metadata describes. ModelFileError for a damaged file."""
    path = os.path.abspath(file)
    reader = GgufReader(path)
    config = _config(os.path.dirname(path), {"gguf_file": path}, reader)
    reader.require_unchanged()
    return config


def _to_unpack(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with which transformers unpacks a file, unless they say otherwise."""
    import transformers

    made = {**arguments}
    made["quantization_config"] = arguments.get("quantization_config") or transformers.GgufConfig(dequantize=True)
    if arguments.get("dtype", "auto") == "auto":
        made["dtype"] = torch.float32
    return made


def _load_unpacked(source: str, arguments: Mapping[str, Any], reader: GgufReader) -> tuple[Any, Any]:
    """Return a model as transformers makes it, and its tokenizer: from the cache, where it can keep them."""
    arguments = _to_unpack(arguments)
    dtype, is_plain = arguments["dtype"], getattr(arguments["quantization_config"], "dequantize", False)
    if not is_plain or not isinstance(dtype, torch.dtype) or _OTHER_WEIGHTS & arguments.keys():
        return _unpacked(source, arguments, reader)
    made_by = {name: arguments[name] for name in (*FILES, "dtype", "quantization_config") if name in arguments}
    converting = contextlib.ExitStack()

    def bytes_of() -> int:
        converting.enter_context(_gguf_read_once(reader))
        return sum(tensor.n_elements for tensor in reader.tensors) * dtype.itemsize

    def write(folder: pathlib.Path) -> None:
        with without_progress_bars():
            for made in _unpacked(source, made_by, reader):
                made.save_pretrained(folder)
        reader.require_unchanged()

    with converting:
        converting.enter_context(show_working(f"{reader.file.name} is converted, once", enabled=True))
        with entry_of(reader.file, _kind(dtype), bytes_of, write) as folder:
            converting.close()
            if folder is None:
                return _unpacked(source, arguments, reader)
            kept = {name: arguments[name] for name in arguments if name not in {*FILES, "quantization_config"}}
            return from_pretrained(str(folder), {**kept, "local_files_only": True})


def _load_blocks(source: str, arguments: Mapping[str, Any], reader: GgufReader) -> tuple[Any, Any] | None:
    """Return a model over the blocks of a file, and its tokenizer; None where transformers alone can make the model."""
    config, tokenizer = _described(source, arguments, reader)
    with _gguf_read_once(reader), faults_are_the_files(reader):
        model = block_model(reader, config, torch.float32)
    if model is None:
        return None
    if "attn_implementation" in arguments:
        model.set_attn_implementation(arguments["attn_implementation"])
    return model, tokenizer


def _unpacked(source: str, arguments: Mapping[str, Any], reader: GgufReader) -> tuple[Any, Any]:
    """Return the model and its tokenizer, made of the file by transformers."""
    import transformers

    files = {name: arguments[name] for name in FILES if name in arguments}
    with _gguf_read_once(reader), contextlib.ExitStack() as blamed:
        _, tokenizer = _config_and_tokenizer(source, files, reader)
        if arguments.keys() <= _OF_THE_FILE:
            blamed.enter_context(faults_are_the_files(reader))
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        model, loaded = load(source, output_loading_info=True, **arguments)
        require_all(reader, loaded["missing_keys"])
    return model.eval(), tokenizer


def _described(source: str, arguments: Mapping[str, Any], reader: GgufReader) -> tuple[Any, Any]:
    """Return the config and the tokenizer of a file, made of its metadata once."""
    with reader.file.open("rb") as opened:
        metadata = opened.read(reader.data_offset)
    files = {name: arguments[name] for name in FILES if name in arguments}
    making = contextlib.ExitStack()

    def write(folder: pathlib.Path) -> None:
        making.enter_context(show_working(f"the tokenizer of {reader.file.name} is made, once", enabled=True))
        for made in _config_and_tokenizer(source, files, reader):
            made.save_pretrained(folder)
        reader.require_unchanged()

    with making, entry_of(reader.file, _kind("tokenizer"), lambda: 4 * len(metadata), write, metadata) as folder:
        if folder is None:
            return _config_and_tokenizer(source, files, reader)
        return _config_and_tokenizer(str(folder), {"local_files_only": True}, reader)


def _config_and_tokenizer(source: str, files: Mapping[str, Any], reader: GgufReader) -> tuple[Any, Any]:
    import transformers

    config = _config(source, files, reader)
    with _gguf_read_once(reader), without_progress_bars(), faults_are_the_files(reader):
        return config, transformers.AutoTokenizer.from_pretrained(source, **files, mistral_format=False)


def _config(source: str, files: Mapping[str, Any], reader: GgufReader) -> Any:
    import transformers

    if "gguf_file" in files:
        require_sound(reader)
    with _gguf_read_once(reader), without_progress_bars(), faults_are_the_files(reader):
        config = transformers.AutoConfig.from_pretrained(source, **files)
        require_sizes(reader, config)
    return config


def _kind(made: object) -> str:
    """Return what is made of a file, as a name: another transformers may read it otherwise."""
    import transformers

    return f"{made}-{_CHECKED}-transformers-{transformers.__version__}".removeprefix("torch.").replace(".", "_")


def _local(source: str, arguments: Mapping[str, Any]) -> pathlib.Path | None:
    """Return the file's path on this machine, downloaded if need be; None where it cannot be had."""
    own = os.path.join(source, arguments.get("subfolder") or "", arguments["gguf_file"])
    if os.path.exists(own):
        return pathlib.Path(os.path.abspath(own))
    hub: Any = importlib.import_module("transformers.utils.hub")
    value = {name: arguments[name] for name in _HUBS_OWN if arguments.get(name) is not None}
    try:
        return pathlib.Path(hub.cached_file(source, arguments["gguf_file"], **value))
    except (OSError, ValueError):  # transformers says why
        return None


@contextlib.contextmanager
def _gguf_read_once(known: GgufReader | None = None) -> Iterator[None]:
    """Context manager: parse a GGUF file once, by the core, and make the table of its tensor names once.

    A file that is `known` is not parsed again.

    transformers parses it for the tokenizer, for the config and for the weights, and makes the table for every module
    of the model. Both are Python loops over tens of thousands of entries.
    """
    if importlib.util.find_spec("gguf") is None:  # transformers says so
        yield
        return
    gguf = importlib.import_module("gguf")
    files: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")

    @functools.cache
    def reader_of(path: Any) -> GgufReader:
        return known if known is not None and known.file == pathlib.Path(path).resolve() else GgufReader(path)

    with _one_at_a_time:
        own = [
            (gguf, "GGUFReader", reader_of),
            (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
            (files, "load_gguf_checkpoint", _parsed_once(files.load_gguf_checkpoint)),
        ]
        with contextlib.ExitStack() as undo:
            for module, name, instead in own:
                undo.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, instead)
            yield


def _parsed_once(load: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return transformers' loader of a file, which translates the metadata of each once."""
    parsed = functools.cache(load)

    def loaded(path: Any, return_tensors: bool = False, **more: Any) -> dict[str, Any]:
        if return_tensors:
            return load(path, return_tensors=True, **more)
        return {name: dict(part) for name, part in parsed(path).items()}

    return loaded
