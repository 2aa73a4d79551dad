"""Runs ``python -m studies``."""

from .cli import main

main()
