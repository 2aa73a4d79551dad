import pytest

from leapfactual.studio.kept import Kept
from leapfactual.studio.opening import open_digits

TOKEN, COOKIE = "a-token", "leapfactual_studio_test"


@pytest.fixture(scope="module")
def studio():
    """Returns the studio of the digits that ship, ready for questions."""
    opened = open_digits()
    opened.open()
    return opened


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "kept")


@pytest.fixture
def app(studio, kept):
    from leapfactual.studio.web.app import application

    return application(studio, kept, token=TOKEN, cookie=COOKIE)


def found(events):
    """Returns the last event, which is the answer."""
    return [event for event in events if event is not None][-1]
