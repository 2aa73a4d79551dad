"""Writes the help of every command as Markdown, for the reference."""

import typer
from typer.testing import CliRunner

from leapfactual.cli import app as application


def commands(app: typer.Typer = application) -> list[list[str]]:
    """Returns the words of every command and group below ``app``."""
    words = []
    for command in app.registered_commands:
        assert command.callback is not None
        words.append([command.name or command.callback.__name__])
    for group in app.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        words.append([group.name])
        words += [[group.name, *inner] for inner in commands(group.typer_instance)]
    return words


def markdown() -> str:
    """Returns the help of every command."""
    parts = []
    for words in ([], *commands()):
        text = CliRunner().invoke(application, [*words, "--help"], prog_name="leapfactual").output
        parts.append(f"## `{' '.join(['leapfactual', *words])}`\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)
