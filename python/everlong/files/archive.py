"""Everything that is a zip or a tar: its members, within limits. Nothing of it is unpacked to disk."""

from __future__ import annotations

import io
import pathlib
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from everlong.files.document import NoTextError, PassedOverError, UnreadableFileError
from everlong.files.encoding import guessed

MOST_BYTES = 256 << 20  # of all members, unpacked
_MOST_MEMBERS = 10_000
_UTF8_NAME = 0x800  # flag of a member whose name is UTF-8
_ENCRYPTED = 0x1
_UNICODE_PATH = 0x7075  # extra field with the name in UTF-8
# What systems write names in that no flag tells of: the one of the standard first.
_NAMES = (
    *("cp437", "cp850", "cp852", "cp866", "cp932", "gb18030", "big5hkscs", "cp949", "cp1252", "cp1251", "cp1250"),
    *("cp737", "cp857", "cp862", "cp1253", "cp1254", "cp1255", "cp1256", "cp874", "euc_jp", "koi8_r"),
)
_NAME_BITS = 15.0  # that a letter of a name may take: names are short, and rare words
_BROKEN_MEMBER = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError, ValueError)

Member = tuple[str, str, bytes | UnreadableFileError]  # name, ending, and the bytes or what is wrong with them


def opened(data: bytes) -> zipfile.ZipFile:
    """Return a zip whose members, unpacked, come to no more than MOST_BYTES. A member gives no more than it says."""
    try:
        found = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise NoTextError(f"is no whole archive: {error}") from None
    listed = found.infolist()
    _require_limits(len(listed), sum(member.file_size for member in listed))
    return found


def _require_limits(count: int, size: int) -> None:
    if count > _MOST_MEMBERS:
        raise UnreadableFileError(f"has {count:,} members; at most {_MOST_MEMBERS:,} are read")
    if size > MOST_BYTES:
        raise UnreadableFileError(f"unpacks to {size:,} bytes; at most {MOST_BYTES:,} are read")


def members(data: bytes) -> Iterator[Member]:
    """Yield the files of a zip, in their order."""
    archive = opened(data)
    listed = [member for member in archive.infolist() if not member.is_dir()]
    for member, name in zip(listed, _names_of([_raw_name(member) for member in listed]), strict=True):
        if _is_of_macos(name):
            continue
        found: bytes | UnreadableFileError
        if member.flag_bits & _ENCRYPTED:
            found = UnreadableFileError("is encrypted: unpack it with its password")
        elif stat.S_ISLNK(member.external_attr >> 16):
            found = UnreadableFileError("is a link")
        else:
            try:
                found = archive.read(member)
            except _BROKEN_MEMBER as error:
                found = UnreadableFileError(f"cannot be unpacked: {error}")
        yield name, _ending(name), found


def members_of_tar(data: bytes) -> Iterator[Member | PassedOverError]:
    """Yield the files of a tar, in their order. What is behind damage is named."""
    listed: list[tarfile.TarInfo] = []
    damage = ""
    try:
        archive = tarfile.TarFile(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape")
        while len(listed) <= _MOST_MEMBERS and (member := archive.next()) is not None:
            listed.append(member)
        if data[archive.offset :].strip(b"\0"):
            damage = "no member begins there"
    except (tarfile.TarError, ValueError, OSError, EOFError, OverflowError) as error:
        damage = str(error)
    if not listed:
        raise NoTextError(f"is no whole archive: {damage or 'it is empty'}")
    _require_limits(len(listed), sum(one.size for one in listed))
    listed = [member for member in listed if not member.isdir()]
    names = _names_of([member.name.encode("utf-8", "surrogateescape") for member in listed])
    for member, name in zip(listed, names, strict=True):
        if _is_of_macos(name):
            continue
        found: bytes | UnreadableFileError
        try:
            file = archive.extractfile(member) if member.isreg() else None
            found = UnreadableFileError("is a link, or no ordinary file") if file is None else file.read()
        except (tarfile.TarError, *_BROKEN_MEMBER) as error:
            found = UnreadableFileError(f"cannot be unpacked: {error}")
        yield name, _ending(name), found
    if damage:
        yield PassedOverError("what is behind the last member", f"cannot be unpacked: {damage}")


def _is_of_macos(name: str) -> bool:
    path = pathlib.PurePosixPath(name)
    return path.name.startswith(("._", ".DS_Store")) or "__MACOSX" in path.parts[:1]


def _ending(name: str) -> str:
    return pathlib.PurePosixPath(name).suffix.lower().removeprefix(".")


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a name, which are UTF-8 where a member says so."""
    if member.flag_bits & _UTF8_NAME:
        return member.filename.encode("utf-8", "surrogateescape")
    raw = member.orig_filename.encode("cp437")
    extra = member.extra
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == _UNICODE_PATH and size > 5 and struct.unpack_from("<xL", extra, 4)[0] == zlib.crc32(raw):
            return extra[9 : 4 + size]
        extra = extra[4 + size :]
    return raw.partition(b"\0")[0]


def _names_of(raw: Sequence[bytes]) -> list[str]:
    """Return names: of UTF-8, or all others in the one encoding that their letters tell."""
    old = [name for name in raw if not _is_utf8(name)]
    encoding = guessed(b"\n".join(old), _NAMES, most_bits=_NAME_BITS)[0] if old else ""
    return [name.decode("utf-8" if _is_utf8(name) else encoding or "cp437", "replace") for name in raw]


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
