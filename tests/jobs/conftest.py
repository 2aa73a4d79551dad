import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

import leapfactual as lf
from leapfactual.jobs import plans
from leapfactual.pretrained import load

PLAN_GRIDS = ["few plans", pytest.param("all plans", marks=pytest.mark.slow)]
FEW_PLANS = {
    "BLEND_STEPS": (0.2, 0.4),
    "PAPER_BLEND_STEP": 0.2,
    "INJECTION_COUNTS": (1, 4),
    "FAST_BLENDS": ((4, 0.3),),
    "FAST_INJECTIONS": (((0.3, 1.0),),),
}


class Digits:
    """scikit-learn's digits, as a set of images."""

    shape, broken, classes = (1, 8, 8), (), tuple("0123456789")

    def __init__(self, n=600):
        data = load_digits()
        self.x = torch.tensor(data.images[:n] / 16, dtype=torch.float32)[:, None]
        self.labels = torch.tensor(data.target[:n])
        self.names = [str(k) for k in range(n)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        return self.x[rows]


@pytest.fixture(scope="session")
def shipped():
    return load()


@pytest.fixture(scope="session")
def folder(tmp_path_factory, shipped):
    """A flat folder with 24 of the shipped digits."""
    folder = tmp_path_factory.mktemp("digits")
    for n in range(24):
        pixels = (shipped.digits.images[n, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"digit {n}.png")
    return folder


@pytest.fixture(scope="session")
def small_digits():
    return Digits()


@pytest.fixture(scope="session")
def svm(small_digits):
    model = LinearSVC(random_state=0, C=0.1)
    model.fit(small_digits.x.flatten(1), small_digits.labels)
    return lf.classifiers.from_sklearn(model)


@pytest.fixture(params=PLAN_GRIDS)
def plan_grid(request, monkeypatch):
    """Which plans the search tries, in tests of what is around it."""
    if request.param == "few plans":
        for name, values in FEW_PLANS.items():
            monkeypatch.setattr(plans, name, values)
    return request.param
