"""The page at `/`: files that are sent as they are. What a memory holds gets into it as text alone."""

from __future__ import annotations

import functools
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from everlong.service_data.errors import ApiError

_FILES = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, no frame around it, and no text that becomes HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


async def web_page(request: Request) -> Response:
    """Return a file of the page."""
    name = request.path_params.get("file", "index.html")
    body = _files().get(name)
    if body is None:
        raise ApiError(404, f"the page has no file {name[:80]!r}", "not_found")
    return Response(body, media_type=_KINDS[Path(name).suffix], headers={"content-security-policy": POLICY})


@functools.cache
def _files() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in _FILES.iterdir() if file.suffix in _KINDS}
