"""The command line."""

from noisewise.cli.commands import app, main

__all__ = ["app", "main"]
