"""The whole chain on a CUDA device, against the same on the CPU."""

import pytest
import torch

import leapfactual as lf
from leapfactual.captured import Captured
from leapfactual.generators import VAE, ConditionalVAE, Identity
from leapfactual.generators import fit as fit_generator
from leapfactual.metrics import morphometrics
from leapfactual.studies.morpho_mnist.shipping import load
from leapfactual.testing import GaussianOracle

pytestmark = pytest.mark.gpu
MEANS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.5]])
PLAN = [lf.blend(20, 0.1), lf.inject(3, lift=0.0, land=0.1)]


def explained(device):
    oracle = GaussianOracle(MEANS.double(), 0.7)
    z, y = oracle.sample(50)
    explainer = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow().to(device), PLAN)
    return explainer.explain(z.to(device), ((y + 1) % 3).to(device)).to("cpu")


def test_explanations_agree_with_the_cpu():
    here, there = explained("cpu"), explained("cuda")
    torch.testing.assert_close(there.z_counterfactual, here.z_counterfactual, rtol=0, atol=1e-9)
    assert torch.equal(there.leaps, here.leaps)
    assert torch.equal(there.questions, here.questions)


@pytest.mark.parametrize("coupling", ["independent"])
def test_training_resumes_exactly(coupling, tmp_path):
    z, y = (v.cuda() for v in GaussianOracle(MEANS, 0.7).sample(2000))

    def train(**options):
        torch.manual_seed(0)
        flow = lf.Flow(lf.MLPField(2, 3)).cuda()
        lf.fit(flow, z, flow.one_hot(y), epochs=4, ema=0.99, coupling=coupling, **options)
        return flow

    def stop(epoch):
        if epoch.number == 2:
            raise KeyboardInterrupt

    whole = train()
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path / "c.safetensors", on_epoch=stop)
    resumed = train(checkpoint=tmp_path / "c.safetensors")
    for name, value in whole.field.state_dict().items():
        assert torch.equal(value, resumed.field.state_dict()[name]), name


def test_density_and_files(tmp_path):
    oracle = GaussianOracle(MEANS.double(), 0.7)
    z, y = (v.cuda() for v in oracle.sample(20))
    flow = lf.Flow(lf.MLPField(2, 3)).double().cuda()
    flow.calibrate(z, flow.one_hot(y))
    assert flow.typicality(z, y).device.type == "cuda"
    flow.save(tmp_path / "flow.safetensors")
    again = lf.Flow.load(tmp_path / "flow.safetensors").cuda()
    assert torch.equal(again.lift(z, flow.one_hot(y)), flow.lift(z, flow.one_hot(y)))


def test_captured_steps_train_as_others_do(monkeypatch):
    """Recorded or not, the same random numbers meet the same weights."""
    z, y = (v.cuda() for v in GaussianOracle(MEANS, 0.7).sample(700))

    def train(warm_up):
        monkeypatch.setattr("leapfactual.captured.WARM_UP", warm_up)
        torch.manual_seed(0)
        flow = lf.Flow(lf.MLPField(2, 3)).cuda()
        return lf.fit(flow, z, flow.one_hot(y), epochs=5, ema=0.9, schedule="cosine")

    expected = train(10**9)
    recorded = []
    record = Captured._record
    monkeypatch.setattr(
        Captured, "_record", lambda self, tensors: recorded.append(1) or record(self, tensors)
    )
    assert train(3) == pytest.approx(expected, rel=1e-3)
    assert recorded == [1]


def test_captured_generators_train_as_others_do(monkeypatch):
    x = torch.rand(300, 1, 8, 8).cuda()
    c = torch.eye(3).repeat(100, 1).cuda()

    def train(warm_up):
        monkeypatch.setattr("leapfactual.captured.WARM_UP", warm_up)
        torch.manual_seed(0)
        vae, cvae = VAE((1, 8, 8), 2).cuda(), ConditionalVAE((1, 8, 8), 3, 2).cuda()
        options = {"epochs": 6, "batch_size": 64, "learning_rate": 1e-3, "ema": 0.9}
        return fit_generator(vae, x, **options) + fit_generator(cvae, x, c, **options)

    assert train(3) == pytest.approx(train(10**9), rel=1e-3)


def test_strokes_measure_as_on_the_cpu():
    x = load().digits.images
    here, there = morphometrics(x), morphometrics(x.cuda())
    for name, value in here.items():
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-6, atol=1e-6)
