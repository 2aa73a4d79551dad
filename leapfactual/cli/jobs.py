"""From a folder of pictures to a page or to more pictures: fit, explain, evaluate, augment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape

from .. import masks
from ..bundle import Bundle
from ..classifiers import open_classifier, undo_stretch
from ..data import Images, Table, open_data
from ..errors import InputError
from ..imaging import paste
from ..jobs import explain as explaining
from ..jobs.labels import Votes, read_votes
from ..leaps import Stage, describe, parse
from ..solvers import Solver
from ..types import Classifier
from .classifier_cache import recall, remember
from .options import Config, Device, Json, Quiet, Seed, check_device, console, print_json, talk

Pictures = Annotated[
    list[Path],
    typer.Argument(
        help="A folder of class folders, a flat folder, a zip of either, files, an .npz or HDF5 "
        "file, or a .csv table.",
    ),
]
Where = Annotated[Path, typer.Argument(help="The folder of the bundle.")]
Asked = Annotated[
    str | None,
    typer.Option(
        "--classifier",
        help="The classifier, where `fit` did not note it: file.py:name, module:name, file.onnx.",
    ),
]
Oracle = Annotated[
    str | None, typer.Option(help="A second, independent classifier, named like the first.")
]
OutputType = Annotated[
    str | None,
    typer.Option(
        help="What the classifier answers with, if a look does not tell: labels, names, "
        "probabilities, logits."
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(help="The exact plan instead, such as 'blend(15, 0.1), inject(5, 0, 0.1)'."),
]
Reliability = Annotated[
    float | None,
    typer.Option(
        help="From 0, just across the boundary, to 1, as typical as the class's own images.",
        min=0.0,
        max=1.0,
    ),
]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="The cheapest plan that is no worse than the paper's reliable."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Explain a classifier that the bundle does not recognise.")
]


def fit(
    images: Pictures,
    out: Annotated[Path, typer.Option("--out", help="The bundle's folder.", file_okay=False)],
    classifier: Annotated[
        str | None,
        typer.Option(
            help="What to explain: file.py:name, module:name or file.onnx. A torch module, a "
            "scikit-learn estimator, or a function of images that gives labels, names, "
            "probabilities or logits."
        ),
    ] = None,
    votes: Annotated[
        Path | None,
        typer.Option(
            help="Labels that people gave, instead of a classifier: a CSV file with the columns "
            "image and label, and maybe annotator. For `leapfactual people`.",
            dir_okay=False,
        ),
    ] = None,
    oracle: Oracle = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="What the classes are called, with commas, in the order of the labels; the "
            "folders' names when not given."
        ),
    ] = None,
    output_type: OutputType = None,
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width to resize images to.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 for grey, 3 for colour; what the first image has.")
    ] = None,
    stretch: Annotated[
        str,
        typer.Option(
            help="Lift what is faint before the generator sees it: none, sqrt, asinh, log; auto "
            "takes sqrt for images almost all black. The classifier gets them as they are."
        ),
    ] = "auto",
    generator: Annotated[str, typer.Option(help="auto, vae or wae.")] = "auto",
    features: Annotated[
        int | None, typer.Option(help="The number of latent features.", min=1)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Of the generator; chosen by the data.", min=1)
    ] = None,
    flow_epochs: Annotated[
        int | None, typer.Option(help="Of the flow; chosen by the data.", min=1)
    ] = None,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Augment with rotations and reflections: images that have no up."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Go on although the classifier does not recognise reconstructions."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a bundle that is there.")] = False,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Train a generator and a flow for your images and your classifier, and choose a plan.

    Looks at the data first and says what it sees; stops with advice when the classifier does not
    recognise reconstructions; chooses step sizes and numbers of leaps on images held out. An
    interrupted fit goes on when the same command is given again.

    Example: leapfactual fit photos/ --classifier my_models.py:predict --out my-bundle

    With a table: leapfactual fit wine.csv --classifier my_models.py:forest --out wine-bundle

    With people's labels: leapfactual fit photos/ --votes labels.csv --out our-bundle
    """
    from ..jobs.fit import Recipe, choose_stretch, fit_bundle

    if (classifier is None) == (votes is None):
        raise InputError(
            "say whose judgement to explain: --classifier NAME, or --votes FILE.csv for people's."
        )
    check_device(device)
    with talk("looking at the data", quiet=quiet or as_json) as say:
        found = _opened(images, size, channels)
        named = [name.strip() for name in classes.split(",")] if classes else list(found.classes)
        example = found[list(range(min(8, len(found))))].to(device)
        asked: Classifier | Votes
        if votes is not None:
            asked = read_votes(votes, found, named or None)
            named = list(asked.classes)
        else:
            asked = open_classifier(str(classifier), example, named, output_type=output_type)
            named = _names(asked, example, named)
        second = open_classifier(oracle, example, named) if oracle else None
        if stretch == "auto":
            stretch = choose_stretch(found)
            if stretch != "none":
                say.tell(
                    "The images are almost all black, so the generator sees them stretched "
                    f"({stretch}); the classifier gets them as they are. See --stretch."
                )
        if isinstance(found, Images):
            found = found.stretched(stretch)
            if not isinstance(asked, Votes):
                asked = undo_stretch(asked, stretch)
            second = None if second is None else undo_stretch(second, stretch)
        fitted = fit_bundle(
            found,
            asked,
            out,
            classes=named,
            recipe=Recipe(generator, features, epochs, flow_epochs, rotate, seed),
            oracle=second,
            named=classifier or f"people, {asked!r}",
            force=force,
            overwrite=overwrite,
            device=device,
            tell=say.tell,
            progress=say.progress,
        )
    if classifier is not None:
        remember(out, classifier)
    front = [
        {"reliability": r.reliability, "plan": describe(r.plan), **r.numbers}
        for r in fitted.search.front
    ]
    if as_json:
        print_json(
            {
                "bundle": str(out),
                "seen": fitted.seen,
                "agreement": fitted.agreement.record(),
                "why": fitted.search.why,
                "front": front,
                "paper": [{"plan": describe(r.plan), **r.numbers} for r in fitted.search.paper],
                "seconds": fitted.seconds,
            }
        )
    elif not quiet:
        _show_front(front, fitted.search.paper)
        target = named[0] if len(named[0].split()) == 1 else f"'{named[0]}'"
        console.print(f"\nWrote the bundle to [bold]{escape(str(out))}[/]. Go on with\n")
        given = " ".join(str(path) for path in images[:1])
        console.print(
            f"  leapfactual explain {out} {given} --target {target} --reliable --out report"
            if votes is None
            else f"  leapfactual people create {out} {given} --target {target} --question '…'",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def explain(
    bundle: Where,
    images: Pictures,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)],
    target: Annotated[str | None, typer.Option(help="The class to reach, by its name.")] = None,
    all_targets: Annotated[
        bool, typer.Option("--all-targets", help="Every class but the image's own.")
    ] = False,
    targets: Annotated[
        Path | None,
        typer.Option(help="A CSV file with the columns image and target.", dir_okay=False),
    ] = None,
    reliable: Annotated[
        bool, typer.Option("--reliable", help="Make reliable counterfactuals beside the nearest.")
    ] = False,
    reliability: Reliability = None,
    fast: Fast = False,
    plan: Plan = None,
    classifier: Asked = None,
    output_type: OutputType = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            help="A grey picture, white where images may change, black where they must stay.",
            dir_okay=False,
        ),
    ] = None,
    alternatives: Annotated[
        int, typer.Option(help="How many different counterfactuals to make of each image.", min=1)
    ] = 1,
    shown: Annotated[
        int, typer.Option("--page", help="How many counterfactuals the page shows.", min=1)
    ] = 100,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Counterfactuals",
    force: Force = False,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Make counterfactuals of images, with a page to look at.

    Writes index.html, which opens in any browser without a network, pictures, animations and
    tables for other programs. An interrupted run goes on when the same command is given again.

    Example: leapfactual explain my-bundle photos/ --target cat --reliable --out report

    Several: leapfactual explain my-bundle a.png b.png --all-targets --out report

    Four of each: leapfactual explain my-bundle photos/ --target cat --alternatives 4 --out report

    Only there: leapfactual explain my-bundle photos/ --target cat --mask ears.png --out report
    """
    with talk("opening", quiet=quiet or as_json) as say:
        loaded, asked, found = _ready(bundle, images, classifier, output_type, device)
        where = None if mask is None else masks.fit_mask(masks.read(mask), loaded.probes)
        pairs = _pairs(loaded, asked, found, target, all_targets, targets, where)
        chosen, solver = _plan(loaded, plan, reliability, fast)
        further = _plan(loaded, None, 1.0, False)[0] if reliable else None
        job = explaining.Job(
            loaded,
            asked,
            found,
            pairs,
            chosen,
            further,
            shown,
            title,
            force,
            solver,
            mask=where,
            alternatives=alternatives,
            seed=seed,
        )
        summary = explaining.explain_all(job, out, say.progress)
        _left_out(found, say.tell)
    if as_json:
        print_json({**summary, "page": str(out / "index.html")})
    elif not quiet:
        for kind in ("counterfactual", "reliable"):
            if kind in summary:
                counts = ", ".join(f"{n} {name}" for name, n in summary[kind]["status"].items())
                console.print(f"{kind}: {counts}", highlight=False)
        console.print(f"\nOpen [bold]{escape(str(out / 'index.html'))}[/] in a browser.")


def evaluate(
    bundle: Where,
    images: Pictures,
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write to.", file_okay=False)
    ] = Path("evaluation"),
    target: Annotated[
        str | None, typer.Option(help="One class to reach; one drawn for each when not given.")
    ] = None,
    all_targets: Annotated[
        bool, typer.Option("--all-targets", help="Every class but the image's own.")
    ] = False,
    reliable: Annotated[
        bool, typer.Option("--reliable", help="The reliable plan: the same as --reliability 1.")
    ] = False,
    reliability: Reliability = None,
    fast: Fast = False,
    plan: Plan = None,
    oracle: Oracle = None,
    classifier: Asked = None,
    output_type: OutputType = None,
    force: Force = False,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Measure a bundle on images: each metric with its error, and each pair of classes.

    Writes evaluation.json and evaluation.md. An interrupted run goes on when the same command is
    given again.

    Example: leapfactual evaluate my-bundle photos/ --reliable --oracle my_models.py:strong
    """
    from ..jobs.evaluate import evaluate_all, random_pairs

    with talk("opening", quiet=quiet or as_json) as say:
        loaded, asked, found = _ready(bundle, images, classifier, output_type, device)
        second = _oracle(oracle, loaded, found) if oracle else None
        if target is None and not all_targets:
            pairs = random_pairs(_sources(loaded, asked, found), len(loaded.classes), seed)
        else:
            pairs = _pairs(loaded, asked, found, target, all_targets, None)
        chosen, solver = _plan(loaded, plan, 1.0 if reliable else reliability, fast)
        job = explaining.Job(loaded, asked, found, pairs, chosen, force=force, solver=solver)
        result = evaluate_all(job, out, oracle=second, seed=seed, progress=say.progress)
        _left_out(found, say.tell)
    if as_json:
        print_json(result.record())
    elif not quiet:
        console.print(result.markdown(), markup=False, highlight=False, soft_wrap=True)
        console.print(f"\nWrote evaluation.json and evaluation.md to [bold]{escape(str(out))}[/].")


def augment(
    bundle: Where,
    images: Pictures,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)],
    to: Annotated[
        str | None,
        typer.Option(help="The classes to make, with commas; every other class when not given."),
    ] = None,
    rare: Annotated[
        bool, typer.Option("--rare", help="Only classes with fewer images than an equal share.")
    ] = False,
    share: Annotated[
        float, typer.Option(help="The share of all counterfactuals to make, drawn at random.")
    ] = 1.0,
    valid: Annotated[
        bool, typer.Option(help="Keep only what the classifier gives to the target class.")
    ] = True,
    typical: Annotated[
        float,
        typer.Option(help="Keep only what is at least that typical, in percent.", min=0, max=100),
    ] = 0.0,
    oracles: Annotated[
        list[str] | None,
        typer.Option(
            "--oracle", help="Keep only what this classifier agrees with; may be given repeatedly."
        ),
    ] = None,
    reliability: Reliability = None,
    fast: Fast = False,
    plan: Plan = None,
    classifier: Asked = None,
    output_type: OutputType = None,
    force: Force = False,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Make training data: reliable counterfactuals, in a folder for each class.

    Writes pictures, manifest.csv, with a line for each, kept or not, and summary.json. An
    interrupted run goes on when the same command is given again.

    Example: leapfactual augment my-bundle photos/ --typical 20 --out more-photos

    Rare classes only: leapfactual augment my-bundle photos/ --rare --out more-photos
    """
    from ..jobs.augment import Filters, augment_all, chosen_pairs, rare_classes

    if to is not None and rare:
        raise InputError("give --to or --rare, not both.")
    with talk("opening", quiet=quiet or as_json) as say:
        loaded, asked, found = _ready(bundle, images, classifier, output_type, device)
        others = [_oracle(oracle, loaded, found) for oracle in oracles or []]
        sources = _sources(loaded, asked, found)
        targets = list(range(len(loaded.classes)))
        if to is not None:
            named = [name.strip() for name in to.split(",")]
            targets = [explaining.target_named(name, loaded.classes) for name in named]
        elif rare:
            targets = rare_classes(sources, len(loaded.classes))
            say.tell(f"Rare are {', '.join(loaded.classes[k] for k in targets)}.")
        pairs = chosen_pairs(sources, targets, share=share, seed=seed)
        if plan is None and reliability is None and not fast:
            reliability = 1.0 if loaded.front else None
        chosen, solver = _plan(loaded, plan, reliability, fast)
        job = explaining.Job(loaded, asked, found, pairs, chosen, force=force, solver=solver)
        summary = augment_all(job, out, Filters(valid, typical, others), say.progress)
        _left_out(found, say.tell)
    if as_json:
        print_json(summary)
    elif not quiet:
        for name, count in summary["kept"].items():
            console.print(f"{escape(name)}: {count} of {summary['made'][name]}", highlight=False)
        for why, count in summary["left out"].items():
            console.print(f"left out, {why}: {count}", highlight=False)
        console.print(f"\nWrote the pictures and manifest.csv to [bold]{escape(str(out))}[/].")


def _opened(
    images: list[Path], size: tuple[int, int] | None, channels: int | None
) -> Images | Table:
    if len(images) == 1:
        return open_data(images[0], size=size, channels=channels)
    folders = [path for path in images if path.is_dir()]
    if folders:
        raise InputError(
            f"{folders[0]} is a folder. Give one folder, or files: not several folders."
        )
    return open_data(images, size=size, channels=channels)


def _ready(
    folder: Path, images: list[Path], spec: str | None, output_type: str | None, device: str
) -> tuple[Bundle, Classifier, Images | Table]:
    """Opens bundle, classifier and images, and sees that they fit."""
    check_device(device)
    bundle = Bundle.load(folder).to(device)
    shape = tuple(bundle.probes.shape[1:])
    where = None
    if spec is None:
        spec, where = recall(folder, bundle.classifier_name)
    if len(shape) == 3:
        found = _opened(images, (shape[1], shape[2]), shape[0])
        if isinstance(found, Table):
            size = " × ".join(map(str, shape))
            raise InputError(f"this bundle explains images of {size}; {images[0]} is a table.")
    else:
        found = _opened(images, None, None)
        columns = bundle.training.get("columns")
        if not isinstance(found, Table) or (columns and list(found.columns) != columns):
            raise InputError(
                f"this bundle explains a table with the columns {columns}; {images[0]} has "
                f"{list(found.columns) if isinstance(found, Table) else 'images'}."
            )
    stretch = str(bundle.training.get("stretch", "none"))
    if isinstance(found, Images):
        found = found.stretched(stretch)
    asked = open_classifier(
        spec, bundle.probes[:8].to(device), bundle.classes, output_type=output_type, folder=where
    )
    return bundle, undo_stretch(asked, stretch), found


def _names(classifier: Classifier, example: torch.Tensor, named: list[str]) -> list[str]:
    """Returns the names of the classes that a classifier tells apart."""
    count = classifier(example).shape[1]
    if not named:
        return [str(k) for k in range(count)]
    if len(named) != count:
        raise InputError(
            f"the classifier tells {count} classes apart, but there are {len(named)} names: "
            f"{', '.join(named[:8])}. Name them with --classes, in the order of its answers."
        )
    return named


def _plan(
    bundle: Bundle, plan: str | None, reliability: float | None, fast: bool
) -> tuple[Sequence[Stage], Solver | None]:
    """Returns the plan that is asked for, and how it integrates where that is not as usual."""
    if (plan is not None) + (reliability is not None) + fast > 1:
        raise InputError("give --plan, --reliability or --fast: one of them.")
    if plan is not None:
        return parse(plan), None
    if not fast:
        return (
            bundle.plan if reliability is None else bundle.operating_point(reliability).plan
        ), None
    if bundle.fast is None:
        raise InputError(
            "this bundle has no fast plan: none that was tried came up to the paper's. Leave "
            "--fast out, or give a --plan."
        )
    return bundle.fast.plan, bundle.fast.solver


@torch.no_grad()
def _sources(
    bundle: Bundle,
    classifier: Classifier,
    images: Images | Table,
    mask: torch.Tensor | None = None,
) -> list[int]:
    """Returns what the classifier says of each image's reconstruction, in a mask if given."""
    found: list[int] = []
    for x in images.batches(256):
        x = x.to(bundle.device)
        back = bundle.generator.decode(bundle.generator.encode(x))
        back = back if mask is None else paste(back, x, mask)
        found += classifier(back).argmax(1).tolist()
    return found


def _pairs(
    bundle: Bundle,
    classifier: Classifier,
    images: Images | Table,
    target: str | None,
    all_targets: bool,
    targets: Path | None,
    mask: torch.Tensor | None = None,
) -> list[tuple[int, int]]:
    if sum((target is not None, all_targets, targets is not None)) != 1:
        raise InputError(
            "say what the images are to become, in one way: --target CLASS, --all-targets, or "
            f"--targets FILE.csv. The classes are {', '.join(bundle.classes)}."
        )
    if target is not None:
        wanted = explaining.target_named(target, bundle.classes)
        return [(row, wanted) for row in range(len(images))]
    if targets is not None:
        return explaining.listed_pairs(targets, images, bundle.classes)
    return explaining.all_pairs(_sources(bundle, classifier, images, mask), len(bundle.classes))


def _oracle(spec: str, bundle: Bundle, images: Images | Table) -> Classifier:
    """Opens a second classifier, which sees images as the first one does."""
    example = images[list(range(min(8, len(images))))].to(bundle.device)
    stretch = str(bundle.training.get("stretch", "none"))
    return undo_stretch(open_classifier(spec, example, bundle.classes), stretch)


def _left_out(images: Images | Table, tell: Any) -> None:  # noqa: ANN401 - a function of a sentence
    for broken in images.broken[:5]:
        tell(f"left out {broken.name}: {broken.reason}")
    if len(images.broken) > 5:
        tell(f"and {len(images.broken) - 5} more")


def _show_front(front: list[dict[str, Any]], paper: Any) -> None:  # noqa: ANN401 - rated plans
    from rich.table import Table as Printed

    table = Printed(title="The plans, on images held out", title_justify="left")
    names = [name for name in front[0] if name not in ("reliability", "plan")]
    table.add_column("reliability", justify="right")
    table.add_column("plan")
    for name in names:
        table.add_column(name, justify="right")
    for rated in front:
        table.add_row(
            f"{rated['reliability']:.2f}", rated["plan"], *(f"{rated[name]:.4g}" for name in names)
        )
    for rated in paper:
        values = (f"{rated.numbers[name]:.4g}" for name in names)
        table.add_row("paper", describe(rated.plan), *values)
    console.print(table)
