"""`everlong serve | mcp | key`: memories for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong.cli.app import DEFAULT_MODEL, Model, app, require_exists, startup_status
from everlong.cli.options import ModelOptions, grouped
from everlong.text.terminal import print_escaped

if TYPE_CHECKING:
    from everlong.serve.loaded_model import LoadedModel

Memories = Annotated[Path, typer.Option("--memories", help="Folder of the memories, a folder each; made if missing.")]
Bytes = Annotated[int | None, typer.Option(help="RAM of all open memories; by default half of what is free.")]


@app.command()
@grouped
def serve(
    *,
    memories: Memories,
    model: Model = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's need --keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8321,
    keys: Annotated[Path | None, typer.Option(help="File of API keys; `everlong key` adds one.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which it is reached, with the port that a browser shows; may be given several times."
        ),
    ] = None,
    open_memories: Annotated[int, typer.Option(help="Most memories that are open at once.", min=1)] = 8,
    host_bytes: Bytes = None,
    upload_bytes: Annotated[int, typer.Option(help="Most bytes of a file that is sent.", min=1)] = 1 << 30,
    loading: ModelOptions,
) -> None:
    """Serve memories to OpenAI's clients, to MCP clients and to a browser.

    The API is below http://HOST:PORT/v1, MCP at /mcp, and a page at /. Needs the extra `serve`.
    """
    from everlong.serve.logs import log_as_json
    from everlong.serve.server import is_loopback
    from everlong.serve.server import serve as serve_at
    from everlong.serve.service import Service
    from everlong.service_data.keys import load_keys
    from everlong.service_data.limits import Limits

    if keys is None and not is_loopback(host):
        raise ValueError(f"--host {host} is reached from other machines: give --keys FILE, which `everlong key` makes")
    if keys is not None:
        require_exists(keys, folder=False)
    known = None if keys is None else load_keys(keys)
    startup_status(model, quiet=False)
    limits = Limits(open_memories=open_memories, host_bytes=host_bytes, upload_bytes=upload_bytes)
    service = Service(_loaded(model, loading), memories, known, limits, _encoder())
    log_as_json()
    serve_at(service, host, port, tuple(allow_host or ()))


@app.command()
@grouped
def mcp(
    *,
    memories: Memories,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Model to remember and ask with; by default none is loaded.")
    ] = "",
    words: Annotated[
        str, typer.Option(help="Model of which the tokenizer is taken where none is loaded; it read the memories.")
    ] = DEFAULT_MODEL,
    read_only: Annotated[bool, typer.Option("--read-only", help="Neither remember nor forget.")] = False,
    loading: ModelOptions,
) -> None:
    """Serve memories to one MCP client, by standard input and output.

    Without a model it lists, finds and forgets; it finds by words and the encoder. Needs the extra `serve`.
    """
    from everlong.serve.mcp_stdio import serve_stdio

    loaded = _loaded(model, loading) if model else None
    serve_stdio(memories, loaded, None if loaded else _tokenizer(words), _encoder(), read_only=read_only)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whose key it is, as logs name it.")],
    keys: Annotated[Path, typer.Option(help="File of API keys, which is made if it is missing.")],
    memory: Annotated[
        list[str] | None, typer.Option(help="A memory that it may see; may be given several times; by default all.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="It may not write, forget or remove.")] = False,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most tokens read and generated in a minute.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Most bytes on disk of what it wrote.")] = None,
    keep_days: Annotated[float | None, typer.Option(help="What it wrote is forgotten after so many days.")] = None,
) -> None:
    """Make an API key for `everlong serve`, and print it. The file has its hash alone."""
    from everlong.service_data.keys import add_key

    may: dict[str, Any] = {
        "memories": memory or ["*"],
        "write": not read_only,
        "tokens_per_minute": tokens_per_minute,
        "max_bytes": max_bytes,
        "keep_seconds": None if keep_days is None else keep_days * 86400,
    }
    print_escaped(add_key(keys, name, **may))


def _loaded(model: str, loading: ModelOptions) -> LoadedModel:
    from everlong.serve.loaded_model import LoadedModel

    if not loading.settings:
        return LoadedModel(model_name(model), *loading.load(model))
    (network, tokenizer), config = loading.load_configured(model)
    return LoadedModel(model_name(model), network, tokenizer, config)


def model_name(model: str) -> str:
    """Return the name under which a model is listed: of a path its last part."""
    return Path(model).name if "/" in model else model


def _tokenizer(model: str) -> Any:
    from everlong.models import load

    return load(model)[1]


def _encoder() -> Any:
    """Return the default encoder, where it is installed."""
    from everlong.retrieval.embedding import EncoderNotFoundError, load_encoder

    try:
        return load_encoder()
    except EncoderNotFoundError:
        return None
