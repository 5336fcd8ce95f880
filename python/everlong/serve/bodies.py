"""Bodies of requests: JSON within limits, and its fields by name and type."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from everlong.service_data.errors import ApiError

_AT_ONCE = 1 << 16  # bytes of a body that is parsed where the requests are taken; more of them would hold the others up
_LARGEST = (1 << 63) - 1
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


async def json_body(request: Request, depth: int) -> dict[str, Any]:
    """Return a request's JSON object. ApiError for anything else, and for one nested deeper than `depth`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page of another site can send no JSON without being asked for leave
        raise ApiError(415, f"the body is {kind or 'of no type'}: expected application/json", "unsupported_media_type")
    body = await request.body()
    if len(body) <= _AT_ONCE:
        return parsed_object(body, depth)
    return await run_in_threadpool(parsed_object, body, depth)


def parsed_object(body: bytes, depth: int) -> dict[str, Any]:
    """Return the JSON object in a body. ApiError where it is none, or too deep.

    Whatever is in it can be written as UTF-8, its numbers are finite, and no name stands twice in an object.
    """
    if depth_of(body) > depth:
        raise ApiError(400, f"the body's JSON is nested deeper than {depth}", "json_too_deep")
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_named_once)
        if b"\\u" in body:  # only that may spell half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise ApiError(400, "the body is no UTF-8, or has half a surrogate pair", "invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body is no JSON object", "invalid_json")
    return value


def depth_of(text: bytes) -> int:
    """Return how deep brackets are nested, outside of strings. Nothing is parsed for it."""
    deep = deepest = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        first = text[found.start()]
        if first in b"[{":
            deep += 1
            deepest = max(deepest, deep)
        elif first in b"]}":
            deep -= 1
    return deepest


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return named


def _is(value: Any, allowed: Any) -> bool:
    """Return whether they are equal as JSON: true is not 1."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)


class Fields:
    """The fields of an object, taken one after the other. `end` refuses what nobody took."""

    def __init__(self, body: Mapping[str, Any], within: str = "") -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._within = within

    def name(self, field: str) -> str:
        return f"{self._within}{field}"

    def wrong(self, field: str, expected: str) -> ApiError:
        """Return the refusal of a field."""
        name = self.name(field)
        return ApiError(400, f"{name}: expected {expected}", "invalid_value", param=name)

    def take(self, field: str) -> Any:
        """Return a field as it is; None where it is not given."""
        return self._left.pop(field, None)

    def text(self, field: str, default: str | None = None) -> str | None:
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(field, "text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(field, "text without half a surrogate pair") from None
        return value

    def needed(self, field: str) -> str:
        """Return a text that must be there, and not be empty."""
        value = self.text(field)
        if value is None or not value.strip():
            raise ApiError(400, f"{self.name(field)} is missing", "missing_required_parameter", param=self.name(field))
        return value

    def number(self, field: str, least: float, most: float) -> float | None:
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, "a number")
        if not least <= value <= most:  # NaN is not, and a whole number may be larger than any float
            raise self.wrong(field, f"a number from {least:g} to {most:g}")
        return float(value)

    def whole(self, field: str, least: int, most: int) -> int | None:
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(field, "a whole number")
        if not least <= value <= most:
            raise self.wrong(field, f"a whole number from {least} to {most}")
        return value

    def tokens(self, field: str, most: int) -> int | None:
        """Return the most tokens of an answer; None where the caller sets no limit, which several clients say by -1.

        Who asks for more than `most` gets that, and is told that the length ended the answer.
        """
        value = self.whole(field, -1, _LARGEST)
        if value == 0:
            raise self.wrong(field, "a whole number above 0, or -1 for no limit of yours")
        return None if value is None or value == -1 else min(value, most)

    def flag(self, field: str, default: bool) -> bool:
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def texts(self, field: str, most: int, *, empty: bool = False) -> tuple[str, ...]:
        """Return one text, or several, as several; () where the field is not given.

        An empty list is another thing: of names it chooses nothing. It is refused, unless it may be `empty`. Then empty
        texts are left out of it, too.
        """
        value = self.take(field)
        if value is None:
            return ()
        several = [value] if isinstance(value, str) else value
        if empty and isinstance(several, list):
            several = [one for one in several if one != ""]
        if not isinstance(several, list) or not all(isinstance(one, str) and one for one in several):
            raise self.wrong(field, "text, or a list of texts")
        if not several and not empty:
            raise self.wrong(field, "at least one text: an empty list chooses nothing; without the field it is all")
        if len(several) > most:
            raise self.wrong(field, f"at most {most}")
        return tuple(several)

    def inner(self, field: str) -> Fields:
        """Return the fields of an object within."""
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return Fields(value or {}, f"{self.name(field)}.")

    def only(self, field: str, allowed: Collection[Any], why: str) -> None:
        """Refuse a field that asks for what is not supported; what asks for nothing passes."""
        value = self.take(field)
        if value is not None and not any(_is(value, one) for one in allowed):
            name = self.name(field)
            raise ApiError(400, f"{name} is not supported: {why}", "unsupported_parameter", param=name)

    def end(self) -> None:
        """Refuse what is left."""
        for field in self._left:
            name = self.name(field)
            raise ApiError(400, f"{name} is not supported here", "unsupported_parameter", param=name)

    def left(self) -> dict[str, Any]:
        """Take all that nobody took, as it is."""
        left, self._left = self._left, {}
        return left
