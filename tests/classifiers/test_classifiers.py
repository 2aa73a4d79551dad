"""Classifiers: adapters against the originals, preprocessing, and wrappers of ones that fail."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import leapfactual as lf
from leapfactual.classifiers import (
    Cached,
    Counted,
    Preprocessing,
    Retrying,
    clip_preprocessing,
    from_clip,
    from_labels,
    from_logits,
    from_onnx,
    from_probabilities,
    from_sklearn,
    load_clip,
    open_classifier,
)
from leapfactual.classifiers.loading import import_object
from leapfactual.errors import ClassifierError, InputError, MissingData, MissingExtra
from leapfactual.testing import check_classifier

X = torch.randn(4, 2)
IMAGES = torch.rand(4, 1, 8, 8)


def test_logits_become_probabilities():
    network = torch.nn.Linear(2, 3).eval()
    check_classifier(from_logits(network), X, classes=3)
    torch.testing.assert_close(from_logits(network)(X), network(X).softmax(1))


def test_half_precision_networks_give_whole_probabilities():
    network = torch.nn.Linear(2, 10).to(torch.bfloat16)
    p = from_logits(lambda x: network(x.to(torch.bfloat16)))(X)
    torch.testing.assert_close(p.sum(1), torch.ones(4))


@pytest.mark.parametrize("kind", [list, torch.tensor, lambda y: torch.tensor(y).numpy()])
def test_labels_become_one_hot_rows(kind):
    classifier = from_labels(lambda x: kind([2] * len(x)), classes=3)
    check_classifier(classifier, X, classes=3)
    assert classifier(X).tolist() == [[0, 0, 1]] * 4


def test_arrays_of_probabilities():
    classifier = from_probabilities(lambda x: np.full((len(x), 2), 0.5))
    check_classifier(classifier, X, classes=2)
    assert classifier(X).dtype == torch.float32


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (from_logits(lambda x: x[0]), r"logits of shape \(4, K\), got .* shape \(2,\)"),
        (from_logits(lambda x: {"logits": x}), "got one dict"),
        (from_logits(lambda x: x[:, :1]), r"several classes, got 1.*torch.cat"),
        (from_labels(lambda x: [0] * 3, 2), r"one whole number per image, 4 here, got .* \(3,\)"),
        (from_labels(lambda x: [0.5] * 4, 2), r"got torch\.float32"),
        (
            from_labels(lambda x: [0, 1, 2, 0], 2),
            "the label 2 is not a class: there are 2, 0 to 1",
        ),
        (from_labels(lambda x: [0, 1, -1, 0], 2), "the label -1 is not a class"),
        (from_labels(lambda x: ["cat"] * 4, 2), "must answer with numbers.*got a list of str"),
        (from_labels(lambda x: None, 2), "must answer with numbers.*got None"),
        (from_labels(lambda x: 1, 2), "got one int"),
        (from_logits(lambda x: torch.eye(2)[[0] * 4].to_sparse()), "got .*sparse"),
        (from_logits(lambda x: torch.ones(4, 2) * 1j), "got a tensor of torch.complex64"),
        (from_probabilities(lambda x: [[1, 0], [1]] * 2), "got a list of lists of different"),
        (from_probabilities(lambda x: [{"cat": 1.0}] * 4), "got a list of dict.*the ZipMap"),
        (from_probabilities(lambda x: np.array([object()] * 4)), "got an array of object"),
        (
            from_probabilities(lambda x: np.zeros(4)),
            r"rows of probabilities, \(4, K\), got \(4,\)",
        ),
        (from_probabilities(lambda x: np.full((4, 2), np.nan)), "NaN or infinite"),
        (from_probabilities(lambda x: np.ones((4, 2))), "sums off"),
    ],
)
def test_wrong_answers_are_named(classifier, message):
    with pytest.raises(InputError, match=message):
        classifier(X)


@pytest.mark.parametrize("x", [X.byte(), X > 0, X * 1j, X.to_sparse(), X.numpy(), None])
@pytest.mark.parametrize(
    "classifier",
    [
        from_logits(lambda x: x[:, :2]),
        from_labels(lambda x: [0] * len(x), 2),
        from_probabilities(lambda x: np.full((len(x), 2), 0.5), Preprocessing(size=(2, 2))),
    ],
)
def test_images_of_another_type_are_named(classifier, x):
    with pytest.raises(InputError, match="`x` must be floating point, got"):
        classifier(x)


def test_wrong_number_of_classes_is_named():
    with pytest.raises(InputError, match="`classes` must be .* got 0"):
        from_labels(lambda x: x, 0)


# -- by name --


def test_by_name_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "class Zoo:\n"
        "    @staticmethod\n"
        "    def lion(x):\n"
        "        return torch.eye(2)[[1] * len(x)]\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert import_object("my_models:Zoo.lion")(X).tolist() == [[0, 1]] * 4
    assert sys.path == before
    with pytest.raises(
        InputError, match="`my_models` has no `Zoo.tiger`; it has Zoo, number, torch"
    ):
        import_object("my_models:Zoo.tiger")
    assert import_object("my_models:number") == 3
    (tmp_path / "needs.py").write_text("import need")
    with pytest.raises(ClassifierError, match="No module named 'need'. Install need.") as raised:
        import_object("needs:x")
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    with pytest.raises(MissingData, match="there is no module `no_models`"):
        import_object("no_models:x")
    with pytest.raises(InputError, match="must be `package.module:attribute`"):
        import_object("my_models")


# -- other libraries --


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return torch.tensor(data.images / 16).float()[:, None], data.target


def test_scikit_learn_with_and_without_probabilities(digits):
    x, y = digits
    rows = x.flatten(1).numpy()
    soft = LogisticRegression(max_iter=200).fit(rows, y)
    hard = LinearSVC().fit(rows, np.array(list("abcdefghij"))[y])
    check_classifier(from_sklearn(soft), x[:20], classes=10)
    check_classifier(from_sklearn(hard), x[:20], classes=10)
    np.testing.assert_allclose(from_sklearn(soft)(x[:9]), soft.predict_proba(rows[:9]), atol=1e-6)
    names = np.array(list("abcdefghij"))[from_sklearn(hard)(x[:50]).argmax(1)]
    assert (names == hard.predict(rows[:50])).all()
    with pytest.raises(InputError, match="LinearSVC is not fitted"):
        from_sklearn(LinearSVC())


def linear_onnx(onnx, weight):
    """A model of one layer."""
    node = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [node("Flatten", ["x"], ["flat"]), node("Gemm", ["flat", "w"], ["logits"], transB=1)],
        "linear",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, 8, 8])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(weight.numpy(), "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


@pytest.mark.filterwarnings("ignore")
def test_onnx_weights_come_from_files_of_the_model_only(tmp_path, monkeypatch):
    """Any file of the machine could be named as that of the weights."""
    onnx = pytest.importorskip("onnx")
    weight = torch.randn(3, 64)
    outside = {"save_as_external_data": True, "size_threshold": 0}
    for name, location in (("own.onnx", "own.onnx.data"), ("other.onnx", "secret.txt")):
        model = linear_onnx(onnx, weight)
        onnx.save_model(model, tmp_path / name, location=location, **outside)
    wanted = (IMAGES.flatten(1) @ weight.T).softmax(1)
    found = from_onnx(tmp_path / "own.onnx")(IMAGES)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "other.onnx", "other.onnx"):
        with pytest.raises(InputError, match=r"other.onnx is no ONNX model .*secret.txt"):
            from_onnx(path)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_model_that_ends_in_a_zip_map_is_named(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    numbers = helper.make_tensor_value_info("x", kinds.FLOAT, ["n", 2])
    row = helper.make_map_type_proto(kinds.INT64, helper.make_tensor_type_proto(kinds.FLOAT, None))
    rows = helper.make_value_info("rows", helper.make_sequence_type_proto(row))
    node = helper.make_node(
        "ZipMap", ["x"], ["rows"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    opset = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "zip", [numbers], [rows])
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"m.onnx must .* got a list of dict.*the ZipMap"):
        from_onnx(tmp_path / "m.onnx")(X)


@pytest.mark.filterwarnings("ignore")
def test_onnx_files(tmp_path):
    onnx = pytest.importorskip("onnx")
    weight = torch.randn(3, 64)
    onnx.save(linear_onnx(onnx, weight), tmp_path / "m.onnx")
    classifier = from_onnx(tmp_path / "m.onnx")
    check_classifier(classifier, IMAGES, classes=3)
    torch.testing.assert_close(
        classifier(IMAGES), (IMAGES.flatten(1) @ weight.T).softmax(1), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(InputError, match=r"wants input of shape .*, got \(2, 3, 8, 8\)"):
        classifier(torch.rand(2, 3, 8, 8))
    grey = from_onnx(tmp_path / "m.onnx", Preprocessing(channels=1, size=(8, 8)))
    assert grey(torch.rand(2, 3, 16, 16)).shape == (2, 3)
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(InputError, match="is no ONNX model"):
        from_onnx(tmp_path / "broken.onnx")
    with pytest.raises(MissingData, match="there is no ONNX file"):
        from_onnx(tmp_path / "nothing.onnx")
    with pytest.raises(InputError, match="`output` must be"):
        from_onnx(tmp_path / "m.onnx", output="labels")


@pytest.mark.filterwarnings("ignore")
def test_clip_with_a_tiny_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes["num_attention_heads"] = 2
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 32, "max_position_embeddings": 8},
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    model = transformers.CLIPModel(config).eval()
    tokens = {"input_ids": torch.tensor([[1, 5, 2], [1, 7, 2]])}
    tokens["attention_mask"] = torch.ones(2, 3, dtype=torch.long)
    classifier = from_clip(model, tokens, clip_preprocessing(16))
    x = torch.rand(3, 1, 20, 20)
    check_classifier(classifier, x, classes=2)
    pixels = clip_preprocessing(16)(x)
    with torch.no_grad():
        reference = model(pixel_values=pixels, **tokens).logits_per_image.softmax(1)
    torch.testing.assert_close(classifier(x), reference, rtol=1e-4, atol=1e-5)

    model.save_pretrained(tmp_path)
    vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1, "face</w>": 2, "a</w>": 3, "f": 4}
    vocabulary |= {"a": 5, "c": 6, "e": 7, "e</w>": 8, "fa": 9, "ce</w>": 10}
    import json

    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nf a\nc e</w>\nfa ce</w>\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer"})
    )
    loaded = load_clip(tmp_path, ["a face", "face"])
    assert loaded(x).shape == (3, 2)
    with pytest.raises(InputError, match="one for each of several classes"):
        load_clip(tmp_path, ["a face"])
    with pytest.raises(MissingData, match="there is no folder"):
        load_clip(tmp_path / "none", ["a", "b"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no CLIP model"):
        load_clip(tmp_path / "empty", ["a", "b"])


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("onnxruntime", lambda path: from_onnx(path), "onnx"),
        ("transformers", lambda path: load_clip(path.parent, ["a", "b"]), "clip"),
    ],
)
def test_says_what_to_install(monkeypatch, tmp_path, module, call, extra):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"leapfactual\[{extra}\]"):
        call(tmp_path / "file")


# -- preprocessing --


def test_preprocessing_by_hand():
    x = torch.tensor([[[[0.0, 0.5], [1.0, 0.25]]]])
    assert torch.equal(Preprocessing()(x), x)
    torch.testing.assert_close(Preprocessing(low=-1, high=1)(x), 2 * x - 1)
    torch.testing.assert_close(Preprocessing(mean=(0.5,), std=(0.25,))(x), (x - 0.5) / 0.25)
    colour = Preprocessing(channels=3, mean=(0.1, 0.2, 0.3))(x)
    torch.testing.assert_close(colour[:, 1], x[:, 0] - 0.2)
    torch.testing.assert_close(Preprocessing(channels=1)(x.expand(-1, 3, -1, -1)), x)
    assert Preprocessing(size=(5, 3))(x).shape == (1, 1, 5, 3)


@pytest.mark.parametrize("stretch", ["sqrt", "asinh", "log"])
def test_stretches_brighten_what_is_faint_and_keep_the_ends(stretch):
    x = torch.tensor([0.0, 0.01, 0.5, 1.0]).reshape(1, 1, 1, 4)
    y = Preprocessing(stretch=stretch, strength=100.0)(x).flatten()
    assert y[0] == 0
    assert y[3].item() == pytest.approx(1, abs=1e-6)
    assert y[1] > 0.09
    assert (y.diff() > 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Preprocessing(stretch="power"), "`stretch` must be one of"),
        (lambda: Preprocessing(channels=2), "`channels` must be 1 or 3, got 2"),
        (lambda: Preprocessing(low=1, high=0), "`low` must be below `high`"),
        (lambda: Preprocessing(std=(0.0,)), "`std` must be positive"),
        (lambda: Preprocessing(size=(0, 5)), "`size` must be"),
        (lambda: Preprocessing(size=224), "`size` must be .* got 224"),
        (lambda: Preprocessing(mean=0.5), "`mean` must be a tuple"),
        (lambda: Preprocessing(strength=0), "`strength` must be positive"),
        (lambda: Preprocessing(mean=(1.0, 2.0))(IMAGES), "one for each of the 1 channels, got 2"),
        (lambda: Preprocessing(channels=3)(torch.rand(1, 2, 4, 4)), "wants 3 channels, got 2"),
        (lambda: Preprocessing(size=(2, 2))(X), "takes images"),
    ],
)
def test_wrong_preprocessing_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


# -- wrappers --


def answers(x):
    return torch.eye(2)[(x[:, 0] > 0).long()]


def test_counted_counts():
    counted = Counted(answers)
    counted(X)
    counted(X[:1])
    assert (counted.calls, counted.images) == (2, 5)


def test_cached_asks_about_each_image_once():
    counted = Counted(answers)
    cached = Cached(counted, limit=3)
    twice = torch.cat([X, X])
    assert torch.equal(cached(twice), answers(twice))
    assert counted.images == 4
    assert torch.equal(cached(X[1:]), answers(X[1:]))
    assert counted.images == 4
    cached(X[:1])
    assert counted.images == 5, "the oldest answer was forgotten"


def test_cached_answers_outlive_the_process_that_asked(tmp_path):
    counted, path = Counted(answers), tmp_path / "answers.db"
    first = Cached(counted, path)
    first(X[:3])
    code = (
        "import sys, torch; from leapfactual.classifiers import Cached; "
        "cached = Cached(lambda x: torch.eye(2)[[1] * len(x)], sys.argv[1]); "
        "cached(torch.full((1, 2), 7.0)); import os; os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    again = Cached(counted, path)
    assert len(again) == 4
    assert torch.equal(again(X), answers(X))
    assert torch.equal(again(torch.full((1, 2), 7.0)), torch.tensor([[0.0, 1.0]]))
    assert counted.images == 4
    assert torch.equal(first(X.double()), answers(X)), "another type is another image"
    assert counted.images == 8
    again.forget()
    assert len(first) == 0


def test_a_damaged_cache_is_begun_anew(tmp_path):
    path = tmp_path / "answers.db"
    path.write_bytes(b"no database at all, but a text that is long enough" * 20)
    cached = Cached(answers, path)
    assert torch.equal(cached(X), answers(X))
    assert len(Cached(answers, path)) == 4


def test_a_cache_whose_pages_are_damaged_is_begun_anew(tmp_path):
    path = tmp_path / "answers.db"
    full = Cached(answers, path)
    full(torch.rand(500, 2))
    full.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xab" * (len(content) - 4096))
    cached = Cached(answers, path)
    assert torch.equal(cached(X), answers(X))
    assert len(Cached(answers, path)) == 4


def test_cached_answers_threads_that_ask_at_the_same_time():
    cached, images = Cached(answers), torch.rand(400, 5, 2) - 0.5
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(cached, images.repeat(4, 1, 1)))
    for x, p in zip(images.repeat(4, 1, 1), found, strict=True):
        assert torch.equal(p, answers(x))
    assert len(cached) == 400 * 5


def test_cached_answers_have_no_gradient_not_even_new_ones():
    """Otherwise a method that needs gradients would take those of some of the rows for all."""
    x = X.clone().requires_grad_()
    assert not Cached(lambda x: x.softmax(1))(x).requires_grad


def test_cached_explanations_are_the_same():
    oracle = lf.testing.GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)
    z, _ = oracle.sample(5)
    plan = [lf.blend(15, 0.1), lf.inject(3, 0.0, 0.1)]
    plain = lf.LeapFactual(lf.generators.Identity(), oracle.classifier, oracle.flow(), plan)
    cached = Cached(oracle.classifier)
    other = lf.LeapFactual(lf.generators.Identity(), cached, oracle.flow(), plan)
    expected = plain.explain(z, 1)
    for _ in range(2):
        torch.testing.assert_close(other.explain(z, 1).z_counterfactual, expected.z_counterfactual)
    assert cached.hits >= cached.misses


class Flaky:
    """Fails as its script says, call by call; answers when the script is over."""

    def __init__(self, *script):
        self.script, self.asked = list(script), []

    def __call__(self, x):
        self.asked.append(len(x))
        if self.script and (step := self.script.pop(0)) is not None:
            raise step
        return answers(x)


def test_retrying_pauses_longer_each_time():
    pauses = []
    flaky = Flaky(ConnectionError("down"), TimeoutError("slow"))
    retrying = Retrying(flaky, tries=3, pause=0.5, sleep=pauses.append)
    assert torch.equal(retrying(X), answers(X))
    assert pauses == [0.5, 1.0]


def test_retrying_does_not_wait_for_ever():
    release = threading.Event()

    def hangs(x):
        release.wait(30)
        return answers(x)

    retrying = Retrying(hangs, tries=2, pause=0, timeout=0.05)
    started = time.perf_counter()
    with pytest.raises(ClassifierError, match="no answer within 0.05 s"):
        retrying(X[:1])
    assert time.perf_counter() - started < 5
    release.set()


def test_retrying_does_not_hide_wrong_answers_or_an_interrupt():
    with pytest.raises(ClassifierError, match="must give one row for each of 4"):
        Retrying(lambda x: answers(x)[:1].repeat(0, 1), pause=0)(X)
    flaky = Flaky(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Retrying(flaky)(X)


def test_nan_is_tried_again_and_never_cached():
    calls = []

    def nan_once(x):
        calls.append(len(x))
        return answers(x) * (torch.nan if len(calls) == 1 else 1)

    stack = Cached(Retrying(nan_once, pause=0, sleep=lambda _: None))
    assert torch.equal(stack(X), answers(X))
    assert len(calls) == 2


def test_a_dead_service_is_given_up_after_the_last_try():
    asked, pauses = [], []

    def dead(x):
        asked.append(len(x))
        raise ConnectionError("gone")

    with pytest.raises(
        ClassifierError, match="no answer for 256 images after 3 tries.*gone"
    ) as error:
        Retrying(dead, tries=3, sleep=pauses.append)(torch.randn(256, 2))
    assert error.value.rows == list(range(256))
    assert isinstance(error.value.__cause__, ConnectionError)
    assert asked == [256] * 3
    assert pauses == [0.5, 1.0]


def test_rows_without_an_answer_are_named_as_the_caller_counts_them():
    def chokes(batch):
        if (batch == X[3]).all(1).any():
            raise ValueError("no")
        return answers(batch)

    stack = Cached(Retrying(chokes, tries=1, sleep=lambda _: None))
    stack(X[:2])
    with pytest.raises(ClassifierError) as error:
        stack(X)
    assert error.value.rows == [2, 3]


def test_cached_keeps_what_was_paid_for_when_a_later_call_fails():
    counted = Counted(answers)
    flaky = Flaky(None, ConnectionError("down"))
    stack = Cached(Retrying(lambda x: counted(x) if flaky(x) is not None else x, tries=1))
    stack(X[:2])
    with pytest.raises(ClassifierError, match="down"):
        stack(X)
    assert torch.equal(stack(X), answers(X))
    assert flaky.asked == [2, 2, 2]
    assert counted.images == 4


def test_a_timeout_keeps_the_callers_modes_and_the_classifiers_own_errors():
    seen = []
    with torch.no_grad():
        Retrying(lambda x: seen.append(torch.is_grad_enabled()) or answers(x), timeout=5)(X)
    assert seen == [False]

    def own(x):
        raise TimeoutError("the gateway says so")

    with pytest.raises(ClassifierError, match="the gateway says so"):
        Retrying(own, tries=1, timeout=5)(X[:1])


@pytest.mark.parametrize("wrapper", [Cached, Retrying, Counted])
def test_wrappers_take_no_images_and_half_precision(wrapper):
    assert wrapper(answers)(X[:0]).shape == (0, 2)
    assert wrapper(answers)(X.bfloat16()).shape == (4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tries": 0}, "`tries` must be"),
        ({"pause": -1}, "`pause` must be"),
        ({"timeout": 0}, "`timeout` must be positive"),
    ],
)
def test_wrong_retries_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Retrying(answers, **options)


def test_a_classifier_that_raises_while_explaining_keeps_its_own_error():
    oracle = lf.testing.GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)
    z, _ = oracle.sample(2)

    def broken(x):
        raise OSError("the oracle has gone home")

    explainer = lf.LeapFactual(lf.generators.Identity(), broken, oracle.flow(), [lf.blend(3, 0.1)])
    with pytest.raises(OSError, match="the oracle has gone home"):
        explainer.explain(z, 1)


class Stranger:
    def __array__(self, *_, **__):
        raise ArithmeticError("no array")


@pytest.mark.parametrize("answer", [[[1, 0], 1, 2], [[1, 0], None], Stranger()])
def test_answers_that_become_no_array_are_described(answer):
    with pytest.raises(InputError, match="must answer with numbers, a label or a row"):
        from_probabilities(lambda x: answer)(torch.zeros(2, 1, 2, 2))
    with pytest.raises(InputError, match="must answer with numbers|answer once for each image"):
        open_classifier(lambda x: answer, torch.zeros(2, 1, 2, 2), ["a", "b"])


def test_rows_without_columns_are_no_probabilities():
    with pytest.raises(InputError, match="sums off by up to 1"):
        from_probabilities(lambda x: torch.zeros(len(x), 0))(torch.zeros(2, 1, 2, 2))
