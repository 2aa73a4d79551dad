"""Demonstrations that run on what the package ships or fetches."""
