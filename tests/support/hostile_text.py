"""Text that would drive a terminal, and commands that print it."""

from __future__ import annotations

from typer.testing import CliRunner

from everlong.cli.app import app

ESCAPES = "\x1b[31m\x9b2J\x1b]0;owned\x07\u202e[red]\u2066"

FORBIDDEN = "\x1b\x9b\x07\u202e\u2066"


def require_harmless(printed: str) -> None:
    assert not set(FORBIDDEN) & set(printed), ascii(printed)


def run(*arguments: object, typed: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), input=typed)
    assert done.exit_code == code, (done.output, done.exception)
    require_harmless(done.stdout)
    require_harmless(done.stderr)
    return done.stdout + done.stderr
