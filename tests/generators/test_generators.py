"""Generators: contracts, training with exact resume, files, inversion, adapters."""

import sys
import types

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn

import leapfactual as lf
from leapfactual import generators
from leapfactual.errors import InputError, MissingData, MissingExtra, NeedsGradient, TrainingError
from leapfactual.generators import (
    GAN,
    VAE,
    WAE,
    Identity,
    Inversion,
    LatentDiffusionVAE,
    Standardized,
    from_openvino,
    stylegan,
)
from leapfactual.generators.wae import mmd
from leapfactual.testing import GaussianOracle, check_generator
from leapfactual.training import fit_generator
from leapfactual.types import Generator

DIGITS = torch.tensor(load_digits().images / 16).float()[:, None]


def small(kind):
    torch.manual_seed(0)
    return {
        "VAE": lambda: VAE((1, 8, 8), features=8, widths=(8, 16)),
        "WAE": lambda: WAE((1, 8, 8), features=8, widths=(8, 16)),
    }[kind]()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 17, 30)])
@pytest.mark.parametrize("kind", [VAE, WAE])
def test_autoencoders_keep_their_contract_for_any_shape(kind, shape):
    check_generator(kind(shape, 6, widths=(4, 8)), torch.rand(3, *shape))
    assert isinstance(kind(shape, 6), Generator)


def test_the_vae_is_the_papers():
    vae = VAE((1, 28, 28))
    sizes = [tuple(m.weight.shape) for m in vae.encoder.modules() if isinstance(m, nn.Conv2d)]
    assert sizes == [(8, 1, 3, 3), (16, 8, 3, 3), (32, 16, 3, 3), (32, 32, 3, 3)]
    assert vae.encoder.linear.weight.shape == (64, 128)
    assert sum(isinstance(m, nn.LeakyReLU) for m in vae.encoder.modules()) == 4
    assert vae.decoder.convolutions[-1].kernel_size == (1, 1)
    assert VAE((1, 28, 28), kernel=5).decode(torch.zeros(2, 32)).shape == (2, 1, 28, 28)


def test_the_conditional_vae_takes_its_condition_at_both_ends():
    cvae = VAE((1, 28, 28), classes=10)
    assert cvae.encoder.linear.weight.shape == (64, 138)
    assert cvae.decoder.linear.weight.shape == (128, 42)
    x, c = torch.rand(2, 1, 28, 28), torch.eye(10)[:2]
    z = cvae.encode(x, c)
    assert not torch.allclose(cvae.decode(z, c), cvae.decode(z, c.flip(0)))
    loss, x_hat = cvae.loss(x, torch.Generator().manual_seed(0), c)
    assert loss.ndim == 0
    assert x_hat.shape == x.shape


def test_the_vaes_objective_by_hand():
    vae = small("VAE")
    x = torch.rand(4, 1, 8, 8)
    loss, x_hat = vae.loss(x, torch.Generator().manual_seed(0))
    mean, log_variance = vae.encoder(x).chunk(2, dim=1)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (log_variance / 2).exp()),
        torch.distributions.Normal(0, 1),
    )
    expected = 4000 * (x_hat - x).square().mean() + kl.sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_mmd_is_zero_on_average_between_equal_distributions_and_large_otherwise():
    def draw(seed, shift=0.0):
        noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(seed))
        return noise + shift

    same = torch.stack([mmd(draw(2 * n), draw(2 * n + 1), 1.0) for n in range(20)])
    assert abs(same.mean().item()) < 3 * same.std().item() / 20**0.5 + 1e-4
    assert mmd(draw(0), draw(1, 1.0), 1.0) > 10 * same.std()
    a, b = draw(0)[:5], draw(1)[:5]
    kernel = lambda u, v: sum(  # noqa: E731
        8 * s / (8 * s + (u - v).square().sum()) for s in (0.1, 0.2, 0.5, 1, 2, 5, 10)
    )
    within = sum(kernel(p[i], p[j]) for p in (a, b) for i in range(5) for j in range(5) if i != j)
    across = sum(kernel(u, v) for u in a for v in b)
    expected = (within / 20 - 2 * across / 25) / 7
    torch.testing.assert_close(mmd(a, b, 1.0), expected, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mmd(a, b, 1.0), mmd(a, b, 1.0).float())
        torch.testing.assert_close(mmd(a, b, 1.0), expected, rtol=1e-4, atol=1e-5)


def test_mixed_precision_leaves_weights_as_others_have_them():
    wae = small("WAE")
    fit_generator(wae, DIGITS[:64], epochs=1, batch_size=32, precision="bfloat16")
    assert all(p.is_contiguous() and p.dtype == torch.float32 for p in wae.parameters())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("VAE", {}),
        ("VAE", {"ema": 0.9, "schedule": "cosine", "weight_decay": 0.01}),
        ("WAE", {"learning_rate": 1e-3, "adversarial_weight": 0.01}),
        ("WAE", {"learning_rate": 1e-3, "ema": 0.9, "precision": "bfloat16"}),
    ],
)
def test_interrupted_and_resumed_training_gives_equal_weights(tmp_path, kind, options):
    def train(**more):
        model = small(kind)
        losses = fit_generator(model, DIGITS[:150], epochs=4, batch_size=64, **options, **more)
        return model, losses

    def stop(epoch):
        if epoch.number == 2:
            raise KeyboardInterrupt

    whole, losses = train()
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path / "c.safetensors", on_epoch=stop)
    resumed, again = train(checkpoint=tmp_path / "c.safetensors")
    assert again == losses
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_training_learns_and_draws_a_preview(tmp_path):
    vae = small("VAE")
    losses = fit_generator(vae, DIGITS, epochs=8, batch_size=128, preview=tmp_path / "preview.png")
    assert losses[-1] < 0.6 * losses[0]
    with torch.no_grad():
        error = (vae.decode(vae.encode(DIGITS)) - DIGITS).abs().mean()
    assert error < 0.7 * (DIGITS.mean(0) - DIGITS).abs().mean()
    assert not vae.training
    with Image.open(tmp_path / "preview.png") as preview:
        assert preview.size[0] > 8 * 64


def test_perceptual_and_augment_are_used():
    seen = []

    def perceptual(a, b):
        seen.append(a.shape)
        return (a - b).abs().flatten(1).mean(1)

    fit_generator(
        small("WAE"),
        DIGITS[:64],
        epochs=1,
        batch_size=32,
        perceptual=perceptual,
        augment=lambda x, rng: x.flip(3),
    )
    assert seen == [torch.Size([32, 1, 8, 8])] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": DIGITS[:0]}, "at least two images to train on, got 0"),
        ({"images": DIGITS - 1}, r"images in \[0, 1\]"),
        ({"images": torch.rand(4, 3, 8, 8)}, r"shape \(B, 1, 8, 8\), got \(4, 3, 8, 8\)"),
        ({"epochs": 0}, "`epochs` must be"),
        ({"learning_rate": -1}, "`learning_rate` must be positive, got -1"),
        ({"schedule": "step"}, "`schedule` must be one of"),
        ({"ema": 2}, r"`ema` must be in \[0, 1\), got 2"),
        ({"batch_size": 1}, "`batch_size` must be at least 2"),
        ({"model": VAE((1, 8, 8), classes=2)}, "pass what the classifier says"),
        ({"conditions": torch.eye(2).repeat(4, 1)}, r"`c` must have shape \(8, 0\), got \(8, 2\)"),
        ({"weight_decay": -1}, "`weight_decay` must be at least 0, got -1"),
        ({"precision": "int8"}, "`precision` must be one of .* got 'int8'"),
        ({"model": Identity()}, "`model` must be a torch module .* got Identity"),
    ],
)
def test_wrong_training_is_named(change, message):
    arguments = {"model": small("VAE"), "images": DIGITS[:8], **change}
    with pytest.raises(InputError, match=message):
        fit_generator(arguments.pop("model"), arguments.pop("images"), **arguments)


def test_training_that_diverges_is_named():
    with pytest.raises(TrainingError, match="training diverged in epoch 1.*Lower learning_rate"):
        fit_generator(small("VAE"), DIGITS[:64], epochs=1, batch_size=8, learning_rate=1e20)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VAE((28, 28)), r"\(channels, height, width\) of one image, got \(28, 28\)"),
        (lambda: VAE((1, 28, 28), features=0), "`features` must be"),
        (lambda: VAE((1, 28, 28), kernel=7), "`kernel` 7 does not fit.*at most 5"),
        (lambda: VAE((1, 30, 20), kernel=8), "`kernel` 8 does not fit.*at most 3"),
        (lambda: VAE(28), "got 28"),
        (lambda: VAE((1, 8, 8), widths=()), "`widths` must name 1 to 16 levels, got 0"),
        (lambda: VAE((1, 8, 8), 4).decode(torch.zeros(2, 5)), "must have 4 features"),
        (lambda: VAE((1, 8, 8)).encode(torch.zeros(2, 1, 8, 8).byte()), "must be floating point"),
        (lambda: VAE((1, 8, 8)).encode(torch.zeros(2, 3, 8, 8)), r"got \(2, 3, 8, 8\)"),
        (lambda: VAE((1, 8, 8), classes=-1), "`classes` must be .* got -1"),
        (lambda: VAE((1, 8, 8), classes=2).encode(torch.zeros(3, 1, 8, 8)), "is conditional"),
        (lambda: VAE((1, 8, 8), 4, classes=2).decode(torch.zeros(3, 4)), r"of shape \(3, 2\)"),
        (lambda: VAE((1, 8, 8), 4).decode(torch.zeros(3, 4), torch.eye(3)), r"\(3, 0\), got"),
        (lambda: WAE((1, 8, 8), 4).decode(torch.zeros(2, 5)), "must have 4 features"),
        (lambda: Standardized([0.0], [0.0]), "`std` positive"),
        (lambda: Standardized.of(torch.zeros(1, 3)), "at least two rows"),
    ],
)
def test_wrong_generators_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    "generator",
    [
        small("VAE"),
        small("WAE"),
        VAE((1, 8, 8), 4, classes=3),
        Identity(),
        Standardized.of(torch.randn(20, 3) * torch.tensor([1.0, 0.0, 50.0])),
    ],
    ids=lambda g: type(g).__name__,
)
def test_save_then_load_is_equal(generator, tmp_path):
    path = tmp_path / "g.safetensors"
    generators.save(generator, path)
    again = generators.load(path)
    x = torch.rand(3, 3) if not isinstance(generator, nn.Module) else torch.rand(3, 1, 8, 8)
    c = [torch.eye(3)] if getattr(generator, "classes", 0) else []
    with torch.no_grad():
        z = generator.encode(x, *c)
        assert torch.equal(again.encode(x, *c), z)
        assert torch.equal(again.decode(z, *c), generator.decode(z, *c))
    if not c:
        check_generator(again, x)


def test_loading_does_not_touch_the_random_numbers(tmp_path):
    generators.save(small("VAE"), tmp_path / "g.safetensors")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    generators.load(tmp_path / "g.safetensors")
    assert torch.equal(torch.rand(1), expected)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "g.safetensors"
    with pytest.raises(MissingData, match="there is no generator at"):
        generators.load(path)
    generators.save(small("VAE"), path)
    tensors = load_file(path)
    for kind, config, message in [
        ("os", "{}", "must hold one of"),
        ("VAE", "{", "does not describe a generator"),
        ("VAE", '{"shape": [1, 8, 8], "features": 999999999}', "28 tensors are missing"),
        (
            "VAE",
            '{"shape": [1, 8, 8], "features": 999999999, "widths": [8, 16]}',
            r"`encoder.linear.weight` has the shape \(16, 64\), .* has \(1999999998, 64\)",
        ),
        ("VAE", '{"shape": [1, 8, 8], "features": 1' + "0" * 30 + "}", "from 1 to 1,099,511,627"),
        ("VAE", '{"shape": ' + "[" * 900 + "]" * 900 + "}", "nested more than 32 deep"),
        ("VAE", '{"shape": [1, 8, 8], "reconstruction_weight": "a"}', "must be a number, got 'a'"),
        ("VAE", '{"shape": "big"}', "does not describe a generator"),
        ("VAE", '{"unknown": 1}', "does not describe a generator"),
    ]:
        metadata = {"format": "leapfactual generator 1", "kind": kind, "config": config}
        save_file(tensors, path, metadata)
        with pytest.raises(InputError, match=message):
            generators.load(path)
    with pytest.raises(InputError, match="a GAN cannot be saved"):
        generators.save(GAN(nn.Identity(), 4, (1, 2, 2)), path)


@pytest.mark.parametrize("kind", ["VAE", "WAE"])
def test_a_generator_computes_in_the_type_of_its_weights(kind, tmp_path):
    path = tmp_path / "g.safetensors"
    generators.save(small(kind).double(), path)
    again = generators.load(path)
    x = DIGITS[:2]
    assert again.decode(again.encode(x.double())).dtype == torch.float64
    for call in (lambda: again.encode(x), lambda: again.decode(again.encode(x.double()).float())):
        with pytest.raises(InputError, match="computes in torch.float64, got torch.f"):
            call()


def test_standardized_rows():
    rows = torch.randn(100, 3) * torch.tensor([1.0, 100.0, 0.0]) + 7
    generator = Standardized.of(rows)
    z = generator.encode(rows)
    torch.testing.assert_close(z.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(generator.decode(z), rows)
    check_generator(generator, rows)


# -- one's own --


def test_a_generator_needs_encode_and_decode_and_nothing_else(tmp_path):
    class Doubled:
        def encode(self, x):
            return 2 * x

        def decode(self, z):
            return z / 2

    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)
    z, y = oracle.sample(5)
    check_generator(Doubled(), z / 2)
    explainer = lf.LeapFactual(
        Doubled(), lambda x: oracle.classifier(2 * x), oracle.flow(), [lf.blend(15, 0.2)]
    )
    assert explainer.explain(z / 2, 1 - y).valid.all()
    with pytest.raises(InputError, match="a Doubled cannot be saved: only Identity, "):
        generators.save(Doubled(), tmp_path / "g.safetensors")


def test_an_autoencoder_of_ones_own_needs_a_loss_to_be_trained(tmp_path):
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(64, 4), nn.Linear(4, 64)

        def encode(self, x):
            return self.down(x.flatten(1))

        def decode(self, z):
            return self.up(z).reshape(-1, 1, 8, 8)

        def loss(self, x, rng):
            x_hat = self.decode(self.encode(x))
            return (x_hat - x).square().mean(), x_hat

    losses = [
        fit_generator(Linear(), DIGITS[:100], epochs=3, checkpoint=tmp_path / "c.safetensors")
        for _ in range(2)
    ]
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == losses[0], "the second resumes where the first ended"


# -- GANs --


@pytest.fixture(scope="module")
def gan():
    """A small style-based GAN, trained on digits against a critic."""
    torch.manual_seed(0)
    mapping = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 8))
    synthesis = nn.Sequential(
        nn.Linear(8, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, 64),
        nn.Tanh(),
        nn.Unflatten(1, (1, 8, 8)),
    )
    critic = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    network = nn.Sequential(mapping, synthesis)
    optimizers = [
        torch.optim.Adam(n.parameters(), lr=1e-3, betas=(0.5, 0.99)) for n in (network, critic)
    ]
    for _ in range(600):
        real = 2 * DIGITS[torch.randint(len(DIGITS), (64,))] - 1
        fake = network(torch.randn(64, 8))
        loss = (1 - critic(real)).relu().mean() + (1 + critic(fake.detach())).relu().mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()
    return GAN(
        synthesis.eval(), 8, (1, 8, 8), mapping=mapping.eval(), inversion=Inversion(steps=200)
    )


def blurred(a, b):
    """A stand-in for a perceptual distance: differences at half the size."""
    return (nn.functional.avg_pool2d(a - b, 2)).square().flatten(1).mean(1)


def test_a_gan_makes_images_that_vary(gan):
    x = gan.decode(gan.sample(64))
    assert x.shape == (64, 1, 8, 8)
    assert x.min() >= 0
    assert x.max() <= 1
    assert x.std(0).mean() > 0.02


def test_inversion_recovers_generated_images(gan):
    """L2 and a perceptual distance between generated images and their re-synthesis."""
    x = gan.decode(gan.sample(16, seed=7)).detach()
    start = (gan.decode(gan.mean.expand(16, -1)) - x).square().flatten(1).mean(1).sqrt()
    how = Inversion(steps=300, perceptual=blurred)
    found = GAN(gan.synthesis, 8, (1, 8, 8), mapping=gan.mapping, inversion=how).invert(x)
    assert found.error.median() < 0.1 * start.median()
    assert (found.error < 0.02).double().mean() > 0.8
    assert found.perceptual.shape == (16,)
    torch.testing.assert_close(
        found.error, (gan.decode(found.z) - x).square().flatten(1).mean(1).sqrt()
    )


def test_a_trained_encoder_gives_inversion_a_better_start(gan):
    start = GAN(gan.synthesis, 8, (1, 8, 8), mapping=gan.mapping, inversion=Inversion(steps=0))
    x = gan.decode(gan.sample(32, seed=7)).detach()
    before = start.invert(x).error
    losses = start.fit_encoder(steps=150, learning_rate=3e-3)
    after = start.invert(x).error
    assert losses[-1] < 0.5 * losses[0]
    assert after.mean() < 0.6 * before.mean()


def test_inverted_rows_do_not_depend_on_each_other(gan):
    x = gan.decode(gan.sample(4, seed=7)).detach()
    torch.testing.assert_close(gan.encode(x)[:1], gan.encode(x[:1]), rtol=1e-3, atol=1e-3)
    check_generator(gan, x, tolerance=1e-2)


def test_a_gan_without_mapping_is_walked_in_its_noise(gan):
    plain = GAN(gan.synthesis, 8, (1, 8, 8))
    assert torch.equal(
        plain.sample(3), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    )


def test_a_saturated_start_does_not_stop_an_inversion():
    synthesis = nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, (1, 4, 4)))
    torch.manual_seed(0)
    with torch.no_grad():
        synthesis[0].bias.fill_(5.0)
        synthesis[0].weight.fill_(1.0)
    bright = GAN(synthesis, 2, (1, 4, 4), inversion=Inversion(steps=300, learning_rate=0.3))
    x = torch.full((1, 1, 4, 4), 0.3)
    before = (bright.decode(bright.mean) - x).square().mean().sqrt()
    assert before > 0.6
    assert bright.invert(x).error.item() < 0.01


def test_one_image_left_over_does_not_stop_training():
    vae = VAE((1, 8, 8), 4)
    assert len(fit_generator(vae, torch.rand(33, 1, 8, 8), epochs=1, batch_size=32)) == 1


def test_other_pixels_or_another_model_do_not_resume(tmp_path):
    path, x = tmp_path / "c.safetensors", torch.rand(40, 1, 8, 8)
    fit_generator(small("VAE"), x, epochs=1, checkpoint=path)
    other = x.clone()
    other[20] = 0
    with pytest.raises(InputError, match="written for other data"):
        fit_generator(small("VAE"), other, epochs=1, checkpoint=path)
    with pytest.raises(InputError, match="'reconstruction_weight': 4000.0"):
        heavier = VAE((1, 8, 8), 8, widths=(8, 16), reconstruction_weight=7.0)
        fit_generator(heavier, x, epochs=1, checkpoint=path)


def test_a_frozen_layer_does_not_spoil_the_checkpoint(tmp_path):
    def train(**options):
        model = small("VAE")
        model.encoder.convolutions[0].requires_grad_(False)
        losses = fit_generator(model, DIGITS[:100], epochs=3, batch_size=50, **options)
        return model, losses

    def stop(epoch):
        raise KeyboardInterrupt

    _, losses = train()
    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path / "c.safetensors", on_epoch=stop)
    assert train(checkpoint=tmp_path / "c.safetensors")[1] == losses


def test_wrong_gans_are_named(gan):
    with pytest.raises(InputError, match=r"`values` must be \(low, high\), got \(1, 1\)"):
        GAN(gan.synthesis, 8, (1, 8, 8), values=(1, 1))
    with pytest.raises(InputError, match=r"synthesis must give images of shape \(1, 9, 9\)"):
        GAN(gan.synthesis, 8, (1, 9, 9)).decode(torch.zeros(2, 8))
    with pytest.raises(InputError, match="must have 8 features"):
        gan.decode(torch.zeros(2, 9))
    with pytest.raises(InputError, match=r"mapping must give latents of shape \(B, 9\)"):
        GAN(gan.synthesis, 9, (1, 8, 8), mapping=gan.mapping, noise=8)
    blind = GAN(lambda z: gan.synthesis(z).detach(), 8, (1, 8, 8))
    with pytest.raises(NeedsGradient, match="differentiable synthesis.*encoder"):
        blind.invert(DIGITS[:1])


# -- adapters --


@pytest.mark.filterwarnings("ignore")
def test_openvino_models_answer_and_give_no_gradient(tmp_path):
    openvino = pytest.importorskip("openvino")
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4))).eval()
    for name, shape in (("dynamic", [-1, 4]), ("single", [1, 4])):
        model = openvino.convert_model(network, example_input=torch.zeros(1, 4), input=shape)
        openvino.save_model(model, tmp_path / f"{name}.xml", compress_to_fp16=False)
        synthesis = from_openvino(tmp_path / f"{name}.xml")
        z = torch.randn(5, 4)
        torch.testing.assert_close(synthesis(z), network(z).detach(), rtol=1e-4, atol=1e-4)
    gan = GAN(synthesis, 4, (1, 4, 4))
    assert gan.decode(z).shape == (5, 1, 4, 4)
    with pytest.raises(NeedsGradient, match="Pass an encoder"):
        gan.encode(torch.rand(1, 1, 4, 4))
    (tmp_path / "broken.xml").write_text("<net")
    with pytest.raises(InputError, match="is no OpenVINO model"):
        from_openvino(tmp_path / "broken.xml")
    with pytest.raises(MissingData, match="there is no OpenVINO model"):
        from_openvino(tmp_path / "nothing.xml")


def test_openvino_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "m.xml").write_text("")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"leapfactual\[openvino\]"):
        from_openvino(tmp_path / "m.xml")


@pytest.mark.filterwarnings("ignore")
def test_latent_diffusion_autoencoders():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=2,
    ).eval()
    generator = LatentDiffusionVAE(model, (3, 16, 16))
    x = torch.rand(3, 3, 16, 16)
    check_generator(generator, x)
    assert generator.encode(x).shape == (3, 2 * 8 * 8)
    with pytest.raises(InputError, match="cannot halve images of that size"):
        LatentDiffusionVAE(model, (3, 15, 15))


def test_stylegan_files_are_opened_only_when_trusted(tmp_path, monkeypatch):
    """A folder with the interface of the published code, and a file that it opens."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "legacy.py").write_text(
        "import torch\n"
        "opened = []\n"
        "class Mapping(torch.nn.Linear):\n"
        "    def forward(self, z, c):\n"
        "        return super().forward(z)[:, None].repeat(1, 3, 1)\n"
        "class Synthesis(torch.nn.Module):\n"
        "    def forward(self, ws, noise_mode):\n"
        "        assert noise_mode == 'const' and ws.shape[1] == 3\n"
        "        return torch.tanh(ws.mean(1)).reshape(-1, 1, 2, 2).repeat(1, 3, 2, 2)\n"
        "class G(torch.nn.Module):\n"
        "    z_dim, w_dim, num_ws, img_channels, img_resolution = 6, 4, 3, 3, 4\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.mapping, self.synthesis = Mapping(6, 4), Synthesis()\n"
        "def load_network_pkl(file):\n"
        "    opened.append(file.read())\n"
        "    return {'G_ema': G()}\n"
    )
    path = tmp_path / "net.pkl"
    path.write_bytes(b"anything")
    monkeypatch.delitem(sys.modules, "legacy", raising=False)
    with pytest.raises(InputError, match=r"is a pickle.*SHA-256 is ([0-9a-f]{64})") as error:
        stylegan(path, tmp_path / "code")
    assert "legacy" not in sys.modules, "nothing was run"
    trust = str(error.value).split("trust='")[1][:64]
    gan = stylegan(path, tmp_path / "code", trust=trust)
    assert isinstance(sys.modules["legacy"], types.ModuleType)
    assert gan.sample(2).shape == (2, 4)
    assert gan.decode(gan.sample(2)).shape == (2, 3, 4, 4)
    assert gan.invert(gan.decode(gan.sample(2))).error.max() < 0.05
    monkeypatch.delitem(sys.modules, "legacy")
    with pytest.raises(MissingData, match=r"there is no legacy\.py"):
        stylegan(path, tmp_path)
    with pytest.raises(MissingData, match="there is no StyleGAN file"):
        stylegan(tmp_path / "other.pkl", tmp_path / "code")
