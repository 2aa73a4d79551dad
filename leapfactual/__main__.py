"""Lets ``python -m leapfactual`` do what ``leapfactual`` does."""

from .cli import main

main()
