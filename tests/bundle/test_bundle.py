"""Bundles: whole, damaged, hostile, and for the right classifier only."""

import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC

import leapfactual as lf
from leapfactual.bundle.manifest import MANIFEST, read_manifest, sha256
from leapfactual.classifiers import Preprocessing
from leapfactual.data import squares
from leapfactual.errors import InputError, LeapError, MissingData
from leapfactual.generators import VAE, Identity, Standardized

PLAN = [lf.blend(15, 0.1), lf.inject(3, lift=0.0, land=0.1)]
NAMES = ["blue", "yellow", "green", "red"]
# Between two of the means that 64 pixels of 256 shades can have, so that no sum is a tie.
THRESHOLD = 0.50003


def made(generator=None):
    x, _ = squares.sample(200)
    torch.manual_seed(0)
    flow = lf.Flow(lf.MLPField(2, 4, width=8, depth=1))
    return lf.Bundle.make(
        generator or Identity(),
        flow,
        squares.quadrant,
        x,
        classes=NAMES,
        plan=PLAN,
        classifier_name="the quadrant",
        preprocessing=Preprocessing(size=(8, 8), mean=(0.5,)),
        training={"epochs": 3},
    )


def with_images():
    torch.manual_seed(0)
    images = torch.rand(80, 1, 8, 8)
    bright = lf.classifiers.from_labels(lambda x: (x.mean((1, 2, 3)) > THRESHOLD).long(), 2)
    vae = VAE((1, 8, 8), 4, widths=(4, 4))
    flow = lf.Flow(lf.MLPField(4, 2, width=8, depth=1))
    return lf.Bundle.make(vae, flow, bright, images, classes=["dark", "bright"], plan=PLAN), bright


MODULE = """
def label(x):
    return (x.mean((1, 2, 3)) > 0.50003).long()
"""


def forms_of_a_classifier(folder):
    """Yields the same classifier in every form that somebody may have it in."""

    class Network(torch.nn.Module):
        def forward(self, x):
            bright = x.flatten(1).sum(1) - 64 * THRESHOLD
            return 1e4 * torch.stack([-bright, bright], 1)

    def label(x):
        return (x.mean((1, 2, 3)) > THRESHOLD).long()

    (folder / "mine.py").write_text(MODULE)
    estimator = LinearSVC().fit(np.eye(2, 64), [0, 1])
    estimator.coef_[:], estimator.intercept_[:] = 1.0, -64 * THRESHOLD
    make, tensor = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    weights = {
        "w": torch.tensor([[-1e4, 1e4]]).expand(64, 2),
        "b": torch.tensor([64e4, -64e4]) * THRESHOLD,
    }
    graph = onnx.helper.make_graph(
        [make("Flatten", ["x"], ["rows"]), make("Gemm", ["rows", "w", "b"], ["logits"])],
        "bright",
        [tensor("x", onnx.TensorProto.FLOAT, ["n", 1, 8, 8])],
        [tensor("logits", onnx.TensorProto.FLOAT, ["n", 2])],
        [onnx.numpy_helper.from_array(w.numpy(), name) for name, w in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, folder / "mine.onnx")
    yield Network()
    yield estimator
    yield label
    yield lambda x: label(x).numpy()
    yield lambda x: label(x).tolist()
    yield lambda x: [["dark", "bright"][k] for k in label(x).tolist()]
    yield lambda x: np.eye(2)[label(x).numpy()]
    yield f"{folder / 'mine.py'}:label"
    yield folder / "mine.onnx"


def test_a_classifier_is_taken_in_every_form(tmp_path):
    bundle, bright = with_images()
    x = torch.rand(12, 1, 8, 8)
    expected = bundle.explainer(bright, plan="blend(3, 0.5)").explain(x, target=1)
    for form in forms_of_a_classifier(tmp_path):
        explainer = bundle.explainer(form, plan="blend(3, 0.5)")
        found = explainer.explain(x, target="Bright")
        assert torch.equal(found.label, expected.label), form
        torch.testing.assert_close(found.counterfactual, expected.counterfactual)
    assert found.classes == ("dark", "bright")
    with pytest.raises(InputError, match="`int` must be a function of images, a torch module"):
        bundle.explainer(3)


def test_an_explainer_is_as_reliable_as_it_is_asked_to_be():
    bundle, bright = with_images()
    plans = [(lf.blend(n, 0.2),) for n in (3, 5, 9)]
    front = [lf.leaps.RatedPlan(plan, r, {}) for plan, r in zip(plans, (0, 0.4, 1), strict=True)]
    bundle = replace(bundle, front=tuple(front), fast=front[0])
    assert bundle.explainer(bright, reliability=1).plan == list(plans[2])
    assert bundle.explainer(bright, reliability=0.3).plan == list(plans[1])
    assert bundle.explainer(bright, fast=True).plan == list(plans[0])
    assert bundle.explainer(bright).plan == list(bundle.plan)
    with pytest.raises(InputError, match="one of them"):
        bundle.explainer(bright, reliability=1, fast=True)


def test_save_then_load_is_equal(tmp_path):
    bundle, bright = with_images()
    bundle.save(tmp_path / "b")
    again = lf.Bundle.load(tmp_path / "b")
    assert again.classes == ("dark", "bright")
    assert again.plan == tuple(PLAN)
    assert torch.equal(again.probes, bundle.probes)
    assert torch.equal(again.answers, bundle.answers)
    x = torch.rand(5, 1, 8, 8)
    first, second = (b.explainer(bright).explain(x, 1) for b in (bundle, again))
    assert torch.equal(first.z_counterfactual, second.z_counterfactual)
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "flow.safetensors",
        "generator.safetensors",
        "manifest.json",
        "probes.safetensors",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_equal_bundles_are_equal_files_in_every_process(tmp_path):
    code = """
import sys, torch, leapfactual as lf
torch.manual_seed(0)
flow = lf.Flow(lf.MLPField(2, 4, width=8))
lf.Bundle.make(
    lf.generators.Identity(), flow, lf.data.squares.quadrant, torch.rand(9, 2),
    classes="abcd", plan=[lf.blend(5, 0.1)], training={"b": 1, "a": 2},
).save(sys.argv[1])
"""
    for n in range(2):
        environment = {**os.environ, "PYTHONHASHSEED": str(n)}
        call = [sys.executable, "-c", code, tmp_path / str(n)]
        subprocess.run(call, env=environment, check=True)
    one, other = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "01")
    assert one == other
    assert "flow.safetensors" in one


def test_tables_and_records(tmp_path):
    bundle = made(Standardized.of(squares.sample(50)[0]))
    bundle.save(tmp_path / "b")
    again = lf.Bundle.load(tmp_path / "b")
    assert isinstance(again.generator, Standardized)
    assert again.classifier_name == "the quadrant"
    assert again.preprocessing == Preprocessing(size=(8, 8), mean=(0.5,))
    assert again.training == {"epochs": 3}
    assert str(again) == "Bundle(Standardized, 2 features, 4 classes)"


def test_another_classifier_is_refused_unless_asked_for():
    bundle = made()
    assert bundle.recognizes(squares.quadrant)
    mirrored = lambda x: squares.quadrant(-x)  # noqa: E731
    assert not bundle.recognizes(mirrored)
    with pytest.raises(
        InputError, match=r"made for the quadrant.*only 0% of 64 probe.*force=True"
    ):
        bundle.explainer(mirrored)
    assert isinstance(bundle.explainer(mirrored, force=True), lf.LeapFactual)
    with pytest.raises(
        InputError, match=r"knows 4 classes, blue.*answers 64 images with 2 columns"
    ):
        bundle.explainer(lambda x: torch.eye(2)[[0] * len(x)])


def test_the_fingerprint_tells_classifiers_of_digits_apart():
    """Four good classifiers agree on nearly every digit; the probes are where they do not."""
    data = load_digits()
    x = torch.tensor(data.images / 16).float()[:, None]
    order = data.target.argsort(kind="stable")
    rows = x.flatten(1).numpy()
    kinds = {
        "svm": LinearSVC(C=0.1, random_state=0),
        "neighbours": KNeighborsClassifier(),
        "forest": RandomForestClassifier(30, random_state=0),
        "logistic": LogisticRegression(max_iter=300),
    }
    made_of = {k: lf.classifiers.from_sklearn(m.fit(rows, data.target)) for k, m in kinds.items()}
    vae = VAE((1, 8, 8), 4, widths=(4, 4))
    for name, classifier in made_of.items():
        flow = lf.Flow(lf.MLPField(4, 10, width=8, depth=1))
        names = [str(k) for k in range(10)]
        bundle = lf.Bundle.make(vae, flow, classifier, x[order], classes=names, plan=PLAN)
        assert [k for k, c in made_of.items() if bundle.recognizes(c)] == [name]
        assert not bundle.recognizes(lambda x: torch.eye(10)[[0] * len(x)])
        with pytest.raises(InputError, match="NaN"):
            bundle.recognizes(lambda x: torch.full((len(x), 10), torch.nan))


def test_generator_and_flow_must_fit():
    x, _ = squares.sample(8)
    wider = lf.Flow(lf.MLPField(3, 4))
    with pytest.raises(InputError, match=r"the flow has 3 features.*encodes \(1, 2\) to \(1, 2\)"):
        lf.Bundle.make(Identity(), wider, squares.quadrant, x, classes=NAMES, plan=PLAN)
    images = torch.rand(8, 1, 8, 8)
    cvae = lf.generators.VAE((1, 8, 8), 4, classes=2)
    flow = lf.Flow(lf.MLPField(4, 2))
    bright = lf.classifiers.from_labels(lambda x: (x.mean((1, 2, 3)) > THRESHOLD).long(), 2)
    for side in ("encode", "decode"):
        wrong = Identity()
        setattr(wrong, side, lambda _: None)
        flat = lf.Flow(lf.MLPField(2, 4))
        with pytest.raises(InputError, match=f"{side} must give one row .* got NoneType"):
            lf.Bundle.make(wrong, flat, squares.quadrant, x, classes=NAMES, plan=PLAN)
    with pytest.raises(InputError, match="does not take the probes"):
        lf.Bundle.make(cvae, flow, bright, images, classes=["a", "b"], plan=PLAN)


@pytest.mark.parametrize(
    "record", [{"loss": float("nan")}, {"z": torch.zeros(2)}, {"x": "a" * 10**6}]
)
def test_records_that_json_cannot_hold_are_refused_before_anything_is_written(record):
    x, _ = squares.sample(8)
    flow = lf.Flow(lf.MLPField(2, 4))
    with pytest.raises(InputError, match="`training`"):
        lf.Bundle.make(
            Identity(), flow, squares.quadrant, x, classes=NAMES, plan=PLAN, training=record
        )


def test_a_field_of_ones_own_and_the_agreement_come_back(tmp_path):
    x, _ = squares.sample(40)
    oracle = lf.testing.GaussianOracle(torch.tensor(squares.CENTRES), 0.2)
    found = lf.agreement(x, Identity(), squares.quadrant)
    bundle = lf.Bundle.make(
        Identity(),
        oracle.flow(),
        squares.quadrant,
        x,
        classes=NAMES,
        plan=PLAN,
        agreement=found.to_json(),
    )
    bundle.save(tmp_path / "b")
    with pytest.raises(InputError, match="pass field="):
        lf.Bundle.load(tmp_path / "b")
    again = lf.Bundle.load(tmp_path / "b", field=oracle.flow().field)
    assert again.agreement["overall"] == 1


def test_folders_with_other_things_in_them_are_not_replaced(tmp_path):
    made().save(tmp_path / "b")
    (tmp_path / "b" / "thesis.tex").write_text("dear")
    with pytest.raises(InputError, match=r"also holds thesis\.tex, so it is not replaced"):
        made().save(tmp_path / "b", overwrite=True)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(InputError, match="is no bundle, so it is not replaced"):
        made().save(tmp_path / "app", overwrite=True)


def test_many_savers_of_one_folder_leave_a_whole_bundle(tmp_path):
    bundle = made()

    def save(_):
        try:
            bundle.save(tmp_path / "b", overwrite=True)
        except (OSError, LeapError):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(save, range(16)))
    assert lf.Bundle.load(tmp_path / "b").recognizes(squares.quadrant)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_generator_of_ones_own_is_passed_in(tmp_path):
    class Own(Identity):
        pass

    made(Own()).save(tmp_path / "b")
    with pytest.raises(InputError, match=r"maker's own, Own\. Pass it"):
        lf.Bundle.load(tmp_path / "b")
    assert isinstance(lf.Bundle.load(tmp_path / "b", generator=Own()).generator, Own)


def test_an_existing_folder_is_not_overwritten(tmp_path):
    made().save(tmp_path / "b")
    with pytest.raises(InputError, match="there is something at .* overwrite=True"):
        made().save(tmp_path / "b")
    made().save(tmp_path / "b", overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.txt").write_text("dear")
    with pytest.raises(InputError, match="is no bundle, so it is not replaced"):
        made().save(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.txt").read_text() == "dear"


def test_a_failed_write_leaves_the_old_bundle_and_nothing_else(tmp_path, monkeypatch):
    made().save(tmp_path / "b")
    before = (tmp_path / "b" / MANIFEST).read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lf.Flow, "save", full)
    for folder in ("b", "new"):
        with pytest.raises(OSError, match="No space left"):
            made().save(tmp_path / folder, overwrite=True)
    assert (tmp_path / "b" / MANIFEST).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def rewritten(folder, change):
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.update(format="leapfactual bundle 9"),
            "must describe a `leapfactual bundle 2`",
        ),
        (lambda m: m.pop("plan"), "does not describe a bundle .*plan"),
        (
            lambda m: m.update(plan=[{"kind": "leaps", "n": 5, "lift": 1, "land": 0}]),
            "removes more than it adds",
        ),
        (lambda m: m.update(plan=7), "does not describe a bundle"),
        (lambda m: m.update(classes=["a"]), "each of the flow's 4 classes"),
        (lambda m: m.update(classes="abcd"), "does not describe a bundle"),
        (lambda m: m["files"].pop("flow.safetensors"), "names the wrong files"),
        (lambda m: m["files"].update({"../../x": {}}), "names the wrong files"),
        (lambda m: m.update(features=4096), "speaks of 4096 features"),
        (lambda m: m.update(shape=[3, 999, 999]), r"images of shape \[3, 999, 999\]"),
        (
            lambda m: m.update(plan=[{"kind": "leaps", "n": 5, "lift": 0, "land": 10**400}]),
            "does not describe|must be",
        ),
        (lambda m: m.pop("shape"), "does not describe a bundle"),
        (lambda m: m.update(training=[["a"]]), "does not describe a bundle"),
        (lambda m: m["files"]["flow.safetensors"].update(sha256=5), "damaged or exchanged"),
        (lambda m: m["files"]["flow.safetensors"].update(sha256="0" * 64), "damaged or exchanged"),
        (lambda m: m["files"]["flow.safetensors"].update(bytes=-1), "damaged or exchanged"),
        (lambda m: m.update(preprocessing={"stretch": "boom"}), "`stretch` must be one of"),
        (lambda m: m.update(preprocessing={"mean": [["a"]]}), "`mean` must be a tuple of numbers"),
        (lambda m: m.update(preprocessing={"low": "a"}), "`low` must be a number, got 'a'"),
        (lambda m: m.update(files=None), "must name its `files`"),
        (lambda m: m.update(files=5), "must name its `files`"),
    ],
)
def test_wrong_manifests_are_named(tmp_path, change, message):
    made().save(tmp_path / "b")
    rewritten(tmp_path / "b", change)
    with pytest.raises(InputError, match=message):
        lf.Bundle.load(tmp_path / "b")


@pytest.mark.parametrize("key", ["training", "agreement", "preprocessing", "classifier_name"])
@pytest.mark.parametrize("depth", [33, 900, 985, 100_000])
def test_manifests_that_are_nested_too_deep_are_named(tmp_path, key, depth):
    """Between 980 and 990, Python reads such a manifest and fails when it is written again."""
    made().save(tmp_path / "b")
    rewritten(tmp_path / "b", lambda m: m.update({key: {"mean": "DEEP"}}))
    path = tmp_path / "b" / MANIFEST
    path.write_text(path.read_text().replace('"DEEP"', "[" * depth + "]" * depth))
    with pytest.raises(InputError, match="nested more than 32 deep"):
        lf.Bundle.load(tmp_path / "b")


def test_missing_truncated_swapped_and_oversized_files_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "b"
    with pytest.raises(MissingData, match="there is no bundle at"):
        lf.Bundle.load(folder)
    made().save(folder)
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}

    def restore():
        for name, content in whole.items():
            (folder / name).write_bytes(content)

    (folder / "flow.safetensors").unlink()
    with pytest.raises(MissingData, match=r"has no file flow\.safetensors"):
        lf.Bundle.load(folder)
    (folder / "flow.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(MissingData, match=r"has no file flow\.safetensors"):
        lf.Bundle.load(folder)
    (folder / "flow.safetensors").unlink()
    restore()
    (folder / "flow.safetensors").write_bytes(whole["flow.safetensors"][:-1])
    with pytest.raises(InputError, match="damaged or exchanged"):
        lf.Bundle.load(folder)
    (folder / "flow.safetensors").write_bytes(whole["probes.safetensors"])
    with pytest.raises(InputError, match="damaged or exchanged"):
        lf.Bundle.load(folder)
    restore()
    monkeypatch.setattr("leapfactual.bundle.manifest.MAX_FILE_BYTES", 100)
    with pytest.raises(InputError, match="too many for a bundle"):
        lf.Bundle.load(folder)
    for content, message in [
        (b"{" * 100_000, "no whole JSON"),
        (b"[" * 100_000, "no whole JSON"),
        (b"\xff\xfe", "no whole JSON"),
        (b"[]", "got `list`"),
        (b" " * 2_000_000, "too many for a manifest"),
    ]:
        (folder / MANIFEST).write_bytes(content)
        with pytest.raises(InputError, match=message):
            lf.Bundle.load(folder)


def test_thousands_of_mutated_bundles_are_read_or_refused(tmp_path):
    """Any byte of any file may change: a bundle is read whole, or a LeapError says why not."""
    made(Standardized.of(squares.sample(50)[0])).save(tmp_path / "b")
    whole = {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()}
    rng = random.Random(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(2000):
        name = rng.choice([MANIFEST, MANIFEST, *whole])
        data = bytearray(whole[name])
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            place = rng.randrange(len(data))
            if kind < 0.6:
                data[place] = rng.randrange(256)
            elif kind < 0.8:
                del data[place : place + rng.randint(1, 20)]
            else:
                data[place:place] = bytes(rng.choice([b"null", b"1e999", b"[", b"-1", b'"']))
        (tmp_path / "b" / name).write_bytes(data)
        try:
            lf.Bundle.load(tmp_path / "b")
            outcomes["read"] += 1
        except LeapError:
            outcomes["refused"] += 1
        (tmp_path / "b" / name).write_bytes(whole[name])
    assert outcomes["refused"] > 1000
    assert lf.Bundle.load(tmp_path / "b").classes == tuple(NAMES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a", "b"]}, r"each of the flow's 4 classes once, got \['a', 'b'\]"),
        ({"classes": ["a"] * 4}, "once"),
        ({"plan": []}, "`plan` must be a list of stages"),
        ({"images": torch.zeros(0, 2)}, "at least one image"),
    ],
)
def test_wrong_bundles_are_named(change, message):
    x, _ = squares.sample(8)
    flow = lf.Flow(lf.MLPField(2, 4))
    arguments = {"images": x, "classes": NAMES, "plan": PLAN, **change}
    with pytest.raises(InputError, match=message):
        lf.Bundle.make(Identity(), flow, squares.quadrant, **arguments)


def test_a_copy_is_as_good(tmp_path):
    made().save(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    assert lf.Bundle.load(tmp_path / "c").recognizes(squares.quadrant)
    assert read_manifest(tmp_path / "c")["classifier_name"] == "the quadrant"


def test_half_precision_makes_a_small_bundle_that_computes_in_full(tmp_path):
    torch.manual_seed(0)
    flow = lf.Flow(lf.MLPField(2, 3))
    flow.standardize(3000.7 + 0.1 * torch.randn(100, 2))
    flow.save(tmp_path / "full")
    flow.save(tmp_path / "half", half=True)
    sizes = [(tmp_path / name).stat().st_size for name in ("full", "half")]
    assert sizes[1] < 0.7 * sizes[0]
    again = lf.Flow.load(tmp_path / "half")
    torch.testing.assert_close(again.mean, flow.mean, rtol=1e-6, atol=0)
    z, c = 3000.7 + 0.1 * torch.randn(4, 2), flow.one_hot(torch.zeros(4, dtype=torch.long))
    assert again.lift(z, c).dtype == torch.float32
    torch.testing.assert_close(again.lift(z, c), flow.lift(z, c), rtol=0, atol=1e-2)
    bundle = made()
    bundle.save(tmp_path / "bundle", half=True)
    assert lf.Bundle.load(tmp_path / "bundle").plan == bundle.plan


def test_a_flow_that_was_not_halved_keeps_its_precision(tmp_path):
    lf.Flow(lf.MLPField(2, 3)).bfloat16().save(tmp_path / "flow")
    assert next(lf.Flow.load(tmp_path / "flow").parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["probes", "answers"])
def test_probes_in_a_type_for_storage_are_named(tmp_path, name):
    made().save(tmp_path / "b")
    path = tmp_path / "b" / "probes.safetensors"
    tensors = load_file(path)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, path, {"format": "leapfactual probes 1"})
    record = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    rewritten(tmp_path / "b", lambda m: m["files"].update({path.name: record}))
    with pytest.raises(InputError, match=f"`{name}` must be floating.*torch.float8_e4m3fn"):
        lf.Bundle.load(tmp_path / "b")


def test_a_manifest_that_is_a_link_is_not_followed(tmp_path):
    made().save(tmp_path / "b")
    (tmp_path / "b" / "manifest.json").rename(tmp_path / "elsewhere.json")
    (tmp_path / "b" / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(MissingData, match="it has no manifest.json"):
        lf.Bundle.load(tmp_path / "b", generator=Identity())
