import torch

from leapfactual.generators import Identity
from leapfactual.testing import check_generator
from leapfactual.types import Generator


def test_identity_keeps_its_contract():
    check_generator(Identity(), torch.randn(4, 3))
    assert isinstance(Identity(), Generator)
    assert str(Identity()) == "Identity()"
