"""People as the classifier: create a campaign, invite, serve, look, decide."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
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
    from ..people.store.database import Database

people = typer.Typer(
    help="People as the classifier: campaigns in which volunteers answer and the leap goes on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NEEDED = ("starlette", "uvicorn", "sqlalchemy", "alembic", "jinja2")
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
SHIPPED, SHOWN = "digits", 6


def require() -> None:
    """Says which packages are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"campaigns need {', '.join(missing)}. Run `pip install 'leapfactual[people]'`."
        )


@contextmanager
def _opened(place: str) -> "Iterator[Database]":
    require()
    from ..people.store.database import Database

    db = Database(place)
    try:
        yield db
    finally:
        db.close()


def _base(url: str) -> str:
    """Returns where the page is, if it is said in full."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"`--url` must begin with http:// or https://, got {url!r}.")
    return url.rstrip("/")


def _tell(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _shipped(bundle: Path, images: list[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Gives the bundle and the pictures, those of the package where `digits` is asked for."""
    import tempfile
    from importlib.resources import as_file, files

    from ..bundle.manifest import MANIFEST
    from ..pretrained import load
    from ..report.cards import picture

    if str(bundle) != SHIPPED or (bundle / MANIFEST).exists():
        if not images:
            raise InputError("give the pictures to explain: a folder, a zip, or files.")
        yield bundle, images
        return
    with as_file(files("leapfactual") / "shipped" / "bundle") as folder:
        if images:
            yield folder, images
            return
        with tempfile.TemporaryDirectory() as place:
            digits = load().digits
            for row in range(SHOWN):
                picture(digits.images[row]).save(Path(place) / f"digit-{row:02d}.png")
            yield folder, [Path(place)]


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
    ahead: Annotated[int, typer.Option(help="How many pictures a round has at most.")] = 32,
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
    from ..bundle import Bundle
    from ..data.images import open_images
    from ..jobs.pairs import find_class, read_pairs
    from ..people import campaigns
    from ..people.consensus import Rule

    if (target is None) == (targets is None):
        raise InputError(
            "say what the pictures are to become: --target CLASS, or --targets FILE.csv."
        )
    with (
        progress_bar("opening", quiet=quiet or as_json) as say,
        _shipped(bundle, images or []) as (bundle, images),
    ):
        loaded = Bundle.load(bundle)
        stretch = str(loaded.training.get("stretch", "none"))
        shape = tuple(loaded.probes.shape[1:])
        size = (shape[1], shape[2]) if len(shape) == 3 else None
        source = images[0] if len(images) == 1 else images
        found = open_images(source, size=size, channels=shape[0]).stretched(stretch)
        known = None
        if gold is not None:
            known = open_images(gold, size=size, channels=shape[0]).stretched(stretch)
        names = tuple(part.strip() for part in classes.split(",")) if classes else loaded.classes
        if target is not None:
            wanted = [find_class(target, names)] * len(found)
        else:
            assert targets is not None
            pairs = read_pairs(targets, found, names)
            if sorted(row for row, _ in pairs) != list(range(len(found))):
                raise InputError(f"{targets} must name a target for every picture, once.")
            wanted = [goal for _, goal in sorted(pairs)]
        chosen = campaigns.Plan(
            question=question,
            classes=names,
            plan=plan,
            mode=mode,
            ahead=ahead,
            rule=Rule(least, share, most, method, posterior),
            gold_share=gold_share,
            repeat_share=repeat_share,
            lease=60 * lease,
            seed=seed,
            name=name,
        )
        say.on_progress(0.5, "writing")
        token = campaigns.create(out, bundle, found, wanted, chosen, known)
    if as_json:
        print_json({"campaign": out, "runs": len(found), "owner": token})
    else:
        _tell(f"Made {out} with {len(found)} pictures. Invite people, then serve:\n")
        _tell(f"  leapfactual people invite {out} Ada Ben Cleo")
        _tell(f"  leapfactual people serve {out}\n")
        _tell(f"Your own link, while it is served: {LOCAL}/owner/join/{token}")


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
    with _opened(campaign) as db:
        from ..people.campaigns import invite_all, renew

        tokens = renew(db, names) if again else invite_all(db, names)
    links = {n: f"{base}/join/{token}" for n, token in zip(names, tokens, strict=True)}
    if as_json:
        print_json(links)
    else:
        for name, link in links.items():
            _tell(f"{printable(name)}: {link}")


@people.command()
def owner(campaign: Place, url: Url = LOCAL) -> None:
    """Make a new link for yourself; the old one is no longer valid.

    Example: leapfactual people owner campaign.db
    """
    with _opened(campaign) as db:
        from ..people.campaigns import renew_owner

        _tell(f"{_base(url)}/owner/join/{renew_owner(db)}")


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
    with _opened(campaign) as db:
        import uvicorn

        from ..people.web.app import application
        from ..people.worker import beside

        app = application(db, hosts=allow_host or (), secure=secure)
        quiet = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        with (
            _listening(host, port) as listening,
            beside(db, bundle, device) if worker else nullcontext(),
        ):
            there = f"http://{host}:{listening.getsockname()[1]}"
            _tell(f"Serving {printable(campaign)} on {there}. Stop with Ctrl-C.")
            with suppress(KeyboardInterrupt):
                uvicorn.Server(quiet).run(sockets=[listening])


def _why(error: OSError) -> str:
    return str(error) if error.errno is None or error.errno < 0 else os.strerror(error.errno)


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=kind)
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be listened on ({_why(error)}). Give another --port or --host."
        ) from error


@people.command()
def work(campaign: Place, bundle: Elsewhere = None, device: Device = "cpu") -> None:
    """Do the jobs alone, beside a page that is served with --no-worker.

    Example: leapfactual people work campaign.db --device cuda
    """
    check_device(device)
    with _opened(campaign) as db:
        from ..people.worker import Worker

        made = Worker(db, bundle, device)
        _tell("Doing jobs. Stop with Ctrl-C.")
        try:
            made.run(lambda: False)
        except KeyboardInterrupt:
            _tell("Stopped. What was begun is done again by whoever works next.")


@people.command()
def status(campaign: Place, as_json: Json = False) -> None:
    """Show how a campaign stands.

    Example: leapfactual people status campaign.db
    """
    with _opened(campaign) as db:
        from ..people.status import overview

        seen = overview(db)
    if as_json:
        print_json(asdict(seen))
        return
    _tell(
        f"{printable(seen.name)}: {printable(seen.question)}{' (paused)' if seen.paused else ''}"
    )
    _tell("runs: " + ", ".join(f"{n} {what}" for what, n in sorted(seen.runs.items())))
    alpha = "" if seen.alpha is None else f"; agreement α = {seen.alpha:.2f}"
    _tell(f"votes: {seen.votes}, of which {seen.counted} count{alpha}")
    if seen.done:
        _tell("All runs have ended: leapfactual people results CAMPAIGN --out FOLDER")
    else:
        _tell(f"waiting: {seen.open} pictures, which need {seen.left} votes or more")
    if seen.more:
        _tell("Pictures need more people than were invited: invite more, or change the rule.")
    for p in seen.people:
        right = "" if p["right"] is None else f", {p['right']:.0%} right on {p['gold']} gold"
        if p["estimate"] is not None:
            right += f", about {p['estimate']:.0%} on all"
        _tell(f"  {printable(p['name'])}{' (voided)' if p['voided'] else ''}: {p['votes']}{right}")
    for task, name in seen.stuck:
        what = f"leapfactual people adjudicate CAMPAIGN {task} CLASS"
        _tell(f"for you to decide, {printable(name)}: {what}")


@people.command()
def results(
    campaign: Place,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.", file_okay=False)],
    bundle: Elsewhere = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Write what came of the runs: a table, the pictures, and a page to look at.

    Example: leapfactual people results campaign.db --out found
    """
    check_device(device)
    with _opened(campaign) as db:
        from ..people.results import write

        count = write(db, out, bundle, device)
    if not count:
        _tell(f"No run has come to its end yet; {out} has the table alone.")
    elif not quiet:
        _tell(f"Wrote results.csv, results.json and the page of {count} finished runs to {out}.")


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
    """Write all votes to a file that the tools of Zooniverse or Label Studio read.

    zooniverse: a CSV with a row for every vote; --pictures adds the manifest for an upload.

    label-studio: JSON with all pictures in it, or, with --pictures, beside it as local files; the
    XML that sets up the project is written beside it, too.

    Example: leapfactual people export campaign.db votes.csv --format zooniverse
    """
    with _opened(campaign) as db:
        from ..people.exchange.interchange import export as write

        done = write(db, file, form, pictures, blank=blank)
    if not quiet:
        beside = "" if pictures is None else f", and {done.pictures} pictures to {pictures}"
        _tell(f"Wrote {done.votes} votes to {file}{beside}.")


@people.command("import")
def import_(
    campaign: Place,
    file: Annotated[Path, typer.Argument(help="The file to read.", dir_okay=False)],
    form: Format,
    as_json: Json = False,
) -> None:
    """Take in votes that were given elsewhere on exported pictures, as if given on the page.

    A person's second vote on a picture is skipped, so it does no harm to import a file again: do
    so when votes were on pictures that were not made yet.

    Example: leapfactual people import campaign.db votes.json --format label-studio
    """
    with _opened(campaign) as db:
        from ..people.exchange.interchange import bring_in

        done = bring_in(db, file, form)
    if as_json:
        print_json(asdict(done))
        return
    _tell(f"Took {done.taken + done.late} votes, of which {done.late} were late and do not count.")
    _tell(f"Skipped {done.skipped} of people who had voted on the picture, or were voided.")
    if done.people:
        _tell(f"{done.people} people are new.")
    if done.unknown:
        _tell(
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
    with _opened(campaign) as db:
        from ..people.exclusion import void as take_back

        doubted = take_back(db, name, rewind=rewind)
    done = "rewound where it mattered" if rewind else "marked as doubted"
    _tell(f"{printable(name)} can no longer vote. {len(doubted)} runs were {done}.")


@people.command()
def adjudicate(
    campaign: Place,
    task: Annotated[int, typer.Argument(help="The picture's number, from `status`.")],
    answer: Annotated[str, typer.Argument(help="The class, or 'not believable'.")],
) -> None:
    """Decide a picture that people do not agree on.

    Example: leapfactual people adjudicate campaign.db 17 cat
    """
    with _opened(campaign) as db:
        from ..jobs.pairs import find_class
        from ..people import transitions as rounds
        from ..people import votes
        from ..people.consensus import IMPLAUSIBLE

        with db.read() as c:
            classes = rounds.settings(c).classes
        same = answer == "not believable"
        outcome = IMPLAUSIBLE if same else find_class(answer, tuple(classes))
        votes.adjudicate(db, task, outcome, time.time())
    _tell("Decided.")


@people.command()
def retry(campaign: Place) -> None:
    """Try stalled runs again: what kept their pictures from being computed is mended.

    Example: leapfactual people retry campaign.db
    """
    with _opened(campaign) as db:
        from ..people.worker import retry as revive

        names = revive(db)
    _tell(
        f"{len(names)} runs are tried again{': ' if names else ''}{printable(', '.join(names))}."
    )


@people.command()
def verify(
    campaign: Place, bundle: Elsewhere = None, device: Device = "cpu", quiet: Quiet = False
) -> None:
    """Play the event log again, and compare: does it lead to what is there?

    Pictures are compared to the last bit, so it takes the device that they were computed on.

    Example: leapfactual people verify campaign.db
    """
    check_device(device)
    with _opened(campaign) as db:
        from ..people.audit import replay

        with progress_bar("playing it again", quiet=quiet) as say:
            found = replay(
                db, bundle, lambda share: say.on_progress(share, "playing it again"), device
            )
    for difference in found.differences:
        _tell(difference)
    if found.differences:
        raise InputError(
            f"{len(found.differences)} things came out otherwise: somebody has changed this "
            "database, or the bundle is computed otherwise here."
        )
    if not quiet:
        _tell(f"All as it was: {found.events} events, {found.votes} votes.")


@people.command()
def pause(campaign: Place) -> None:
    """Stop giving out pictures. Answers to those that were given out are still taken."""
    with _opened(campaign) as db:
        from ..people.campaigns import pause as stop

        stop(db, True)
    _tell("Paused: no pictures are given out.")


@people.command()
def resume(campaign: Place) -> None:
    """Go on giving out pictures."""
    with _opened(campaign) as db:
        from ..people.campaigns import pause as stop

        stop(db, False)
    _tell("Resumed.")


@people.command()
def rule(
    campaign: Place,
    least: Annotated[int | None, LEAST] = None,
    share: Annotated[float | None, SHARE] = None,
    most: Annotated[int | None, MOST] = None,
    method: Annotated[str | None, METHOD] = None,
    posterior: Annotated[float | None, POSTERIOR] = None,
) -> None:
    """Change when votes are a consensus, for what is not decided yet. The rest stays.

    Example: leapfactual people rule campaign.db --least 5 --most 9
    """
    with _opened(campaign) as db:
        from ..people.campaigns import change_rule
        from ..people.transitions import current_rule

        given = {
            "least": least,
            "share": share,
            "most": most,
            "method": method,
            "posterior": posterior,
        }
        with db.write() as c:
            new = {name: value for name, value in given.items() if value is not None}
            changed = replace(current_rule(c)[1], **new)  # type: ignore[arg-type]
            change_rule(c, changed, time.time())
        few, many = changed.least, changed.most
        enough = (
            f"{changed.share:.0%}" if changed.method == "majority" else f"{changed.posterior:g}"
        )
        _tell(f"From now on: {few} to {many} votes on a picture, {changed.method}, {enough}.")
