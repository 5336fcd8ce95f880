"""`python -m everlong.integrations.lm_eval_cli`: lm-eval's own command line, which knows the model `everlong`.

Releases of lm-eval that look for entry points know it without this.
"""

from __future__ import annotations

from everlong.integrations.extras import missing

try:
    from lm_eval.__main__ import cli_evaluate
except ImportError as error:
    raise missing(error, "lm_eval") from error


def main() -> None:
    """Register the model, and do what the command line says."""
    import everlong.integrations.lm_eval  # noqa: F401  # registers it

    cli_evaluate()


if __name__ == "__main__":
    main()
