"""What is said where a framework is not installed."""

from __future__ import annotations


def missing(error: ImportError, extra: str) -> ImportError:
    """Return an ImportError that says what to install."""
    named = (error.name or "").partition(".")[0]
    return ImportError(
        f"everlong.integrations.{extra} needs the package {named or extra}: pip install 'everlong[{extra}]'", name=named
    )
