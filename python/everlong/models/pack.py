"""A pack: what was trained for one model, in one folder.

`pack.json` says what is in it, for which model, and how it was made: data, seeds, minutes, measured figures. Tensors
lie beside it as safetensors. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import typing
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any, ClassVar, Self

import safetensors
import safetensors.torch
import torch

import everlong._core as _core
from everlong.errors import EverlongError, ModelMismatchError
from everlong.memory.fingerprint import Fingerprint
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.profiles import cache_folder
from everlong.models.rng import isolated_rng
from everlong.paths import absolute
from everlong.plugins import folders_of

FORMAT = 1
_LIST = "pack.json"
_MOST_BYTES = {_LIST: 64 << 20}  # of a file that is read; of tensors _MOST_TENSOR_BYTES
_MOST_TENSOR_BYTES = 8 << 30
_OWN = pathlib.Path(__file__).parent.parent / "packs"
# An entry point of this group names a package with more of them: a folder each.
GROUP = "everlong.packs"


class PackError(EverlongError, ValueError):
    """A folder that is no pack, or a damaged one. The message names the file."""


# What reading somebody's files ends in, beside a pack.
NO_PACK = (
    *(EverlongError, OSError, KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError),
    *(MemoryError, safetensors.SafetensorError),
)


@dataclasses.dataclass(frozen=True)
class PackPart:
    """One trained part: tensors in a file of its own, and all that is noted of them."""

    tensors: Mapping[str, torch.Tensor]
    settings: Mapping[str, Any]  # what its code is made with
    made: Mapping[str, Any]  # data, seed, minutes, figures: for people and reports

    @property
    def id(self) -> str:
        """12 hexadecimal digits of its tensors and settings. They tell it from the same part of another training."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].detach().cpu().contiguous()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Pack:
    """The parts that were trained for a model, by name. `model` is its weights' fingerprint."""

    model: str
    model_name: str
    parts: Mapping[str, PackPart]

    def save(self, folder: str | pathlib.Path) -> None:
        """Write it. Parts that were trained for the same model before and are not in it stay."""
        folder = pathlib.Path(absolute(folder))
        folder.mkdir(parents=True, exist_ok=True)
        parts = dict(self.parts)
        if (folder / _LIST).exists():
            before = load_pack(folder)
            if before.model != self.model:
                raise ModelMismatchError(f"{folder} is a pack of {before.model_name or 'another model'}")
            parts = {**before.parts, **parts}
        listed = {}
        for name, part in sorted(parts.items()):
            tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in part.tensors.items()}
            _core.replace_file(str(folder), f"{name}.safetensors", safetensors.torch.save(tensors))
            listed[name] = {"id": part.id, "settings": dict(part.settings), "made": dict(part.made)}
        listing = {"format": FORMAT, "model": self.model, "model_name": self.model_name, "parts": listed}
        _core.replace_file(str(folder), _LIST, (json.dumps(listing, indent=2) + "\n").encode())


class PackedModule(torch.nn.Module):
    """A module that a pack keeps: its settings as JSON, its maps in 16 bits, its buffers as they are.

    A subclass says of which type its `settings` are, a frozen dataclass, and is made from them alone. Other tensors of
    its entry have names that begin with one of `BESIDE`.
    """

    KEPT_AS: ClassVar[torch.dtype] = torch.bfloat16
    BESIDE: ClassVar[tuple[str, ...]] = ()
    settings: Any

    def part(self, made: Mapping[str, Any]) -> PackPart:
        """Return it as a pack keeps it."""
        tensors = {name: tensor.detach().to(self.KEPT_AS) for name, tensor in self.state_dict().items()}
        tensors |= {name: tensor.detach() for name, tensor in self.named_buffers()}
        return PackPart(tensors, dataclasses.asdict(self.settings), made)

    @classmethod
    def of_part(cls, part: PackPart) -> Self:
        """Make the module from a pack's part. PackError for settings of a later release, or that its tensors lack."""
        own = {name: value for name, value in part.settings.items() if not cls._beside(name)}
        tensors = {name: tensor.float() for name, tensor in part.tensors.items() if not cls._beside(name)}
        try:
            settings = settings_of(typing.get_type_hints(cls)["settings"], own)
            with isolated_rng(), torch.device("meta"):  # settings may say any size: first without memory
                sizes = {name: tensor.shape for name, tensor in cls(settings).state_dict().items()}
            if sizes != {name: tensor.shape for name, tensor in tensors.items()}:
                raise PackError("its tensors do not have the sizes that its settings say")
            with isolated_rng():  # of layers that are filled right away
                module = cls(settings)
            module.load_state_dict(tensors)
        except NO_PACK as error:
            raise PackError(f"the {cls.__name__} of a pack cannot be made: {error}") from error
        return module.eval().requires_grad_(requires_grad=False)

    @classmethod
    def _beside(cls, name: str) -> bool:
        return name.partition(".")[0] in cls.BESIDE


def settings_of(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """Make a dataclass from what JSON has of it: lists become tuples, and objects become dataclasses."""
    types = typing.get_type_hints(kind)

    def own(name: str, value: Any) -> Any:
        inner = [one for one in (types.get(name), *typing.get_args(types.get(name))) if dataclasses.is_dataclass(one)]
        if isinstance(value, Mapping) and inner and isinstance(inner[0], type):
            return settings_of(inner[0], value)
        return tuple(value) if isinstance(value, list) else value

    return kind(**{name: own(name, value) for name, value in fields.items()})


def load_pack(folder: str | pathlib.Path) -> Pack:
    """Read a pack. PackError for a folder that is none, is damaged, or is of a later release."""
    folder = pathlib.Path(absolute(folder))
    try:
        listing = _parsed(_read(folder, _LIST))
        found = listing["format"]
        if found != FORMAT:
            raise PackError(f"{folder / _LIST} has format {found}, expected {FORMAT}")
        _require_types(listing)
        parts = {}
        for name, values in listing["parts"].items():
            file = folder / f"{name}.safetensors"
            part = PackPart(safetensors.torch.load(_read(folder, file.name)), values["settings"], values["made"])
            if part.id != values["id"]:
                raise PackError(f"{file} is not the file that {_LIST} is about")
            parts[name] = part
        return Pack(listing["model"], listing["model_name"], parts)
    except PackError:
        raise
    except NO_PACK as error:
        raise PackError(f"{folder} is no pack: {error}") from error


def pack_folder_of(weights: str) -> pathlib.Path:
    """Return the folder where `everlong train` puts what it trained for a model: one folder a model."""
    return cache_folder() / "packs" / weights[:16]


def find_pack(prints: Fingerprint) -> Pack | None:
    """Return what was trained for a model: the user's own parts beside shipped ones; None where there are none."""
    found: Pack | None = None
    for folder in (*_shipped_folders(), pack_folder_of(prints.weights)):
        pack = _opened(folder, prints.weights) if (folder / _LIST).is_file() else None
        if pack is not None:
            shipped = {} if found is None else found.parts
            found = dataclasses.replace(pack, parts={**shipped, **pack.parts})
    return found


def shipped_packs() -> list[Pack]:
    """Return the packs that come with installed packages, by name of the folder."""
    return [pack for folder in _shipped_folders() if (pack := _opened(folder)) is not None]


def _opened(folder: pathlib.Path, weights: str | None = None) -> Pack | None:
    """Return a pack; None for one of other weights, whose tensors are not read.

    A damaged one of another package is left out with a warning. Any other raises PackError.
    """
    try:
        return load_pack(folder) if weights in (None, _model_of(folder)) else None
    except PackError as error:
        if folder not in _others_folders():
            raise
        warnings.warn(f"a pack of another package is left out: {error}", stacklevel=2)
        return None


def _shipped_folders() -> tuple[pathlib.Path, ...]:
    """Return the folders of packs of everlong and of other packages, everlong's first, each by name."""
    return (*_packs_in(_OWN), *_others_folders())


@functools.cache
def _others_folders() -> tuple[pathlib.Path, ...]:
    points = metadata.entry_points(group=GROUP)
    return tuple(pack for point in points for place in folders_of(point.module) for pack in _packs_in(place))


@functools.cache
def _packs_in(place: pathlib.Path) -> tuple[pathlib.Path, ...]:
    return tuple(folder for folder in sorted(place.glob("*/")) if (folder / _LIST).is_file())


def _model_of(folder: pathlib.Path) -> str:
    """Return which model a pack is for. PackError for a list that does not say it."""
    try:
        return str(_parsed(_read(folder, _LIST))["model"])
    except NO_PACK as error:
        raise PackError(f"{folder} is no pack: {error}") from error


def model_of_shipped(name: str) -> str:
    """Return which model the pack in that folder of those that come with everlong is for."""
    return _model_of(_OWN / name)


def open_pack(pack: str | pathlib.Path | None, prints: Fingerprint) -> Pack | None:
    """Open what `MemoryModel(pack=...)` names: "auto", a folder, or None. ModelMismatchError for another model's."""
    if pack is None:
        return None
    if pack == "auto":
        return find_pack(prints)
    loaded = load_pack(pack)
    if loaded.model != prints.weights:
        raise ModelMismatchError(f"{pack} was trained for {loaded.model_name or 'another model'}, not for this one")
    return loaded


def pack_for(model: torch.nn.Module, pack: str | pathlib.Path | None = "auto") -> Pack | None:
    """Do as `open_pack`, for a model that nothing is attached to yet."""
    return open_pack(pack, Fingerprint(weights_fingerprint(model), rope="", tokenizer=""))


def pack_of_model(model: torch.nn.Module, pack: str | pathlib.Path | None) -> Pack:
    """Return what `pack_for` finds; an empty pack where there is none."""
    return pack_for(model, pack) or Pack(weights_fingerprint(model), "", {})


def pack_of(model: torch.nn.Module, parts: Mapping[str, PackPart]) -> Pack:
    """Return parts that were trained for a model, as its pack. Of a local path it keeps the last part alone."""
    name = pathlib.Path(getattr(model, "name_or_path", ""))
    return Pack(weights_fingerprint(model), name.name if name.exists() else str(name), parts)


def part_in(pack: Pack | None, part: str, called: str) -> PackPart:
    """Return a part. EverlongError, which calls it `called`, where the pack has none."""
    if pack is None or part not in pack.parts:
        raise EverlongError(f"there is no {called} for this model: `everlong train {part}` makes one")
    return pack.parts[part]


def pack_with(part: str, called: str, model: torch.nn.Module, pack: str | pathlib.Path | None) -> Pack:
    """Return the pack of a model that has a part. EverlongError, which calls it `called`, where it has none."""
    found = pack_of_model(model, pack)
    part_in(found, part, called)
    return found


def _read(folder: pathlib.Path, name: str) -> bytes:
    """Return a file of a pack, which is input: no link is followed, and no file of another name is read."""
    # What installs everlong may link its files.
    shipped = folder in _shipped_folders()
    return _core.read_file(str(folder), name, _MOST_BYTES.get(name, _MOST_TENSOR_BYTES), may_have_other_names=shipped)


def _parsed(text: bytes) -> dict[str, Any]:
    """Return JSON whose numbers are finite."""

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{text} is no number of a pack")
        return value

    listing: dict[str, Any] = json.loads(text, parse_constant=number, parse_float=number)
    return listing


def _require_types(listing: dict[str, Any]) -> None:
    for of, names, kind in (
        (listing, ("model", "model_name"), str),
        (listing, ("parts",), dict),
        *((values, ("settings", "made"), dict) for values in listing["parts"].values()),
    ):
        for name in names:
            if not isinstance(of[name], kind):
                raise TypeError(f'"{name}" is {type(of[name]).__name__}, expected {kind.__name__}')
