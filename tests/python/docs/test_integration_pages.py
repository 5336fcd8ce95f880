"""The pages of docs/integrations run from top to bottom, over a tiny model in place of the embedded one."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from everlong.models.pack import PackPart, pack_of
from support import REPOSITORY, random_text, tiny_model
from support.chatting import FACTS, chat_tokenizer

FOLDER = REPOSITORY / "docs" / "integrations"
# What each page needs beside everlong. Pages without Python are not here.
NEEDS = {
    "langchain": ("langchain_core", "langgraph"),
    "llama-index": ("llama_index",),
    "haystack": ("haystack",),
    "transformers": ("accelerate",),
    "hub": (),
}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> str:
    return "\n".join(_BLOCK.findall((FOLDER / f"{page}.md").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    return folder


class _Hub:
    """A Hub that is a folder: what is pushed lies in the cache of downloads."""

    def __init__(self, token: str | None = None) -> None:
        pass

    def create_repo(self, *given: Any, **named: Any) -> None:
        pass

    def upload_folder(self, *, repo_id: str, folder_path: str, **named: Any) -> str:
        of = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
        shutil.copytree(folder_path, of / "snapshots" / ("0" * 40))
        (of / "refs").mkdir()
        (of / "refs" / "main").write_text("0" * 40)
        return "pushed"


@pytest.mark.slow
@pytest.mark.parametrize("page", NEEDS)
def test_a_page_runs(page: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in NEEDS[page] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the package {missing[0]} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", _Hub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    Path("notes.txt").write_text(f"{FACTS['garden']}\n{random_text(1500)}\n{FACTS['kitchen']}\n")
    ran = types.ModuleType(f"page_{page}")
    monkeypatch.setitem(sys.modules, ran.__name__, ran)
    names = vars(ran)
    if page == "hub":
        import torch

        import everlong

        names |= {"everlong": everlong, "model": tiny_model(), "tokenizer": chat_tokenizer()}
        pack_of(names["model"], {"mine": PackPart({"a": torch.ones(1)}, {}, {"figures": {}})}).save("my-pack")
    exec(
        compile(blocks_of(page).replace('"smollm2"', repr(str(model))), f"{page}.md", "exec", dont_inherit=True), names
    )
    if "mm" in names:
        names["mm"].close()


def test_every_page_is_run_or_has_no_python() -> None:
    assert {page.stem for page in FOLDER.glob("*.md") if _BLOCK.search(page.read_text())} == set(NEEDS)
