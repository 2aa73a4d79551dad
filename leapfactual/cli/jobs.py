"""The commands fit, explain, evaluate and augment: parse, call a job, print."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..leaps import describe
from .classifier_cache import recall, remember
from .options import (
    AllTargets,
    BundleFolder,
    ClassifierName,
    Config,
    Debug,
    Device,
    Fast,
    Force,
    ImagePaths,
    Json,
    KeepPixels,
    OracleName,
    Out,
    OutputType,
    PlanText,
    Quiet,
    Reliability,
    Reporter,
    Seed,
    check_device,
    console,
    print_json,
    resumable,
)

if TYPE_CHECKING:
    from ..jobs.fit import Fitted
    from ..jobs.job import Inputs

MAX_BROKEN_SHOWN = 5


def fit(
    images: ImagePaths,
    *,
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
    output_type: OutputType = None,
    oracle: OracleName = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The names of the classes, with commas, in the order of the labels. Defaults to "
            "the folders' names."
        ),
    ] = None,
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width to resize images to.")
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(help="1 for grey, 3 for colour. Defaults to what the first image has."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="The column of a table that names the class of each row. Defaults to one called "
            "label, class, target or y."
        ),
    ] = None,
    stretch: Annotated[
        str,
        typer.Option(
            help="Lift what is faint before the generator sees it: none, sqrt, asinh, log; auto "
            "takes sqrt for images almost all black. The classifier gets them as they are."
        ),
    ] = "auto",
    generator: Annotated[
        str, typer.Option(help="auto, vae, wae or, for photographs, spatial.")
    ] = "auto",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="The time for everything. Defaults, for photographs, to 8 on a GPU and 45 on a "
            "CPU; for others to what they need.",
        ),
    ] = None,
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
            "--force", help="Go on although the classifier does not recognize reconstructions."
        ),
    ] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option("--out", help="The bundle's folder.", file_okay=False)],
    overwrite: Annotated[bool, typer.Option(help="Replace a bundle that is there.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    config: Config = None,
) -> None:
    """Train a generator and a flow for a classifier, choose a plan.

    Summarizes the data first; stops with advice when the classifier does not recognize
    reconstructions; chooses step sizes and numbers of leaps on held-out images. An interrupted fit
    resumes when the same command is given again.

    Example: leapfactual fit photos/ --classifier my_models.py:predict --out my-bundle

    With a table: leapfactual fit wine.csv --classifier my_models.py:forest --out wine-bundle

    With people's labels: leapfactual fit photos/ --votes labels.csv --out our-bundle
    """
    from ..bundle.manifest import PICTURE
    from ..jobs.fit import fit_bundle, work_folder
    from ..jobs.recipe import Recipe
    from ..jobs.subject import open_subject

    check_device(device)

    def note() -> None:
        """Notes which classifier the bundle explains."""
        if classifier is not None:
            try:
                remember(out, classifier)
            except OSError as error:
                reporter.log(f"Name the classifier again next time; it cannot be noted: {error}.")

    with resumable("reading the data", work_folder(out), quiet=quiet or as_json) as reporter:
        subject = open_subject(
            images,
            classifier=classifier,
            votes=votes,
            oracle=oracle,
            classes=_split(classes),
            output_type=output_type,
            size=size,
            channels=channels,
            label=label,
            stretch=stretch,
            device=device,
            log=reporter.log,
            on_image=reporter.on_image,
        )
        fitted = fit_bundle(
            subject.images,
            subject.classifier,
            out,
            classes=subject.classes,
            recipe=Recipe(generator, features, epochs, flow_epochs, rotate, seed, minutes),
            oracle=subject.oracle,
            classifier_name=subject.classifier_name,
            force=force,
            overwrite=overwrite,
            device=device,
            log=reporter.log,
            on_progress=reporter.on_progress,
            on_saved=note,
        )
    if as_json:
        print_json(_fit_json(out, fitted))
    elif not quiet:
        _print_front(fitted)
        name = subject.classes[0]
        target = name if len(name.split()) == 1 else f"'{name}'"
        if fitted.bundle.picture is not None:
            console.print(f"\nWhat the classifier recognizes: {escape(str(out / PICTURE))}")
        console.print(f"\nWrote the bundle to [bold]{escape(str(out))}[/]. Go on with\n")
        console.print(
            f"  leapfactual explain {out} {images[0]} --target {target} --reliable --out report"
            if votes is None
            else f"  leapfactual people create {out} {images[0]} --target {target} --question '…'",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def explain(
    bundle: BundleFolder,
    images: ImagePaths,
    *,
    target: Annotated[str | None, typer.Option(help="The class to reach, by its name.")] = None,
    all_targets: AllTargets = False,
    targets: Annotated[
        Path | None,
        typer.Option(help="A CSV file with the columns image and target.", dir_okay=False),
    ] = None,
    classifier: ClassifierName = None,
    output_type: OutputType = None,
    force: Force = False,
    mask: Annotated[
        Path | None,
        typer.Option(
            help="A grey picture, white where images may change, black where they must stay.",
            dir_okay=False,
        ),
    ] = None,
    reliable: Annotated[
        bool, typer.Option("--reliable", help="Make reliable counterfactuals beside the nearest.")
    ] = False,
    reliability: Reliability = None,
    fast: Fast = False,
    plan: PlanText = None,
    keep_pixels: KeepPixels = None,
    alternatives: Annotated[
        int, typer.Option(help="How many different counterfactuals to make of each image.", min=1)
    ] = 1,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out,
    shown: Annotated[
        int, typer.Option("--page", help="How many counterfactuals the page shows.", min=1)
    ] = 100,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Counterfactuals",
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    config: Config = None,
) -> None:
    """Make counterfactuals of images, with a page to look at.

    Writes index.html, which opens in any browser without a network, pictures, animations and
    tables for other programs. An interrupted run resumes when the same command is given again.

    Example: leapfactual explain my-bundle photos/ --target cat --reliable --out report

    Several: leapfactual explain my-bundle a.png b.png --all-targets --out report

    Four of each: leapfactual explain my-bundle photos/ --target cat --alternatives 4 --out report

    Only there: leapfactual explain my-bundle photos/ --target cat --mask ears.png --out report
    """
    from ..jobs.explain import explain_all
    from ..jobs.pairs import choose_pairs

    with resumable("opening", out, quiet=quiet or as_json) as reporter:
        inputs = _open(bundle, images, classifier, output_type, device, reporter)
        where = None if mask is None else inputs.read_mask(mask)
        pairs = choose_pairs(
            inputs, target=target, all_targets=all_targets, targets=targets, mask=where
        )
        chosen, solver = inputs.bundle.choose_plan(plan=plan, reliability=reliability, fast=fast)
        job = inputs.job(
            pairs,
            chosen,
            solver=solver,
            reliable=inputs.bundle.choose_plan(reliability=1.0)[0] if reliable else None,
            mask=where,
            alternatives=alternatives,
            seed=seed,
            shown=shown,
            title=title,
            force=force,
            keep_pixels=keep_pixels,
        )
        summary = explain_all(job, out, reporter.on_progress, reporter.log)
        _log_broken(inputs, reporter)
    if as_json:
        print_json({**summary, "page": str(out / "index.html")})
    elif not quiet:
        for kind in ("counterfactual", "reliable"):
            if kind in summary:
                counts = ", ".join(f"{n} {name}" for name, n in summary[kind]["status"].items())
                console.print(f"{kind}: {counts}", highlight=False)
        console.print(f"\nOpen [bold]{escape(str(out / 'index.html'))}[/] in a browser.")


def evaluate(
    bundle: BundleFolder,
    images: ImagePaths,
    *,
    target: Annotated[
        str | None,
        typer.Option(help="One class to reach. Defaults to one drawn for each image."),
    ] = None,
    all_targets: AllTargets = False,
    classifier: ClassifierName = None,
    output_type: OutputType = None,
    force: Force = False,
    oracle: OracleName = None,
    reliable: Annotated[
        bool, typer.Option("--reliable", help="The reliable plan: the same as --reliability 1.")
    ] = False,
    reliability: Reliability = None,
    fast: Fast = False,
    plan: PlanText = None,
    keep_pixels: KeepPixels = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("evaluation"),
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    config: Config = None,
) -> None:
    """Measure a bundle on images: each metric, with its error.

    Writes evaluation.json and evaluation.md, with tables for each pair of classes. An interrupted
    run resumes when the same command is given again.

    Example: leapfactual evaluate my-bundle photos/ --reliable --oracle my_models.py:strong
    """
    from ..jobs.evaluate import evaluate_all
    from ..jobs.pairs import choose_pairs, find_sources, random_pairs

    with resumable("opening", out, quiet=quiet or as_json) as reporter:
        inputs = _open(bundle, images, classifier, output_type, device, reporter)
        second = inputs.open_oracle(oracle) if oracle else None
        if target is None and not all_targets:
            pairs = random_pairs(find_sources(inputs), len(inputs.bundle.classes), seed)
        else:
            pairs = choose_pairs(inputs, target=target, all_targets=all_targets)
        chosen, solver = inputs.bundle.choose_plan(
            plan=plan, reliability=1.0 if reliable else reliability, fast=fast
        )
        job = inputs.job(pairs, chosen, solver=solver, force=force, keep_pixels=keep_pixels)
        result = evaluate_all(
            job,
            out,
            oracle=second,
            seed=seed,
            log=reporter.log,
            on_progress=reporter.on_progress,
        )
        _log_broken(inputs, reporter)
    if as_json:
        print_json(result.to_json())
    elif not quiet:
        console.print(result.markdown(), markup=False, highlight=False, soft_wrap=True)
        console.print(f"\nWrote evaluation.json and evaluation.md to [bold]{escape(str(out))}[/].")


def augment(
    bundle: BundleFolder,
    images: ImagePaths,
    *,
    to: Annotated[
        str | None,
        typer.Option(help="The classes to make, with commas. Defaults to every other class."),
    ] = None,
    rare: Annotated[
        bool, typer.Option("--rare", help="Only classes with fewer images than an equal share.")
    ] = False,
    share: Annotated[
        float, typer.Option(help="The share of all counterfactuals to make, drawn at random.")
    ] = 1.0,
    classifier: ClassifierName = None,
    output_type: OutputType = None,
    force: Force = False,
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
    plan: PlanText = None,
    keep_pixels: KeepPixels = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    config: Config = None,
) -> None:
    """Make training data: reliable counterfactuals by class.

    Writes a folder of pictures for each class, manifest.csv, with a line for each, kept or not,
    and summary.json. An interrupted run resumes when the same command is given again.

    Example: leapfactual augment my-bundle photos/ --typical 20 --out more-photos

    Rare classes only: leapfactual augment my-bundle photos/ --rare --out more-photos
    """
    from ..jobs.augment import Filters, augment_all
    from ..jobs.pairs import augmentation_pairs

    with resumable("opening", out, quiet=quiet or as_json) as reporter:
        inputs = _open(bundle, images, classifier, output_type, device, reporter)
        filters = Filters(valid, typical, [inputs.open_oracle(name) for name in oracles or []])
        pairs = augmentation_pairs(
            inputs,
            to=None if to is None else _split(to),
            rare=rare,
            share=share,
            seed=seed,
            log=reporter.log,
        )
        if plan is None and reliability is None and not fast and inputs.bundle.front:
            reliability = 1.0
        chosen, solver = inputs.bundle.choose_plan(plan=plan, reliability=reliability, fast=fast)
        job = inputs.job(pairs, chosen, solver=solver, force=force, keep_pixels=keep_pixels)
        summary = augment_all(job, out, filters, reporter.on_progress, reporter.log)
        _log_broken(inputs, reporter)
    if as_json:
        print_json(summary)
    elif not quiet:
        for name, count in summary["kept"].items():
            console.print(f"{escape(name)}: {count} of {summary['made'][name]}", highlight=False)
        for reason, count in summary["left out"].items():
            console.print(f"left out, {reason}: {count}", highlight=False)
        console.print(f"\nWrote the pictures and manifest.csv to [bold]{escape(str(out))}[/].")


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _open(
    bundle: Path,
    images: list[Path],
    classifier: str | None,
    output_type: str | None,
    device: str,
    reporter: Reporter,
) -> "Inputs":
    """Opens what a job reads; the classifier, where it is not named, as `fit` noted it."""
    from ..jobs.job import open_inputs
    from ..jobs.subject import describe_conversions

    check_device(device)
    folder = None
    if classifier is None:
        classifier, folder = recall(bundle)
    inputs = open_inputs(
        bundle,
        images,
        classifier,
        folder=folder,
        output_type=output_type,
        device=device,
        on_image=reporter.on_image,
    )
    for line in describe_conversions(inputs.images):
        reporter.log(line)
    return inputs


def _log_broken(inputs: "Inputs", reporter: Reporter) -> None:
    broken = inputs.images.broken
    for item in broken[:MAX_BROKEN_SHOWN]:
        reporter.log(f"left out {item}")
    if len(broken) > MAX_BROKEN_SHOWN:
        reporter.log(f"and {len(broken) - MAX_BROKEN_SHOWN} more")


def _fit_json(out: Path, fitted: "Fitted") -> dict[str, Any]:
    return {
        "bundle": str(out),
        "data": fitted.summary,
        "agreement": fitted.agreement.to_json(),
        "why": fitted.search.why,
        "front": [
            {"reliability": r.reliability, "plan": describe(r.plan), **r.numbers}
            for r in fitted.search.front
        ],
        "paper": [{"plan": describe(r.plan), **r.numbers} for r in fitted.search.paper],
        "seconds": fitted.seconds,
    }


def _print_front(fitted: "Fitted") -> None:
    search = fitted.search
    names = list(search.front[0].numbers)
    table = Table(title="The front of plans, on held-out images", title_justify="left")
    table.add_column("", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    labelled = [(f"{rated.reliability:.2f}", rated) for rated in search.front]
    for label, rated in (*labelled, *(("paper", rated) for rated in search.paper)):
        values = (f"{rated.numbers[name]:.4g}" for name in names)
        table.add_row(label, *values)
    console.print(table)
    # A plan for photographs has many stages, too wide for a column.
    for label, rated in labelled:
        console.print(
            f"reliability {label}: {describe(rated.plan)}", highlight=False, soft_wrap=True
        )
