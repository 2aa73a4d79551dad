import pytest

from leapfactual.pretrained import load


@pytest.fixture(scope="module")
def shipped():
    return load()


@pytest.fixture(scope="module")
def x(shipped):
    return shipped.digits.images[:40]
