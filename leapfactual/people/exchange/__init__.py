"""Votes in and out, as files of other tools."""
