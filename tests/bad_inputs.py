"""What goes wrong, and what is printed: the cases of docs/reference/errors.md.

Each case does, in an empty folder, what a user does, and gives what is printed. The page holds the
same in a table, so that neither can drift from the other. After a message was changed on purpose,
``python -m tests.bad_inputs`` writes the page anew.
"""

import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import leapfactual as lf
from leapfactual import cli
from leapfactual.errors import LeapError
from leapfactual.generators import VAE, Standardized

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
CLASSES = ("cat", "dog")
FIT = "fit photos --classifier my_models.py:predict --out bundle"
EXPLAIN = "explain bundle photos --classifier my_models.py:predict --target dog --out report"
FIT_TABLE = "fit table.csv --classifier my_models.py:forest --out bundle"
EXPLAIN_TABLE = (
    "explain rows-bundle table.csv --classifier my_models.py:forest --target dog --out report"
)
# Ends after the first look at the images, because they are small.
LOOK = f"{FIT} --generator spatial"
MODELS = """
import numpy as np
import torch


def predict(x):
    p = x.mean((1, 2, 3))
    return torch.stack([p, 1 - p], 1)


def forest(rows):
    return (rows[:, 0] > 0).long()


def other(x):
    return predict(x).flip(1)


def labels(x):
    return predict(x).argmax(1)


def from_one(x):
    return labels(x) + 1


def raises(x):
    raise RuntimeError("in layer 1:\\nexpected 3 channels, got 1")


def nothing(x):
    predict(x)


def not_a_number(x):
    return predict(x) * float("nan")


def too_few(x):
    return predict(x)[:-1]


def ragged(x):
    return [[1.0, 0.0], [1.0]]


calls = []


def fickle(x):
    calls.append(x)
    return predict(x) if len(calls) % 2 else other(x)


def always_cat(x):
    return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)


def one_number(x):
    return x.mean((1, 2, 3))


def names(x):
    return ["cow"] * len(x)


def three(x):
    return torch.full((len(x), 3), 1 / 3)


def logits(x):
    return 10 * predict(x)


width = 8
"""


@dataclass(frozen=True)
class Case:
    """A mistake.

    Arguments:
        group: The heading that it stands under.
        name: The name of the function that makes it.
        what: What the user does, in words.
        run: Makes the mistake in the current folder, and returns what is printed.
    """

    group: str
    name: str
    what: str
    run: Callable[[], str]


CASES: list[Case] = []


def case(group: str, what: str, *, shown: str = "") -> Callable[[Callable[[], str]], None]:
    """Adds a case whose function prepares files and returns the command.

    Arguments:
        group: The heading that the case stands under.
        what: What the user does.
        shown: What begins the line that counts, where the command goes on. Defaults to the error.
    """

    def add(prepare: Callable[[], str]) -> None:
        CASES.append(Case(group, prepare.__name__, what, lambda: run_command(prepare(), shown)))

    return add


def python(what: str) -> Callable[[Callable[[], object]], None]:
    """Adds a case of Python: a function that raises."""

    def add(function: Callable[[], object]) -> None:
        def run() -> str:
            try:
                function()
            except LeapError as error:
                return f"{type(error).__name__}: {error}"
            raise AssertionError(f"{function.__name__} did not raise")

        CASES.append(Case("Python", function.__name__, what, run))

    return add


def run_command(command: str, shown: str = "") -> str:
    """Runs a command, and returns the error that it prints, or the line that begins so."""
    printed = io.StringIO()
    arguments = ["leapfactual", *shlex.split(command)]
    with (
        patch.object(sys, "argv", arguments),
        redirect_stderr(printed),
        redirect_stdout(io.StringIO()),
    ):
        try:
            cli.main()
            status: object = 0
        except SystemExit as stop:
            status = stop.code
    lines = printed.getvalue().splitlines()
    # Of a command that fails, the error is what is printed last.
    starts = [n for n, line in enumerate(lines) if re.match(shown, line) and line]
    assert starts, printed.getvalue()
    assert status or shown, printed.getvalue()
    text = lines[starts[0] if shown else starts[-1]]
    # What typer adds differs from version to version.
    return text.partition(" (Possible options")[0]


def in_a_folder(case: Case) -> str:
    """Runs a case in an empty folder, with an empty cache, and returns what is printed."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        environment = {"LEAPFACTUAL_CACHE": "cache", "PIP_NO_INDEX": "1"}
        with patch.dict(os.environ, environment):
            Path("my_models.py").write_text(MODELS)
            text = case.run()
        return " ".join(text.replace(folder, "…").split())


def draw(path: str, n: int = 0, size: tuple[int, int] = (8, 8), mode: str = "L") -> Image.Image:
    """Writes a picture, lighter for dogs, and returns it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(n)
    grey = rng.integers(150 if "dog" in path else 20, 220 if "dog" in path else 90, size[::-1])
    image = Image.fromarray(grey.astype("uint8")).convert(mode)
    image.save(path)
    return image


def photos(n: int = 24, size: tuple[int, int] = (8, 8), folder: str = "photos") -> None:
    """Writes a folder with class folders of n pictures each."""
    for name in CLASSES:
        for k in range(n):
            draw(f"{folder}/{name}/{k}.png", k, size)


def table(*lines: str, header: str = "petal,sepal,label", n: int = 50) -> None:
    """Writes a table with other lines at its end."""
    rows = [f"{(-1) ** k * k},{k % 7},{CLASSES[k % 2]}" for k in range(n)]
    Path("table.csv").write_text("\n".join([header, *rows, *lines]) + "\n")


@cache
def _bundles() -> Path:
    """Writes bundles of networks that are not trained, once."""
    folder = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(MODELS, "my_models.py", "exec"), names)
    images = torch.rand(64, 1, 8, 8) * torch.linspace(0.2, 1, 64)[:, None, None, None]
    rows = torch.randn(64, 2)

    def forest(x):
        return torch.nn.functional.one_hot(names["forest"](x), 2).float()

    for name, x, generator, classifier in (
        ("bundle", images, VAE((1, 8, 8), 4), names["predict"]),
        ("rows-bundle", rows, Standardized.of(rows), forest),
    ):
        features = generator.encode(x[:1]).shape[1]
        flow = lf.Flow(lf.MLPField(features, 2, width=8), lf.Euler(2))
        training = {"columns": ["petal", "sepal"], "std": [1.0, 1.0]} if x.ndim == 2 else {}
        lf.Bundle.make(
            generator,
            flow,
            classifier,
            x,
            classes=CLASSES,
            plan=[lf.blend(2, 0.5)],
            classifier_name="my_models.py:predict",
            training=training,
        ).save(folder / name)
    return folder


def bundle(name: str = "bundle") -> Path:
    """Copies a bundle into the current folder."""
    return Path(shutil.copytree(_bundles() / name, name))


def inputs() -> None:
    """Writes a bundle and some photographs."""
    bundle()
    photos(2)


@case("Images", "one image is larger than the others", shown="Left out")
def one_of_another_size() -> str:
    photos(25)
    draw("photos/dog/large.png", size=(9, 12))
    return LOOK


@case("Images", "images of many sizes, all but the first few left out")
def many_sizes() -> str:
    photos(4)
    for n in range(40):
        draw(f"photos/dog/{100 + n}.png", size=(9 + n, 9))
    return FIT


@case("Images", "a file that is no picture, among few that are")
def corrupt() -> str:
    photos(4)
    Path("photos/cat/0.png").write_bytes(b"<html>404 Not Found</html>")
    return FIT


@case("Images", "a picture that was cut off in a download")
def cut_off() -> str:
    inputs()
    draw("one.png", size=(64, 64))
    Path("one.png").write_bytes(Path("one.png").read_bytes()[:900])
    return EXPLAIN.replace("photos", "one.png")


@case("Images", "a picture with transparent parts")
def transparent() -> str:
    inputs()
    draw("logo.png", mode="RGBA").putalpha(120)
    image = Image.open("logo.png")
    image.putalpha(120)
    image.save("logo.png")
    return EXPLAIN.replace("photos", "logo.png")


@case("Images", "a picture with 16-bit colours")
def deep_colour() -> str:
    inputs()
    png = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", b"\0\0\0\2\0\0\0\2\x10\2\0\0\0")
    scan = (b"\0" + b"\x12\x34" * 6) * 2
    png += _chunk(b"IDAT", zlib.compress(scan)) + _chunk(b"IEND", b"")
    Path("deep.png").write_bytes(png)
    return EXPLAIN.replace("photos", "deep.png")


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


@case("Images", "an animation")
def animation() -> str:
    inputs()
    pages = [draw(f"page{n}.png", n) for n in range(3)]
    pages[0].save("scan.webp", save_all=True, append_images=pages[1:])
    return EXPLAIN.replace("photos", "scan.webp")


@case("Images", "a picture of 30 million pixels")
def huge() -> str:
    inputs()
    Image.new("L", (6000, 5000)).save("poster.png")
    return EXPLAIN.replace("photos", "poster.png")


@case("Images", "images too large to learn from")
def too_large_to_learn() -> str:
    photos(2, size=(1100, 1100))
    return FIT


@case("Images", "20 images")
def too_few() -> str:
    photos(10)
    return FIT


@case("Images", "an empty folder")
def empty_folder() -> str:
    Path("photos").mkdir()
    return FIT


@case("Images", "no such folder")
def no_folder() -> str:
    return FIT


@case("Images", "a class folder without images")
def empty_class() -> str:
    photos(25)
    Path("photos/bird").mkdir()
    return f"{FIT} --classes cat,dog,bird"


@case("Images", "images turned by a camera, in colour and of another size", shown="Converted")
def converted() -> str:
    photos(25)
    for n in range(3):
        image = draw(f"photos/cat/{n}.png", n, size=(12, 16), mode="RGB")
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(f"photos/cat/{n}.png", exif=exif)
    draw("photos/dog/0.png", mode="I;16")
    return f"{LOOK} --size 8 8 --channels 1"


@case("Images", "a folder in a class folder", shown="Left out")
def folder_in_a_class() -> str:
    photos(25)
    draw("photos/cat/kittens/0.png")
    return LOOK


@case("Images", "class folders in a folder in a folder")
def nested() -> str:
    photos(25, folder="photos/train")
    return FIT


@case("Images", "class folders and loose images together")
def loose() -> str:
    photos(25)
    draw("photos/more.png")
    return FIT


@case("Images", "files of another kind", shown="Left out")
def other_kind() -> str:
    photos(25)
    Path("photos/cat/notes.txt").write_text("a note")
    Path("photos/cat/0.heic").write_text("a picture of a phone")
    return LOOK


@case("Images", "a document instead of images")
def document() -> str:
    Path("photos.pdf").write_text("%PDF")
    return FIT.replace("photos", "photos.pdf")


@case("Images", "several folders")
def several_folders() -> str:
    photos(25)
    photos(25, folder="more")
    return FIT.replace("photos", "photos more")


@case("Images", "a zip that is none")
def damaged_zip() -> str:
    Path("photos.zip").write_bytes(b"PK\3\4 cut off")
    return FIT.replace("photos", "photos.zip")


@case("Images", "a zip with nothing but files of other kinds")
def zip_of_others() -> str:
    with zipfile.ZipFile("photos.zip", "w") as archive:
        archive.writestr("../../notes.txt", "a note")
        archive.writestr("__MACOSX/._cat.png", "hidden")
    return FIT.replace("photos", "photos.zip")


@case("Images", "an .npz file without images in it")
def wrong_npz() -> str:
    np.savez("photos.npz", pixels=np.zeros((2, 8, 8)))
    return FIT.replace("photos", "photos.npz")


@case("Images", "an .npz file with values from 0 to 255 as floats")
def wrong_range() -> str:
    np.savez("photos.npz", images=np.full((50, 8, 8), 200.0, np.float32))
    return FIT.replace("photos", "photos.npz")


@case("Tables", "lines with missing cells", shown="Left out")
def missing_cells() -> str:
    table("3,,cat", "4,2", n=60)
    return f"{FIT_TABLE} --flow-epochs 1 --minutes 0.01 --force"


@case("Tables", "text in every line of a column of numbers")
def text_column() -> str:
    Path("table.csv").write_text("petal,colour,label\n1,red,cat\n2,blue,dog\n")
    return FIT_TABLE


@case("Tables", "an infinite number", shown="Left out")
def infinite() -> str:
    table("inf,2,cat", "1e39,2,cat", n=60)
    return f"{FIT_TABLE} --flow-epochs 1 --minutes 0.01 --force"


@case("Tables", "few rows of a class, or few images of one", shown="Few images")
def few_of_a_class() -> str:
    table(*(f"-{k}.5,{k % 7},dog" for k in range(60)))
    return f"{FIT_TABLE} --flow-epochs 1 --minutes 0.01 --force"


@case("Tables", "no such label column")
def no_label_column() -> str:
    table(header="petal,sepal,species")
    return f"{FIT_TABLE} --label specie"


@case("Tables", "labels as text in a column of another name")
def text_labels() -> str:
    table(header="petal,sepal,species")
    return FIT_TABLE


@case("Tables", "`--label` with images")
def label_of_images() -> str:
    photos(25)
    return f"{FIT} --label species"


@case("Tables", "no header")
def no_header() -> str:
    table(header="1,2,3")
    return FIT_TABLE


@case("Tables", "another encoding than UTF-8")
def latin() -> str:
    Path("table.csv").write_bytes("größe,länge\n1,2\n".encode("latin-1"))
    return FIT_TABLE


@case("Tables", "no such file")
def no_table() -> str:
    return FIT_TABLE


@case("Tables", "other columns than the bundle's")
def other_columns() -> str:
    bundle("rows-bundle")
    Path("table.csv").write_text("petal,stem\n1,2\n")
    return EXPLAIN_TABLE


@case("Tables", "a table for a bundle of images")
def table_for_images() -> str:
    inputs()
    table()
    return EXPLAIN.replace("photos", "table.csv")


def with_classifier(name: str) -> str:
    """Returns the command of a fit of some other classifier."""
    photos(25)
    return FIT.replace("my_models.py:predict", name)


@case("Classifiers", "no classifier named")
def no_classifier() -> str:
    photos(25)
    return "fit photos --out bundle"


@case("Classifiers", "no such file")
def no_file() -> str:
    return with_classifier("my_model.py:predict")


@case("Classifiers", "no such name in the file")
def no_name() -> str:
    return with_classifier("my_models.py:predcit")


@case("Classifiers", "a file without a name in it")
def no_attribute() -> str:
    return with_classifier("my_models.py")


@case("Classifiers", "a file with an error in it")
def syntax_error() -> str:
    Path("broken.py").write_text("def predict(x):\n    retrun x\n")
    return with_classifier("broken.py:predict")


@case("Classifiers", "a file that imports what is not installed")
def failed_import() -> str:
    Path("keras_model.py").write_text("import kerass\n")
    return with_classifier("keras_model.py:predict")


@case("Classifiers", "a name that is no function")
def no_function() -> str:
    return with_classifier("my_models.py:width")


@case("Classifiers", "it raises")
def raises() -> str:
    return with_classifier("my_models.py:raises")


@case("Classifiers", "it returns None")
def returns_none() -> str:
    return with_classifier("my_models.py:nothing")


@case("Classifiers", "it returns NaN")
def returns_nan() -> str:
    return with_classifier("my_models.py:not_a_number")


@case("Classifiers", "it answers fewer times than there are images")
def wrong_length() -> str:
    return with_classifier("my_models.py:too_few")


@case("Classifiers", "its rows differ in length")
def ragged() -> str:
    return with_classifier("my_models.py:ragged")


@case("Classifiers", "it answers otherwise at every call")
def random_answers() -> str:
    return with_classifier("my_models.py:fickle")


@case("Classifiers", "it gives one class to all images")
def one_class() -> str:
    return with_classifier("my_models.py:always_cat")


@case("Classifiers", "it gives one number with a fraction for each image")
def one_number() -> str:
    return with_classifier("my_models.py:one_number")


@case("Classifiers", "it gives names that are none of the folders'")
def unknown_names() -> str:
    return with_classifier("my_models.py:names")


@case("Classifiers", "it gives labels, and no class has a name")
def nameless_labels() -> str:
    for n in range(50):
        draw(f"photos/{n}.png", n)
    return FIT.replace("predict", "labels")


@case("Classifiers", "it counts its labels from 1")
def labels_from_one() -> str:
    return with_classifier("my_models.py:from_one")


@case("Classifiers", "it tells more classes apart than there are folders")
def three_classes() -> str:
    return with_classifier("my_models.py:three")


@case("Classifiers", "no such output type")
def no_output_type() -> str:
    return f"{with_classifier('my_models.py:predict')} --output-type scores"


@case("Classifiers", "logits, announced as probabilities")
def wrong_output_type() -> str:
    return f"{with_classifier('my_models.py:logits')} --output-type probabilities"


@case("Classifiers", "another classifier than the bundle's")
def changed() -> str:
    inputs()
    return EXPLAIN.replace("my_models.py:predict", "my_models.py:other")


@case("Classifiers", "a classifier of three classes for a bundle of two")
def other_classes() -> str:
    inputs()
    return EXPLAIN.replace("my_models.py:predict", "my_models.py:three")


@case("Classifiers", "a bundle of somebody else, without `--classifier`")
def unknown_classifier() -> str:
    inputs()
    return EXPLAIN.replace("--classifier my_models.py:predict", "")


@case("Classifiers", "an ONNX file that is not there")
def no_onnx() -> str:
    return with_classifier("model.onnx")


@case("Options", "a device that does not exist")
def no_device() -> str:
    inputs()
    return f"{EXPLAIN} --device gpu"


@case("Options", "a class that does not exist")
def no_class() -> str:
    inputs()
    return EXPLAIN.replace("dog", "dgo")


@case("Options", "no target")
def no_target() -> str:
    inputs()
    return EXPLAIN.replace("--target dog", "")


@case("Options", "a reliability above 1")
def high_reliability() -> str:
    inputs()
    return f"{EXPLAIN} --reliability 1.5"


@case("Options", "a reliability, of a bundle with one plan")
def no_front() -> str:
    inputs()
    return f"{EXPLAIN} --reliability 0.5"


@case("Options", "a plan with a typo")
def wrong_plan() -> str:
    inputs()
    return f"{EXPLAIN} --plan 'blend(15, 0.1), injct(5, 0, 0.1)'"


@case("Options", "a plan of a billion leaps")
def endless_plan() -> str:
    inputs()
    return f"{EXPLAIN} --plan 'blend(1000000000, 0.1)'"


@case("Options", "a page of a trillion images")
def endless_page() -> str:
    inputs()
    return f"{EXPLAIN} --page 1000000000000"


@case("Options", "a billion alternatives")
def endless_alternatives() -> str:
    inputs()
    return f"{EXPLAIN} --alternatives 1000000000"


@case("Options", "images of a million by a million pixels")
def endless_size() -> str:
    photos(25)
    return f"{FIT} --size 1000000 1000000"


@case("Options", "ten billion features")
def endless_features() -> str:
    photos(25)
    return f"{FIT} --features 10000000000"


@case("Options", "a trillion epochs")
def endless_epochs() -> str:
    photos(25)
    return f"{FIT} --flow-epochs 1000000000000"


@case("Options", "a plan that injects backwards")
def backward_plan() -> str:
    inputs()
    return f"{EXPLAIN} --plan 'inject(5, 0.2, 0.1)'"


@case("Options", "both `--plan` and `--fast`")
def two_plans() -> str:
    inputs()
    return f"{EXPLAIN} --plan 'blend(2, 0.1)' --fast"


@case("Options", "a folder for the bundle that exists")
def bundle_exists() -> str:
    photos(25)
    bundle()
    return FIT


@case("Options", "a folder that is no bundle, to be replaced")
def replace_a_folder() -> str:
    photos(25)
    Path("bundle").mkdir()
    Path("bundle/thesis.tex").write_text("my thesis")
    return f"{FIT} --overwrite"


@case("Options", "a configuration file with an unknown option")
def unknown_option() -> str:
    inputs()
    Path("job.toml").write_text('[explain]\ntraget = "dog"\n')
    return f"{EXPLAIN} --config job.toml"


@case("Options", "a configuration file with a broken line")
def broken_config() -> str:
    inputs()
    Path("job.toml").write_text("[explain\n")
    return f"{EXPLAIN} --config job.toml"


@case("Options", "an option that does not exist")
def no_option() -> str:
    inputs()
    return f"{EXPLAIN} --tragets dog"


@case("Options", "`--minutes 0`")
def no_minutes() -> str:
    photos(25)
    return f"{FIT} --minutes 0"


@case("Options", "a generator that does not exist")
def no_generator() -> str:
    photos(25)
    return f"{FIT} --generator gan"


@case("Options", "a stretch that does not exist")
def no_stretch() -> str:
    photos(25)
    return f"{FIT} --stretch gamma"


@case("Options", "`--channels 4`")
def four_channels() -> str:
    photos(25)
    return f"{FIT} --channels 4"


@case("Options", "`--alternatives` and `--reliable`")
def alternatives_and_reliable() -> str:
    inputs()
    replace_front()
    return f"{EXPLAIN} --alternatives 3 --reliable"


def replace_front() -> None:
    """Gives the bundle a front of plans."""
    path = Path("bundle/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["front"] = [
        {"reliability": r, "plan": manifest["plan"], "numbers": {}, "solver": None} for r in (0, 1)
    ]
    path.write_text(json.dumps(manifest))


@case("Options", "the classes to make, both ways")
def to_and_rare() -> str:
    inputs()
    return "augment bundle photos --classifier my_models.py:predict --to dog --rare --out more"


@case("Options", "a share above 1")
def large_share() -> str:
    inputs()
    return "augment bundle photos --classifier my_models.py:predict --share 2 --out more"


@case("Options", "a demo that does not exist")
def no_demo() -> str:
    return "demo cats"


@case("Options", "a data set that does not exist")
def no_data_set() -> str:
    return "data get minst"


@case("Options", "a download without a network")
def no_network() -> str:
    return "data get mnist"


@case("Options", "`--rotate` with images that are not square")
def rotate_rectangles() -> str:
    photos(25, size=(8, 10))
    return f"{FIT} --rotate"


@case("Options", "`--generator spatial` with small images")
def small_spatial() -> str:
    photos(25)
    return f"{FIT} --generator spatial"


@case("Bundles", "no such bundle")
def no_bundle() -> str:
    photos(2)
    return EXPLAIN


@case("Bundles", "a file of the bundle is missing")
def incomplete_bundle() -> str:
    inputs()
    Path("bundle/flow.safetensors").unlink()
    return EXPLAIN


@case("Bundles", "a file of the bundle is damaged")
def damaged_bundle() -> str:
    inputs()
    with Path("bundle/generator.safetensors").open("ab") as file:
        file.write(b"more")
    return EXPLAIN


@case("Bundles", "the manifest is cut off")
def damaged_manifest() -> str:
    inputs()
    Path("bundle/manifest.json").write_text("{")
    return EXPLAIN


@case("Bundles", "a bundle of another version")
def other_version() -> str:
    inputs()
    path = Path("bundle/manifest.json")
    path.write_text(path.read_text().replace("leapfactual bundle 2", "leapfactual bundle 1"))
    return EXPLAIN


@case("Bundles", "images for a bundle of a table")
def images_for_a_table() -> str:
    bundle("rows-bundle")
    photos(2)
    return EXPLAIN_TABLE.replace("table.csv", "photos")


@case("Bundles", "images of another size than the bundle's", shown="Converted")
def other_size() -> str:
    bundle()
    photos(2, size=(16, 16))
    return EXPLAIN


@case("Lists", "a target that is none of the classes")
def unknown_target() -> str:
    inputs()
    Path("targets.csv").write_text("image,target\nphotos/cat/0.png,dgo\n")
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "an image that is not in the set")
def unknown_image() -> str:
    inputs()
    Path("targets.csv").write_text("image,target\nphotos/cat/O.png,dog\n")
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "a file name that two images have")
def ambiguous_image() -> str:
    inputs()
    Path("targets.csv").write_text("image,target\n0.png,dog\n")
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "a list of targets without the column `target`")
def no_target_column() -> str:
    inputs()
    Path("targets.csv").write_text("image,class\n0.png,dog\n")
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "a list of targets that is not there")
def no_list() -> str:
    inputs()
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "a list of targets saved by a spreadsheet in UTF-16")
def utf16_list() -> str:
    inputs()
    Path("targets.csv").write_text("image,target\n0.png,dog\n", encoding="utf-16")
    return EXPLAIN.replace("--target dog", "--targets targets.csv")


@case("Lists", "a vote for none of the classes")
def unknown_vote() -> str:
    photos(25)
    Path("votes.csv").write_text("image,label\nphotos/cat/0.png,cow\n")
    return "fit photos --votes votes.csv --out bundle"


@case("Lists", "somebody votes twice on an image")
def double_vote() -> str:
    photos(25)
    line = "photos/cat/0.png,cat,ada\n"
    Path("votes.csv").write_text(f"image,label,annotator\n{line}{line}")
    return "fit photos --votes votes.csv --out bundle"


@case("Lists", "votes on a few images only")
def few_votes() -> str:
    photos(25)
    lines = (f"photos/{name}/0.png,{name}\n" for name in CLASSES)
    Path("votes.csv").write_text(f"image,label\n{''.join(lines)}")
    return "fit photos --votes votes.csv --out bundle"


@case("Lists", "votes and a classifier")
def votes_and_classifier() -> str:
    photos(25)
    return f"{FIT} --votes votes.csv"


@case("Masks", "a mask of another size")
def other_mask() -> str:
    inputs()
    draw("mask.png", size=(9, 8))
    return f"{EXPLAIN} --mask mask.png"


@case("Masks", "a mask in colours")
def coloured_mask() -> str:
    inputs()
    Image.new("RGB", (8, 8), "red").save("mask.png")
    return f"{EXPLAIN} --mask mask.png"


@case("Masks", "no such mask")
def no_mask() -> str:
    inputs()
    return f"{EXPLAIN} --mask mask.png"


@case("Masks", "a mask for a table")
def mask_for_a_table() -> str:
    bundle("rows-bundle")
    table()
    draw("mask.png")
    return f"{EXPLAIN_TABLE} --mask mask.png"


@case("Resuming", "another job in the folder of a job")
def another_job() -> str:
    inputs()
    run_quietly(EXPLAIN)
    return f"{EXPLAIN} --plan 'blend(3, 0.5)'"


@case("Resuming", "a damaged `job.json`")
def damaged_job() -> str:
    inputs()
    run_quietly(EXPLAIN)
    Path("report/job.json").write_text("{")
    return EXPLAIN


@case("Resuming", "a damaged piece", shown="report")
def damaged_piece() -> str:
    inputs()
    run_quietly(EXPLAIN)
    Path("report/index.html").unlink()
    Path("report/parts").mkdir()
    Path("report/parts/00000000.json").write_text('{"rows": [')
    return EXPLAIN


@case("Resuming", "a damaged summary", shown="report")
def damaged_summary() -> str:
    inputs()
    run_quietly(EXPLAIN)
    Path("report/summary.json").write_text("")
    return EXPLAIN


@case("Resuming", "a damaged part of a fit", shown="bundle.fit")
def damaged_part() -> str:
    photos(25)
    Path("bundle.fit").mkdir()
    Path("bundle.fit/generator-0123456789ab.safetensors").write_bytes(b"cut off")
    return LOOK


@case("Resuming", "a folder of something else")
def folder_of_others() -> str:
    inputs()
    Path("report").mkdir()
    Path("report/thesis.tex").write_text("my thesis")
    return EXPLAIN


@case("Resuming", "the classifier has changed since a fit was begun", shown="The classifier has")
def changed_since() -> str:
    photos(25)
    run_command(LOOK)
    Path("my_models.py").write_text(MODELS.replace("[p, 1 - p]", "[1 - p, p]"))
    return LOOK


def run_quietly(command: str) -> None:
    """Runs a command that goes well."""
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        cli.app(shlex.split(command), standalone_mode=False)


@case("Resuming", "an output folder that cannot be made")
def no_folder_to_make() -> str:
    inputs()
    Path("file").write_text("a file")
    return EXPLAIN.replace("--out report", "--out file/report")


def _explainer(classifier: object, **options: object) -> lf.LeapFactual:
    return lf.Bundle.load(bundle()).explainer(classifier, **options)


def _names() -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(MODELS, "my_models.py", "exec"), names)
    return names


@python("another classifier than the bundle's")
def changed_in_python() -> object:
    return _explainer(_names()["other"])


@python("images from 0 to 255")
def bytes_as_images() -> object:
    return _explainer(_names()["predict"]).explain(torch.full((2, 1, 8, 8), 200.0), "dog")


@python("a target that is none of the classes")
def target_in_python() -> object:
    return _explainer(_names()["predict"]).explain(torch.rand(2, 1, 8, 8), "dgo")


@python("a target by number that is none of the classes")
def number_in_python() -> object:
    return _explainer(_names()["predict"]).explain(torch.rand(2, 1, 8, 8), 7)


@python("a single image")
def single_image() -> object:
    return _explainer(_names()["predict"]).explain(torch.rand(1, 8, 8), "dog")


@python("images of another size")
def size_in_python() -> object:
    return _explainer(_names()["predict"]).explain(torch.rand(2, 1, 9, 9), "dog")


@python("a classifier that raises")
def raises_in_python() -> object:
    return _explainer(_names()["raises"])


@python("a folder for a bundle that exists")
def bundle_in_python() -> object:
    return lf.Bundle.load(bundle()).save("bundle")


HEAD = """# What goes wrong, and what is printed

Every error is a sentence or two: what was wrong, what was expected, what to do. A command prints
it in red and ends with status 1, with 2 where an option is misspelled, or with 130 where it was
interrupted. Where a classifier of your own fails, `--debug` shows the whole traceback. In Python
the errors are those of [`leapfactual.errors`](vocabulary.md), each also one of Python's own that
you would expect to catch. Files that cannot be used are named and left out, and the rest is done;
the rows below that begin so are no errors.

Any other traceback is a mistake of ours: please report it.

The tests make each of these mistakes and compare what is printed with this page;
`python -m tests.bad_inputs` writes it.
"""


def row(case: Case, printed: str) -> str:
    """Returns the line of the page's table for a case."""
    cells = case.what, f"`` {printed} ``".replace("|", r"\|")
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Makes every mistake, and returns the page."""
    parts = [HEAD]
    for group in dict.fromkeys(case.group for case in CASES):
        rows = [row(case, in_a_folder(case)) for case in CASES if case.group == group]
        parts.append(
            "\n".join(
                [f"## {group}\n", "| what you do | what is printed |", "|---|---|", *rows, ""]
            )
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
