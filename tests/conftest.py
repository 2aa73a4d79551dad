import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
