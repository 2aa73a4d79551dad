"""Creating a campaign: a bundle, pictures, and the classes that they are to reach."""

import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path, PurePath

import torch
from sqlalchemy import insert

from .. import checks
from ..bundle import Bundle
from ..bundle.manifest import MANIFEST
from ..data.images import Images, open_images
from ..errors import InputError
from ..imaging import to_pil
from ..jobs.pairs import read_pairs
from ..leaps import describe, parse
from ..pretrained import load
from .campaigns import CampaignSettings, change_rule, hash_token
from .store import tables as t
from .store.assets import put_asset
from .store.database import new_database
from .transitions import WAITING, enqueue_job, log_event
from .worker import encode_png, hash_bundle

# What a browser shows without trouble, and far more than generators make.
MAX_PIXELS = 25_000_000
SHIPPED, SHIPPED_PICTURES = "digits", 6


def create(
    place: str | Path,
    bundle: str | Path,
    images: Images,
    targets: Sequence[int],
    settings: CampaignSettings,
    gold: Images | None = None,
) -> str:
    """Creates a campaign, all of it or nothing, and returns the owner's token.

    Arguments:
        place: A file for SQLite, or the URL of an empty database of PostgreSQL.
        bundle: The bundle's folder.
        images: The pictures to explain.
        targets: The class to reach with each.
        settings: What to ask, and how.
        gold: Pictures with known answers, in folders that are called as the classes. They are
            shown as the generator makes them, so that nobody can tell them from the others.
    """
    loaded = Bundle.load(bundle)
    names = settings.classes or loaded.classes
    if len(names) != len(loaded.classes) or len(set(names)) != len(names):
        raise InputError(
            f"the bundle knows {len(loaded.classes)} classes, {', '.join(loaded.classes)}; give "
            f"as many different names, got {list(names)}."
        )
    plan = describe(parse(settings.plan) if settings.plan else loaded.plan)
    if loaded.probes.ndim != 4:
        raise InputError("people look at pictures, but this bundle is for tables.")
    pictures = _encode(images, tuple(loaded.probes.shape[1:]))
    known = [] if gold is None else _encode_gold(gold, loaded, names)
    token = secrets.token_urlsafe(32)
    now = time.time()
    with new_database(place) as c:
        c.execute(
            insert(t.campaign).values(
                id=1,
                name=settings.name,
                created=now,
                bundle=str(Path(bundle).absolute()),
                bundle_sha256=hash_bundle(Path(bundle)),
                question=settings.question,
                classes=list(names),
                plan=plan,
                mode=settings.mode,
                max_frames=settings.max_frames,
                gold_share=settings.gold_share if known else 0.0,
                repeat_share=settings.repeat_share,
                lease=settings.lease,
                seed=settings.seed,
                paused=False,
                owner_sha256=hash_token(token),
            )
        )
        change_rule(c, settings.rule, now)
        for name, target, content in zip(_short_names(images), targets, pictures, strict=True):
            run = c.execute(
                insert(t.run)
                .values(
                    name=name,
                    target=target,
                    asset=put_asset(c, content),
                    status=WAITING,
                    reason="",
                    doubted=False,
                )
                .returning(t.run.c.id)
            ).scalar_one()
            enqueue_job(c, run, now)
        for content, truth in known:
            asset = put_asset(c, content)
            c.execute(insert(t.task).values(kind=t.GOLD, state=t.OPEN, asset=asset, truth=truth))
        log_event(c, now, "created", runs=len(pictures), gold=len(known))
    return token


def _short_names(images: Images) -> list[str]:
    """Returns the names of pictures, without the folders that all of them are in."""
    folders = {str(PurePath(name).parent) for name in images.names}
    try:
        shared = PurePath(os.path.commonpath(folders))
    except ValueError:
        return images.names
    return [str(PurePath(name).relative_to(shared)) for name in images.names]


def _encode(images: Images, shape: tuple[int, ...]) -> list[bytes]:
    """Checks pictures, and returns them as PNGs."""
    if tuple(images.shape) != shape:
        raise InputError(
            f"the bundle is for pictures of {shape}, got {tuple(images.shape)}. Resize them."
        )
    if shape[1] * shape[2] > MAX_PIXELS:
        raise InputError(f"pictures may have {MAX_PIXELS} pixels, got {shape[1] * shape[2]}.")
    if len(set(images.names)) != len(images):
        raise InputError("two pictures have one name. Give each another.")
    return [encode_png(images[row][0]) for row in range(len(images))]


@torch.no_grad()
def _encode_gold(gold: Images, bundle: Bundle, names: Sequence[str]) -> list[tuple[bytes, int]]:
    """Returns pictures with known answers, as the generator reconstructs them."""
    if gold.labels is None or not gold.classes:
        raise InputError("gold needs answers: put the pictures into a folder for each class.")
    unknown = sorted(set(gold.classes) - set(names))
    if unknown:
        raise InputError(f"gold has answers {unknown} that are no classes: {list(names)}.")
    pairs = []
    for row, label in enumerate(gold.labels.tolist()):
        x = bundle.generator.decode(bundle.generator.encode(gold[row]))
        pairs.append((encode_png(x[0]), names.index(gold.classes[label])))
    return pairs


# -- from folders and names, as the command line is given them --


def create_from_files(
    place: str | Path,
    bundle: str | Path,
    images: Sequence[Path],
    settings: CampaignSettings,
    *,
    target: str | None = None,
    targets: str | Path | None = None,
    gold: str | Path | None = None,
) -> tuple[str, int]:
    """Creates a campaign from files, and returns the owner's token and the number of pictures.

    Arguments:
        place: A file for SQLite, or the URL of an empty database of PostgreSQL.
        bundle: The bundle's folder; or ``digits``, for the one that the package ships.
        images: The pictures: a folder, a zip, or files. The shipped bundle has its own.
        settings: What to ask, and how.
        target: The class to reach, by its name; either this or ``targets``.
        targets: A CSV file with the columns ``image`` and ``target``.
        gold: Pictures with known answers, in folders that are called as the classes.
    """
    if (target is None) == (targets is None):
        raise InputError(
            "say what the pictures are to become: --target CLASS, or --targets FILE.csv."
        )
    with _locate(Path(bundle), images) as (folder, sources):
        loaded = Bundle.load(folder)
        names = settings.classes or loaded.classes
        opened = _open(loaded, sources)
        known = None if gold is None else _open(loaded, [Path(gold)])
        if target is not None:
            goals = [checks.find_class(target, names)] * len(opened)
        else:
            assert targets is not None
            goals = _read_targets(targets, opened, names)
        return create(place, folder, opened, goals, settings, known), len(opened)


@contextmanager
def _locate(bundle: Path, images: Sequence[Path]) -> Iterator[tuple[Path, Sequence[Path]]]:
    """Gives the folder of the bundle and the pictures, which may be the package's own."""
    if str(bundle) != SHIPPED or (bundle / MANIFEST).exists():
        if not images:
            raise InputError("give the pictures to explain: a folder, a zip, or files.")
        yield bundle, images
        return
    with (
        as_file(files("leapfactual") / "shipped" / "bundle") as folder,
        tempfile.TemporaryDirectory() as place,
    ):
        if not images:
            digits = load().digits
            for row in range(SHIPPED_PICTURES):
                to_pil(digits.images[row]).save(Path(place) / f"digit-{row:02d}.png")
            images = [Path(place)]
        yield folder, images


def _open(bundle: Bundle, sources: Sequence[Path]) -> Images:
    """Opens pictures in the size and with the stretch that a bundle was trained on."""
    channels, *rest = bundle.probes.shape[1:]
    size = (rest[0], rest[1]) if len(rest) == 2 else None
    source = sources[0] if len(sources) == 1 else list(sources)
    images = open_images(source, size=size, channels=channels)
    return images.stretched(str(bundle.training.get("stretch", "none")))


def _read_targets(path: str | Path, images: Images, names: Sequence[str]) -> list[int]:
    pairs = read_pairs(path, images, names)
    if sorted(row for row, _ in pairs) != list(range(len(images))):
        raise InputError(f"{path} must name a target for every picture, once.")
    return [target for _, target in sorted(pairs)]
