"""Checks of a GGUF file's metadata before a model and a tokenizer are made of it, and of what comes of it.

The core has checked that the file is whole. Here it shows that the metadata has the kinds and sizes that transformers
takes for granted: a file from anybody is refused by name, and none makes a model larger than itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

from everlong.errors import EverlongError
from everlong.models.gguf_reader import TEXT, Entry, GgufReader

_BOOL = 7
_INTEGERS = {0, 1, 2, 3, 4, 5, 10, 11}
_FLOATS = {6, 12}
_LARGEST = 2**31 - 1  # of a number of the metadata: a C int
_MOST_LAYERS = 1024
_LONGEST_TOKEN = 1024  # in bytes; merges that a file lacks are found in the square of it
_MERGES_A_TOKEN = 8  # Llama 3 has 2.2
# What an architecture has under its own name. Arrays have a number for each layer.
_COUNTS = ("block_count", "context_length", "embedding_length", "rope.dimension_count", "vocab_size")
_COUNTS_OR_ARRAYS = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")
_RATIOS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")
_IDS = ("bos", "eos", "unknown", "padding")
_FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix")


@contextlib.contextmanager
def faults_are_the_files(reader: GgufReader) -> Iterator[None]:
    """Context manager for what depends on the file alone: errors of transformers become ModelFileError.

    A lack of memory or of a package, and the system's errors, come through.
    """
    try:
        yield
    except (EverlongError, ImportError, MemoryError):
        raise
    except Exception as error:  # of any class: KeyError, ZeroDivisionError, tokenizers' own ...
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise reader.refusal(f"transformers makes no model of it: {type(error).__name__}: {error}") from error


def require_sound(reader: GgufReader) -> None:
    """Raise ModelFileError where an entry of the metadata is of another kind than its name says."""
    for key, entry in reader.entries.items():
        if entry.type == TEXT:
            _require_texts(reader, key, entry.values)
    of = f"{reader.architecture}."
    _require(reader, "general.name", "a text", lambda entry: entry.type == TEXT and not entry.is_array)
    for name in _COUNTS:
        _require(reader, of + name, "a count", lambda entry: not entry.is_array and _are_counts(entry, 1))
    for name in _COUNTS_OR_ARRAYS:  # Mamba has none
        _require(reader, of + name, "a count", lambda entry: _are_counts(entry, 0))
    for name in _RATIOS:
        _require(reader, of + name, "a positive number", _is_ratio)
    _require_tokenizer(reader)


def require_sizes(reader: GgufReader, config: Any) -> None:
    """Raise ModelFileError where the config names more than the file has tensors for: it is made before they are."""
    layers = {tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")}
    largest = _largest_size(reader)
    text = config.get_text_config()
    named = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads")
    experts = (name for name in text.to_dict() if name.startswith("num_") and "expert" in name)
    for name in (*named, *experts):
        value = getattr(text, name, None)
        least, most = (1, min(len(layers), _MOST_LAYERS)) if name == "num_hidden_layers" else (0, largest)
        least = 1 if name in named else least
        if isinstance(value, int) and not least <= value <= most:
            raise reader.refusal(f"it says {name} {value}; by its tensors it is at most {most}")
    count = reader.value(f"{reader.architecture}.block_count")
    if isinstance(count, int):
        for name in layers:
            if name.isdecimal() and int(name) >= count:
                raise reader.refusal(f"it has tensors of layer {name}, and says it has {count} layers")
    tokens, rows = reader.entries.get("tokenizer.ggml.tokens"), getattr(text, "vocab_size", None)
    if tokens is not None and isinstance(rows, int) and len(tokens.values) > rows:
        raise reader.refusal(f"it has {len(tokens.values)} tokens, and embeddings of {rows}")


def _largest_size(reader: GgufReader) -> int:
    return max((size for tensor in reader.tensors for size in tensor.sizes), default=0)


def require_all(reader: GgufReader, missing: Iterable[str]) -> None:
    """Raise ModelFileError where the model has weights that the file lacks. transformers would draw random numbers."""
    if names := sorted(missing):
        raise reader.refusal(f"it has no tensor for {', '.join(names[:4])} of the model that it describes")


def _require(reader: GgufReader, key: str, expected: str, fits: Any) -> None:
    entry = reader.entries.get(key)
    if entry is not None and not fits(entry):
        what = "an array" if entry.is_array else repr(entry.values[0])[:40]
        raise reader.refusal(f"its {key} is {what} of the type {entry.type}, expected {expected}")


def _are_counts(entry: Entry, least: int) -> bool:
    return entry.type in _INTEGERS and all(least <= value <= _LARGEST for value in entry.values)


def _is_ratio(entry: Entry) -> bool:
    return not entry.is_array and entry.type in _FLOATS and 0 < entry.values[0] < math.inf


def _require_texts(reader: GgufReader, key: str, values: list[bytes]) -> None:
    for value in values:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise reader.refusal(f"its {key} has a text that is no UTF-8: {value[:40]!r}") from error


def _require_tokenizer(reader: GgufReader) -> None:
    of = "tokenizer.ggml."
    for key in (of + "model", of + "pre", "tokenizer.chat_template"):
        _require(reader, key, "a text", lambda entry: entry.type == TEXT and not entry.is_array)
    for name in _FLAGS:
        _require(reader, of + name, "true or false", lambda entry: entry.type == _BOOL and not entry.is_array)
    tokens = reader.entries.get(of + "tokens")
    if tokens is None or not tokens.is_array or tokens.type != TEXT or not tokens.values:
        raise reader.refusal(f"its {of}tokens is no array of texts")
    if len(tokens.values) > (largest := _largest_size(reader)):
        raise reader.refusal(f"it has {len(tokens.values)} tokens, and no tensor with more than {largest} rows")
    if (longest := max(map(len, tokens.values))) > _LONGEST_TOKEN:
        raise reader.refusal(f"it has a token of {longest} bytes, expected at most {_LONGEST_TOKEN}")
    for name, types in (("scores", _FLOATS), ("token_type", _INTEGERS)):
        array = reader.entries.get(of + name)
        if array is None:
            continue
        if not array.is_array or array.type not in types or len(array.values) != len(tokens.values):
            raise reader.refusal(f"its {of}{name} is no array of a number for each of {len(tokens.values)} tokens")
        if name == "scores" and any(map(math.isnan, array.values)):
            raise reader.refusal(f"its {of}{name} has a NaN")
    merges = reader.entries.get(of + "merges")
    if merges is not None:
        if not merges.is_array or merges.type != TEXT:
            raise reader.refusal(f"its {of}merges is no array of texts")
        if len(merges.values) > _MERGES_A_TOKEN * len(tokens.values):
            raise reader.refusal(f"it has {len(merges.values)} merges for {len(tokens.values)} tokens")
        for merge in merges.values:
            if len(merge.split(b" ")) != 2 or merge.startswith(b" ") or merge.endswith(b" "):
                raise reader.refusal(f"its {of}merges has {merge[:40]!r}, expected two texts with a space between them")
    for name in _IDS:
        key, most = f"{of}{name}_token_id", len(tokens.values) - 1
        _require(
            reader,
            key,
            f"a token's number, 0 to {most}",
            lambda entry: not entry.is_array and entry.type in _INTEGERS and 0 <= entry.values[0] < len(tokens.values),
        )
