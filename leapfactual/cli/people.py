"""People as the classifier: create a campaign, invite, serve, look, decide."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, MissingExtra
from .options import (
    Device,
    Json,
    Quiet,
    Seed,
    check_device,
    console,
    print_json,
    printable,
    progress_bar,
)

if TYPE_CHECKING:
    from ..people import Database

people = typer.Typer(
    help="People as the classifier: volunteers answer, the leap goes on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

REQUIRED_PACKAGES = ("starlette", "uvicorn", "sqlalchemy", "alembic", "jinja2")
Place = Annotated[
    str,
    typer.Argument(help="The campaign: a SQLite file, or the URL of a PostgreSQL database."),
]
Elsewhere = Annotated[
    Path | None,
    typer.Option("--bundle", help="The bundle's folder, if it has moved.", file_okay=False),
]
Url = Annotated[
    str, typer.Option("--url", help="Where people reach the page, for the links to send.")
]
LEAST = typer.Option(help="How many people must have voted.", min=1)
SHARE = typer.Option(help="Which share of them must agree.")
MOST = typer.Option(help="With how many votes to give up on consensus.", min=1)
METHOD = typer.Option(help="majority, or dawid-skene.")
POSTERIOR = typer.Option(help="Which posterior Dawid–Skene must reach.")
Format = Annotated[str, typer.Option("--format", help="zooniverse, or label-studio.")]
LOCAL = "http://localhost:8000"


def require() -> None:
    """Checks that the packages of the extra are installed."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"campaigns need {', '.join(missing)}. Run `pip install 'leapfactual[people]'`."
        )


@contextmanager
def _open(place: str) -> "Iterator[Database]":
    require()
    from ..people import Database

    db = Database(place)
    try:
        yield db
    finally:
        db.close()


def _base(url: str) -> str:
    """Returns the address of the page, if it is given in full."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"`--url` must begin with http:// or https://, got {url!r}.")
    return url.rstrip("/")


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@people.command()
def create(
    bundle: Annotated[
        Path,
        typer.Argument(help="The folder of the bundle; or digits, for the one that is shipped."),
    ],
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="The pictures: a folder, a zip, or files. With digits, its own."),
    ] = None,
    *,
    question: Annotated[str, typer.Option(help="What people are asked.")],
    out: Annotated[
        str,
        typer.Option("--out", help="A new SQLite file, or the URL of an empty PostgreSQL one."),
    ] = "campaign.db",
    target: Annotated[str | None, typer.Option(help="The class to reach, by its name.")] = None,
    targets: Annotated[
        Path | None,
        typer.Option(help="A CSV file with the columns image and target.", dir_okay=False),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="What the answers are called, with commas; the bundle's names."),
    ] = None,
    name: Annotated[str, typer.Option(help="What the campaign is called.")] = "campaign",
    plan: Annotated[
        str | None, typer.Option(help="The plan, such as 'blend(15, 0.1)'; the bundle's.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="step: one picture a round. batch: all up to the next change at once, to the "
            "same result. bisect: a few of them, if the answer changes but once."
        ),
    ] = "batch",
    max_frames: Annotated[int, typer.Option(help="How many pictures a round has at most.")] = 32,
    least: Annotated[int, LEAST] = 3,
    share: Annotated[float, SHARE] = 2 / 3,
    most: Annotated[int, MOST] = 7,
    method: Annotated[str, METHOD] = "majority",
    posterior: Annotated[float, POSTERIOR] = 0.95,
    gold: Annotated[
        Path | None,
        typer.Option(help="Pictures with known answers, in folders called as the classes."),
    ] = None,
    gold_share: Annotated[
        float, typer.Option(help="Which share of what a person sees is gold.")
    ] = 0.1,
    repeat_share: Annotated[
        float, typer.Option(help="Which share a person has seen before.")
    ] = 0.05,
    lease: Annotated[
        float, typer.Option(help="How many minutes a person has for a picture.")
    ] = 10.0,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Create a campaign. What it asks, and how, is frozen with it.

    Example: leapfactual people create my-bundle photos/ --target cat --question 'What is this?'

    To try it: leapfactual people create digits --target 8 --question 'Which digit is this?'
    """
    require()
    from ..people import CampaignSettings, Rule, create_from_files

    settings = CampaignSettings(
        question=question,
        classes=tuple(part.strip() for part in classes.split(",")) if classes else (),
        plan=plan,
        mode=mode,
        max_frames=max_frames,
        rule=Rule(least, share, most, method, posterior),
        gold_share=gold_share,
        repeat_share=repeat_share,
        lease=60 * lease,
        seed=seed,
        name=name,
    )
    with progress_bar("creating", quiet=quiet or as_json):
        token, count = create_from_files(
            out, bundle, images or [], settings, target=target, targets=targets, gold=gold
        )
    if as_json:
        print_json({"campaign": out, "runs": count, "owner": token})
    else:
        _print(f"Made {out} with {count} pictures. Invite people, then serve:\n")
        _print(f"  leapfactual people invite {out} Ada Ben Cleo")
        _print(f"  leapfactual people serve {out}\n")
        _print(f"Your own link, while it is served: {LOCAL}/owner/join/{token}")


@people.command()
def invite(
    campaign: Place,
    names: Annotated[list[str], typer.Argument(help="The people's names, or what you call them.")],
    url: Url = LOCAL,
    again: Annotated[
        bool,
        typer.Option("--again", help="They have lost their links: give them new ones."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Invite people. Each gets a link, which is shown once and cannot be guessed.

    Example: leapfactual people invite campaign.db Ada Ben Cleo --url https://vote.example.org
    """
    base = _base(url)
    with _open(campaign) as db:
        from ..people import invite_all, renew

        tokens = renew(db, names) if again else invite_all(db, names)
    links = {n: f"{base}/join/{token}" for n, token in zip(names, tokens, strict=True)}
    if as_json:
        print_json(links)
    else:
        for name, link in links.items():
            _print(f"{printable(name)}: {link}")


@people.command()
def owner(campaign: Place, url: Url = LOCAL) -> None:
    """Make a new link for yourself; the old one is no longer valid.

    Example: leapfactual people owner campaign.db
    """
    with _open(campaign) as db:
        from ..people import renew_owner

        _print(f"{_base(url)}/owner/join/{renew_owner(db)}")


@people.command()
def serve(
    campaign: Place,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that the page may be called by, such as vote.example.org."),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="The page is reached by https: say so in cookies.")
    ] = False,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Do the jobs, too, in a process beside.")
    ] = True,
    bundle: Elsewhere = None,
    device: Device = "cpu",
) -> None:
    """Serve the page, and do the jobs. Stop it with Ctrl-C; nothing is lost.

    Example: leapfactual people serve campaign.db

    On a server: leapfactual people serve campaign.db --allow-host vote.example.org --secure
    """
    check_device(device)
    with _open(campaign) as db:
        from ..people import serve as run

        run(
            db,
            host=host,
            port=port,
            hosts=allow_host or (),
            secure=secure,
            worker=worker,
            bundle=bundle,
            device=device,
            on_start=lambda url: _print(
                f"Serving {printable(campaign)} on {url}. Stop with Ctrl-C."
            ),
        )


@people.command()
def work(campaign: Place, bundle: Elsewhere = None, device: Device = "cpu") -> None:
    """Do the jobs alone, beside a page served with --no-worker.

    Example: leapfactual people work campaign.db --device cuda
    """
    check_device(device)
    with _open(campaign) as db:
        from ..people import Worker

        worker = Worker(db, bundle, device)
        _print("Doing jobs. Stop with Ctrl-C.")
        try:
            worker.run(lambda: False)
        except KeyboardInterrupt:
            _print("Stopped. What was begun is done again by whoever works next.")


@people.command()
def status(campaign: Place, as_json: Json = False) -> None:
    """Show how a campaign stands.

    Example: leapfactual people status campaign.db
    """
    with _open(campaign) as db:
        from ..people import overview

        seen = overview(db)
    if as_json:
        print_json(asdict(seen))
        return
    _print(
        f"{printable(seen.name)}: {printable(seen.question)}{' (paused)' if seen.paused else ''}"
    )
    _print("runs: " + ", ".join(f"{n} {what}" for what, n in sorted(seen.runs.items())))
    alpha = "" if seen.alpha is None else f"; agreement α = {seen.alpha:.2f}"
    _print(f"votes: {seen.votes}, of which {seen.counted} count{alpha}")
    if seen.done:
        _print("All runs have ended: leapfactual people results CAMPAIGN --out FOLDER")
    else:
        _print(f"waiting: {seen.open} pictures, which need {seen.left} votes or more")
    if seen.more:
        _print("Pictures need more people than were invited: invite more, or change the rule.")
    for p in seen.people:
        right = "" if p["right"] is None else f", {p['right']:.0%} right on {p['gold']} gold"
        if p["estimate"] is not None:
            right += f", about {p['estimate']:.0%} on all"
        _print(
            f"  {printable(p['name'])}{' (voided)' if p['voided'] else ''}: {p['votes']}{right}"
        )
    for task, name in seen.stuck:
        what = f"leapfactual people adjudicate CAMPAIGN {task} CLASS"
        _print(f"for you to decide, {printable(name)}: {what}")


@people.command()
def results(
    campaign: Place,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)],
    bundle: Elsewhere = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Write what came of the runs: a table, pictures and a page.

    Example: leapfactual people results campaign.db --out found
    """
    check_device(device)
    with _open(campaign) as db:
        from ..people import write_results

        count = write_results(db, out, bundle, device)
    if not count:
        _print(f"No run has come to its end yet; {out} has the table alone.")
    elif not quiet:
        _print(f"Wrote results.csv, results.json and the page of {count} finished runs to {out}.")


@people.command()
def export(
    campaign: Place,
    file: Annotated[Path, typer.Argument(help="The file to write.", dir_okay=False)],
    form: Format,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A folder to write the pictures to, too.", file_okay=False),
    ] = None,
    blank: Annotated[
        bool,
        typer.Option(
            "--blank", help="Write what is open, without votes: to be voted on elsewhere."
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write all votes to a file for Zooniverse or Label Studio.

    zooniverse: a CSV with a row for every vote; --pictures adds the manifest for an upload.

    label-studio: JSON with all pictures in it, or, with --pictures, beside it as local files; the
    XML that sets up the project is written beside it, too.

    Example: leapfactual people export campaign.db votes.csv --format zooniverse
    """
    with _open(campaign) as db:
        from ..people import export_votes

        done = export_votes(db, file, form, pictures, blank=blank)
    if not quiet:
        beside = "" if pictures is None else f", and {done.pictures} pictures to {pictures}"
        _print(f"Wrote {done.votes} votes to {file}{beside}.")


@people.command("import")
def import_(
    campaign: Place,
    file: Annotated[Path, typer.Argument(help="The file to read.", dir_okay=False)],
    form: Format,
    as_json: Json = False,
) -> None:
    """Take in votes given elsewhere on exported pictures.

    They count as if given on the page. A person's second vote on a picture is skipped, so it does
    no harm to import a file again: do so when votes were on pictures that were not made yet.

    Example: leapfactual people import campaign.db votes.json --format label-studio
    """
    with _open(campaign) as db:
        from ..people import import_votes

        done = import_votes(db, file, form)
    if as_json:
        print_json(asdict(done))
        return
    _print(
        f"Took {done.taken + done.late} votes, of which {done.late} were late and do not count."
    )
    _print(f"Skipped {done.skipped} of people who had voted on the picture, or were voided.")
    if done.people:
        _print(f"{done.people} people are new.")
    if done.unknown:
        _print(
            f"{done.unknown} votes are on pictures that are not there. If they are to come, do "
            "the jobs and import the file again."
        )


@people.command()
def void(
    campaign: Place,
    name: Annotated[str, typer.Argument(help="The person's name.")],
    rewind: Annotated[
        bool,
        typer.Option("--rewind", help="Take runs back to where they can be decided without."),
    ] = False,
) -> None:
    """Take back an invitation. Runs that a person's votes counted in are marked, or rewound.

    Example: leapfactual people void campaign.db Ben --rewind
    """
    with _open(campaign) as db:
        from ..people import void as exclude

        doubted = exclude(db, name, rewind=rewind)
    done = "rewound where it mattered" if rewind else "marked as doubted"
    _print(f"{printable(name)} can no longer vote. {len(doubted)} runs were {done}.")


@people.command()
def adjudicate(
    campaign: Place,
    task: Annotated[int, typer.Argument(help="The picture's number, from `status`.")],
    answer: Annotated[str, typer.Argument(help="The class, or 'not believable'.")],
) -> None:
    """Decide a picture that people do not agree on.

    Example: leapfactual people adjudicate campaign.db 17 cat
    """
    with _open(campaign) as db:
        from ..people import adjudicate as decide
        from ..people import parse_outcome

        decide(db, task, parse_outcome(db, answer), time.time())
    _print("Decided.")


@people.command()
def retry(campaign: Place) -> None:
    """Try stalled runs again, once what stopped them is mended.

    Example: leapfactual people retry campaign.db
    """
    with _open(campaign) as db:
        from ..people import retry as try_again

        names = try_again(db)
    _print(
        f"{len(names)} runs are tried again{': ' if names else ''}{printable(', '.join(names))}."
    )


@people.command()
def verify(
    campaign: Place, bundle: Elsewhere = None, device: Device = "cpu", quiet: Quiet = False
) -> None:
    """Play the event log again: does it lead to what is there?

    Pictures are compared to the last bit, so it takes the device that they were computed on.

    Example: leapfactual people verify campaign.db
    """
    check_device(device)
    with _open(campaign) as db:
        from ..people import replay

        with progress_bar("replaying", quiet=quiet) as say:
            report = replay(db, bundle, lambda share: say.on_progress(share, "replaying"), device)
    for difference in report.differences:
        _print(difference)
    if report.differences:
        raise InputError(
            f"{len(report.differences)} things came out otherwise: somebody has changed this "
            "database, or the bundle is computed otherwise here."
        )
    if not quiet:
        _print(f"All as it was: {report.events} events, {report.votes} votes.")


@people.command()
def pause(campaign: Place) -> None:
    """Stop giving out pictures. Answers to those that were given out are still taken."""
    with _open(campaign) as db:
        from ..people import pause as set_paused

        set_paused(db, True)
    _print("Paused: no pictures are given out.")


@people.command()
def resume(campaign: Place) -> None:
    """Go on giving out pictures."""
    with _open(campaign) as db:
        from ..people import pause as set_paused

        set_paused(db, False)
    _print("Resumed.")


@people.command()
def rule(
    campaign: Place,
    least: Annotated[int | None, LEAST] = None,
    share: Annotated[float | None, SHARE] = None,
    most: Annotated[int | None, MOST] = None,
    method: Annotated[str | None, METHOD] = None,
    posterior: Annotated[float | None, POSTERIOR] = None,
) -> None:
    """Change when votes are a consensus. What is decided stays.

    Example: leapfactual people rule campaign.db --least 5 --most 9
    """
    with _open(campaign) as db:
        from ..people import update_rule

        given = {
            "least": least,
            "share": share,
            "most": most,
            "method": method,
            "posterior": posterior,
        }
        changed = update_rule(db, **{k: v for k, v in given.items() if v is not None})
    enough = f"{changed.share:.0%}" if changed.method == "majority" else f"{changed.posterior:g}"
    _print(
        f"From now on: {changed.least} to {changed.most} votes on a picture, {changed.method}, "
        f"{enough}."
    )
