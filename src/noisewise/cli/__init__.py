"""The command line: one file for each family of commands."""

from noisewise.cli.app import app, main

__all__ = ["app", "main"]
