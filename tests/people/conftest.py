import os
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leapfactual.data.images import open_images
from leapfactual.imaging import to_pil
from leapfactual.people import campaigns
from leapfactual.people.consensus import Rule
from leapfactual.people.creation import create
from leapfactual.people.store.database import Database
from leapfactual.pretrained import load
from tests.people import postgres
from tests.people.crowd import seen

QUICK = "blend(6, 0.3), inject(2, 0.1, 0.25)"


@pytest.fixture(scope="session")
def shipped():
    with as_file(files("leapfactual") / "shipped" / "bundle") as folder:
        yield SimpleNamespace(**vars(load()), folder=folder)


@pytest.fixture(scope="session")
def folder(shipped, tmp_path_factory):
    """Holds six digits as pictures."""
    place = tmp_path_factory.mktemp("digits")
    for k in range(6):
        to_pil(shipped.digits.images[3 * k]).save(place / f"digit-{k}.png")
    return place


@pytest.fixture(scope="session")
def network(shipped):
    """Says what the shipped classifier says of what people see, without how sure it is."""

    @torch.no_grad()
    def ask(x):
        return torch.eye(10)[shipped.classifier(seen(x)).argmax(1)]

    return ask


@pytest.fixture
def memory_path(tmp_path):
    """Gives a folder in memory where there is one: what is committed is on disk at once then."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def campaign(shipped, folder, memory_path):
    """Makes campaigns."""
    made = []

    def make(place=None, *, target=3, gold=None, images=None, **options):
        options = {"question": "Which digit is this?", "plan": QUICK} | options
        options.setdefault("rule", Rule(least=1, most=3))
        opened = open_images(images or folder)
        place = place or memory_path / f"campaign-{len(made)}.db"
        known = None if gold is None else open_images(gold)
        chosen = campaigns.CampaignSettings(**options)
        token = create(place, shipped.folder, opened, [target] * len(opened), chosen, known)
        db = Database(place)
        made.append(db)
        return SimpleNamespace(db=db, token=token, images=opened)

    yield make
    for db in made:
        db.close()


@pytest.fixture(scope="session")
def postgres_server():
    """Makes databases of PostgreSQL."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    with (
        tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder,
        postgres.server(folder) as make,
    ):
        yield make


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Returns where a campaign is kept: on disk, or in a server."""
    if request.param == "sqlite":
        return tmp_path / "campaign.db"
    return request.getfixturevalue("postgres_server")()
