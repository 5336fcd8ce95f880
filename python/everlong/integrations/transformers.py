"""`transformers serve` and `transformers chat` with a memory, by the door for a model's own `generate`.

A model's folder may bring `custom_generate/generate.py`, which takes the place of its `generate`. `folder_with` makes
such a folder. It runs everlong's code and yours, so transformers asks for `--trust-remote-code`.
"""

from __future__ import annotations

import os
import pathlib
import threading
import weakref
from typing import Any

from transformers import AutoTokenizer

from everlong.generation.memory_model import MemoryModel
from everlong.integrations.exclusive import exclusive

_CODE = '''"""Answers from a memory of everlong; made by everlong.integrations.transformers.folder_with."""

from everlong.integrations.transformers import generate_from


def generate(model, *given, **named):
    return generate_from(model, {memory!r}, *given, **named)
'''
_LOCK = threading.Lock()
_OPEN: weakref.WeakKeyDictionary[Any, MemoryModel] = weakref.WeakKeyDictionary()


def folder_with(
    memory: str | os.PathLike[str], model: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> pathlib.Path:
    """Make a folder of a saved model whose `generate` answers from a memory, and return it.

    `model` is a folder that `save_pretrained` wrote; its files are linked. What loads the new folder with
    `trust_remote_code=True`, such as `transformers serve`, answers from the memory, and keeps nothing of what it is
    asked. FileExistsError where the folder is there.
    """
    made, saved = pathlib.Path(folder), pathlib.Path(model).resolve()
    if not (saved / "config.json").is_file():
        raise FileNotFoundError(f"{model} is no folder of a saved model: it has no config.json")
    made.mkdir(parents=True)
    for file in saved.iterdir():
        if file.name != "custom_generate":
            (made / file.name).symlink_to(file)
    (made / "custom_generate").mkdir()
    code = _CODE.format(memory=str(pathlib.Path(memory).resolve()))
    (made / "custom_generate" / "generate.py").write_text(code, encoding="utf-8")
    return made


def generate_from(model: Any, memory: str, *args: Any, **kwargs: Any) -> Any:
    """Do as transformers' `generate` of a model, from a memory. Nothing of it is remembered."""
    with _LOCK:
        mm = _OPEN.get(model)
        if mm is None:
            tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
            mm = _OPEN[model] = MemoryModel(model, tokenizer, memory)
    own = type(model).generate
    return exclusive(lambda: own(model, *args, custom_generate=mm.decode, remember=False, **kwargs))
