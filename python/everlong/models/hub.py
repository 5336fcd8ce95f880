"""Packs on the Hugging Face Hub, by huggingface_hub: pushed with a card of their figures, and taken from there."""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import everlong._core as _core
from everlong.models.pack import Pack, PackError, load_pack
from everlong.models.profiles import cache_folder

_CARD = "README.md"
_FILES = ("pack.json", "*.safetensors", _CARD)
_MOST_BYTES = 8 << 30  # of a file


def push_pack(
    folder: str | pathlib.Path,
    repository: str,
    *,
    private: bool = True,
    base_model: str = "",
    license: str = "",
    token: str | None = None,
    message: str = "A pack of everlong",
) -> str:
    """Upload a pack to `repository`, as "owner/name", which is made where it is not there. Return its address.

    Its card, README.md, says which model it is for and how well each part did. `base_model` is that model's name on the
    Hub, by default the name that the pack has. `license` is yours to choose. PackError for a folder that is no pack;
    the errors of huggingface_hub for what the Hub refuses.
    """
    from huggingface_hub import HfApi

    pack, hub = load_pack(folder), HfApi(token=token)
    with tempfile.TemporaryDirectory() as made:
        pack.save(made)  # what the folder holds beside the pack stays at home
        pathlib.Path(made, _CARD).write_text(card_of(pack, repository, base_model, license), encoding="utf-8")
        hub.create_repo(repository, private=private, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repository, folder_path=made, commit_message=message, allow_patterns=list(_FILES)
        )
    return str(getattr(done, "commit_url", done))


def from_hub(
    repository: str,
    *,
    revision: str | None = None,
    cache: str | pathlib.Path | None = None,
    token: str | None = None,
    offline: bool = False,
) -> pathlib.Path:
    """Return the folder of a pack of the Hub, for `MemoryModel(..., pack=from_hub("owner/name"))`.

    It is downloaded once: later it is taken from huggingface_hub's cache, `cache`, and with `offline`, or
    HF_HUB_OFFLINE=1, from there alone. `revision` is a branch, a tag or a commit. PackError for a repository that has
    no whole pack. Whether it is for a model is checked where it is opened: ModelMismatchError.
    """
    from huggingface_hub import snapshot_download

    found = pathlib.Path(
        snapshot_download(
            repository,
            revision=revision,
            cache_dir=cache,
            token=token,
            local_files_only=offline,
            allow_patterns=list(_FILES),
        )
    )
    if not (found / "pack.json").is_file():
        raise PackError(f"{repository} holds no pack: it has no pack.json")
    # The cache links its files, and no file of a pack is read through a link.
    own = cache_folder() / "hub" / repository.replace("/", "--") / found.name
    own.mkdir(parents=True, exist_ok=True)
    for file in sorted(found.glob("*")):
        if any(file.match(pattern) for pattern in _FILES) and not (own / file.name).is_file():
            real = file.resolve()
            data = _core.read_file(str(real.parent), real.name, _MOST_BYTES, may_have_other_names=True)
            _core.replace_file(str(own), file.name, data)
    load_pack(own)
    return own


def card_of(pack: Pack, repository: str, base_model: str = "", license: str = "") -> str:
    """Return the card of a pack, as Markdown: for which model it is, how it is used, and the figures of its parts."""
    name = base_model or pack.model_name
    head = ["---", "library_name: everlong", "tags: [everlong, pack]"]
    head += [f"base_model: {json.dumps(name)}"] if name else []
    head += [f"license: {json.dumps(license)}"] if license else []
    lines = [
        *head,
        "---",
        f"# {repository.rpartition('/')[2]}",
        "",
        f"Trained parts of an everlong memory for {name or 'one model'}.",
        "",
        "```python",
        "from everlong.models.hub import from_hub",
        "",
        f'mm = everlong.MemoryModel(model, tokenizer, "my.everlong", pack=from_hub("{repository}"))',
        "```",
        "",
        f"Fingerprint of the model's weights: `{pack.model}`. Another model is refused.",
        "",
    ]
    for part, told in sorted(pack.parts.items()):
        lines += [f"## {part}", "", *_figures_of(told.made), ""]
    return "\n".join(lines)


def _figures_of(made: Any) -> list[str]:
    told = [f"{what}: {made[what]}" for what in ("data", "steps", "minutes") if made.get(what) not in (None, "")]
    lines = [f"Made from {', '.join(told)}.", ""] if told else []
    figures = made.get("figures")
    if isinstance(figures, dict) and figures:
        lines += ["| measured on | figure | value |", "|---|---|---:|"]
        for where, found in figures.items():
            rows = found.items() if isinstance(found, dict) else [("", found)]
            lines += [f"| {where} | {what} | {_number(value)} |" for what, value in rows]
    return lines


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
