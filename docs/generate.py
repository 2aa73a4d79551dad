"""Writes docs/cli.md and docs/api.md from the code. A test fails when they are stale."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import typer
from typer.testing import CliRunner

import leapfactual as lf
from leapfactual import (
    alternatives,
    bases,
    classifiers,
    cli,
    couplings,
    data,
    errors,
    explanation,
    generators,
    imaging,
    masks,
    metrics,
    report,
    testing,
)
from leapfactual.jobs import consistency, evaluate, explain, fit, plans

DOCS = Path(__file__).parent
MODULES = (
    generators,
    classifiers,
    data,
    metrics,
    bases,
    couplings,
    consistency,
    plans,
    explanation,
    masks,
    alternatives,
    report,
    fit,
    explain,
    evaluate,
    imaging,
    testing,
    errors,
)


def command_line() -> str:
    """Returns the help of every command."""
    parts = ["# Command line\n\nGenerated from `--help`; run `make docs` to renew it.\n"]
    for command in ([], *commands(cli.app)):
        text = CliRunner().invoke(cli.app, [*command, "--help"], prog_name="leapfactual").output
        parts.append(
            f"## `{' '.join(['leapfactual', *command])}`\n\n```text\n{text.strip()}\n```\n"
        )
    return "\n".join(parts)


def commands(app: typer.Typer) -> list[list[str]]:
    """Returns the words of every command and group below ``app``."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        found.append([command.name or command.callback.__name__])
    for group in app.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        found.append([group.name])
        found += [[group.name, *words] for words in commands(group.typer_instance)]
    return found


def api() -> str:
    """Returns the signature and docstring of every public name."""
    parts = ["# API\n\nGenerated from the docstrings; run `make docs` to renew it.\n"]
    parts.append("## `leapfactual`\n")
    parts += [_entry("leapfactual", lf, name) for name in lf.__all__]
    for module in MODULES:
        parts.append(f"## `{module.__name__}`\n\n{_fenced(inspect.getdoc(module) or '')}")
        parts += [_entry(module.__name__, module, name) for name in _public(module)]
    return "\n".join(parts)


def _public(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def _entry(where: str, module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    text = f"### `{where}.{name}`\n\n{_described(name, value)}"
    if inspect.isclass(value):
        for method, function in vars(value).items():
            if not method.startswith("_") and _own(function):
                text += f"\n#### `{name}.{method}`\n\n{_described(method, function)}"
    return text


def _own(function: object) -> bool:
    """Leaves out what only repeats the interface."""
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    documented = inspect.getdoc(function) if inspect.isfunction(function) else None
    return bool(documented) and not str(documented).startswith("See :")


def _described(name: str, value: object) -> str:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    try:
        signature = f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]
        signature = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", signature)
    except (TypeError, ValueError):
        signature = name
    return _fenced(f"{signature}\n\n{inspect.getdoc(value)}")


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def pages() -> dict[Path, str]:
    """Returns what the generated pages should hold."""
    return {DOCS / "cli.md": command_line(), DOCS / "api.md": api()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
