"""Demo on faces: people who do not smile made to smile, and the other way round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError, MissingExtra
from ...explainer import LeapFactual
from ...explanation import Explanation
from ...files import atomic
from ...flow import Flow
from ...generators import GAN, Inversion
from ...imaging import as_images, paste, to_pil
from ...leaps import Stage, blend, tighten
from ...masks import grow, soften
from ...metrics import LPIPS, METRICS
from ...report import cards, tables, write_page
from ...types import Classifier, Generator, no_op
from .album import SMALL, Album, Line, animate, write_sheet
from .expressions import ExpressionNetwork, SmileClassifier
from .identity import FaceEmbedder, IdentityDistance
from .landmarks import FaceMesh, SmileOracle
from .photographs import align, invert
from .portraits import AUTO, CLASSES, expressive, portraits

PACKAGES = ("face-gan", "expressions")
PHOTO_PACKAGES = ("face-landmarks", "lpips-alexnet", "identities")
PLAN: tuple[Stage, ...] = (blend(20, 0.4), tighten(4))
RELIABLE_PLAN: tuple[Stage, ...] = (blend(10, 0.8),)
PLANS: dict[str, tuple[Stage, ...]] = {
    "counterfactual": PLAN,
    "reliable counterfactual": RELIABLE_PLAN,
}
MEASURED = ("validity", "L1", "queries", "milliseconds")
# How many faces to draw at most for each that is wanted of a class, since classes differ in size.
MAX_TRIES = 40
# How a photograph is inverted; a GPU affords more steps.
STEPS, STEPS_ON_GPU, LEARNING_RATE = 200, 600, 0.1
# How many pixels wide the soft edge of the mask is, of 1024.
MASK_EDGE = 24
# Far from the seeds that the shipped flow was trained on.
FIRST_SEED = 1 << 30


def require() -> None:
    """Checks that the extra is installed, before anything is fetched."""
    if find_spec("h5py") is None:
        raise MissingExtra(
            "the network of expressions is an HDF5 file, which needs h5py. Run `pip install "
            "'leapfactual[faces]'`, which brings OpenVINO too: faces are drawn faster with it."
        )


def shipped_flow() -> Flow:
    """Returns the flow that the package ships."""
    with as_file(files("leapfactual") / "shipped" / "faces.safetensors") as path:
        return Flow.load(path).requires_grad_(False)


@dataclass(frozen=True, eq=False)
class Face:
    """Face to explain.

    Arguments:
        name: What it is called on the page.
        w: Its latent, ``(1, D)``.
        label: The class that the classifier gives it.
        x: The photograph, ``(1, 3, H, W)``; None for a face that the GAN drew.
        about: A remark for the page.
    """

    name: str
    w: Tensor
    label: int
    x: Tensor | None = None
    about: str = ""


def run(
    out: Path,
    command: str,
    progress: Callable[[float, str], object],
    *,
    faces: int = 8,
    photos: Sequence[Path] = (),
    steps: int | None = None,
    engine: str = AUTO,
    device: str = "cpu",
    seed: int = 0,
) -> list[tables.Row]:
    """Explains faces with two plans; writes pictures, a page and a table.

    Arguments:
        out: The folder to write to.
        command: How the demo was called, for the record.
        progress: Called with the share that is done and what is going on.
        faces: How many faces of each class to draw.
        photos: Photographs to explain instead. They are inverted, and but for eyes and mouth they
            stay as they are.
        steps: How many steps to invert each in. Defaults to 200 on a CPU and 600 elsewhere.
        engine: What draws; see :func:`leapfactual.demos.faces.portraits.portraits`. Photographs
            need torch.
        device: Where to compute.
        seed: The seed of the faces.
    """
    progress(0.0, "loading")
    classifier = SmileClassifier(ExpressionNetwork.load().to(device))
    flow = shipped_flow().to(device)
    mask = None
    if photos:
        steps = steps or (STEPS if torch.device(device).type == "cpu" else STEPS_ON_GPU)
        gan = portraits("torch", device, inversion(steps, device))
        identity_distance = IdentityDistance(FaceEmbedder.load().to(device))
        mask = soften(grow(expressive(gan.shape[1]), MASK_EDGE), MASK_EDGE).to(device)
        chosen = open_photographs(photos, gan, classifier, identity_distance, mask, progress)
    else:
        gan = portraits(engine, device)
        first = FIRST_SEED + seed
        chosen = draw_faces(
            gan, classifier, faces, first, lambda n: progress(0.2 * n, "drawing faces")
        )
    return explain(
        out,
        chosen,
        gan,
        classifier,
        flow,
        mask=mask,
        seed=seed,
        command=command,
        device=device,
        progress=lambda share, what: progress(0.2 + 0.8 * share, what),
    )


def explain(
    out: Path,
    chosen: Sequence[Face],
    gan: GAN,
    classifier: Classifier,
    flow: Flow,
    *,
    mask: Tensor | None = None,
    seed: int = 0,
    command: str,
    device: str = "cpu",
    progress: Callable[[float, str], object] = no_op,
) -> list[tables.Row]:
    """Explains faces one by one, keeping small pictures only, and writes all results."""
    album = Album(gan)
    explainers = {
        name: LeapFactual(
            album,
            classifier,
            flow,
            plan,
            keep_path=True,
            accelerate=False,
            mask=mask,
            classes=CLASSES,
        )
        for name, plan in PLANS.items()
    }
    found: dict[str, list[Explanation]] = {name: [] for name in PLANS}
    for n, face in enumerate(chosen):
        target = 1 - face.label
        for name, explainer in explainers.items():
            progress(0.9 * n / len(chosen), f"{face.name}, {CLASSES[target]}: {name}")
            x = album.decode(face.w) if face.x is None else face.x
            e = explainer.explain(x, target, face.w)
            write_pictures(e, out / "pictures", face.name, name)
            found[name].append(album.shrink(e).to("cpu"))
    progress(0.9, "writing the page")
    near, far = (Explanation.cat(found[name]) for name in PLANS)
    rows = measure(near, far)
    draw(near, far, out / "faces.jpg")
    faces = found["reliable counterfactual"]
    animate(faces, album.thumbnails, out / "faces.webp", columns=-(-len(chosen) // 2))
    typical = [
        flow.typicality(e.z_counterfactual.to(device), e.target.to(device)).cpu()
        for e in (near, far)
    ]
    names = [f"{face.name}, {face.about}" if face.about else face.name for face in chosen]
    write_cards(names, near, far, typical, rows, album.thumbnails, out / "index.html")
    tables.write(out / "faces.json", rows, seed=seed, command=command, device=device)
    with atomic(out / "faces.md") as temporary:
        temporary.write_text(tables.pivot(rows) + "\n")
    progress(1.0, "done")
    return rows


def inversion(steps: int, device: str) -> Inversion:
    """Returns the inversion of photographs: by pixels, and by LPIPS at a quarter of the size."""
    lpips = LPIPS.load("alexnet").to(device)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        found: Tensor = lpips(*(F.avg_pool2d(x.clamp(0, 1), x.shape[-1] // SMALL) for x in (a, b)))
        return found

    return Inversion(steps, LEARNING_RATE, distance)


@torch.no_grad()
def draw_faces(
    gan: GAN, classifier: Classifier, count: int, seed: int, progress: Callable[[float], object]
) -> list[Face]:
    """Draws faces until there are enough of each class, and returns them class by class."""
    found: dict[int, list[Tensor]] = {k: [] for k in range(len(CLASSES))}
    w = gan.sample(MAX_TRIES * count, seed)
    for row in w[:, None]:
        if min(map(len, found.values())) == count:
            break
        label = int(classifier(gan.decode(row)).argmax())
        if len(found[label]) < count:
            found[label].append(row)
            progress(sum(map(len, found.values())) / (count * len(found)))
    rare = min(found, key=lambda k: len(found[k]))
    if len(found[rare]) < count:
        raise InputError(f"of {len(w)} faces too few are {CLASSES[rare]}. Try another seed.")
    rows = [(k, row) for k, own in found.items() for row in own]
    return [Face(f"face {n:02d}", row, k) for n, (k, row) in enumerate(rows)]


def open_photographs(
    paths: Sequence[Path],
    gan: GAN,
    classifier: Classifier,
    identity_distance: Callable[[Tensor, Tensor], Tensor],
    mask: Tensor,
    progress: Callable[[float, str], object],
) -> list[Face]:
    """Cuts faces out of photographs, then inverts them.

    The class of a face is that of its reconstruction in the mask, from which the walk starts. The
    page says so where that is not the class of the photograph itself.
    """
    mesh = SmileOracle.load().mesh
    cut = [read_face(path, mesh, gan.shape[1]) for path in paths]
    found = []
    for n, (path, x) in enumerate(zip(paths, cut, strict=True)):
        progress(0.2 * n / len(paths), f"inverting {path.name}")
        photo = invert(x.to(gan.device), gan, identity_distance)
        with torch.no_grad():
            own, label = (
                int(classifier(image).argmax())
                for image in (photo.x, paste(gan.decode(photo.w), photo.x, mask))
            )
        remark = "" if own == label else f", {CLASSES[own]} before it was inverted"
        name = f"photo {n:02d}"
        found.append(Face(name, photo.w, label, photo.x, f"{path.name}: {photo.verdict}{remark}"))
    return found


def read_face(path: Path, mesh: FaceMesh, side: int) -> Tensor:
    """Returns the face of a photograph on disk, cut out, ``(1, 3, side, side)``."""
    try:
        with Image.open(path) as photo:
            return as_images(align(ImageOps.exif_transpose(photo), mesh, side))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be explained: {error}") from error


def measure(near: Explanation, far: Explanation) -> list[tables.Row]:
    """Returns the numbers of both plans, for each class that there are faces of."""
    rows = []
    for k in range(len(CLASSES)):
        own = near.source == k
        for name, e in zip(PLANS, (near[own], far[own]), strict=True):
            setting = f"from {CLASSES[k]} to {CLASSES[1 - k]}"
            if len(e):
                rows += [tables.row(setting, name, m, [METRICS[m].mean(e)]) for m in MEASURED]
    return rows


def write_pictures(e: Explanation, folder: Path, name: str, plan: str) -> None:
    """Writes a face and its counterfactual in their full size."""
    folder.mkdir(parents=True, exist_ok=True)
    for what, image in (("before", e.x[0]), (plan, e.counterfactual[0])):
        with atomic(folder / f"{name}, {what}.jpg") as temporary:
            to_pil(image).save(temporary, format="JPEG", quality=92)


def draw(near: Explanation, far: Explanation, path: Path) -> None:
    """Draws faces, counterfactuals and reliable ones; a red frame where the target is missed."""
    lines = []
    for k in range(len(CLASSES)):
        own = near.source == k
        a, b = near[own], far[own]
        if not len(a):
            continue
        lines += [
            Line(CLASSES[k], a.x),
            Line(f"counterfactual:\n{CLASSES[1 - k]}", a.counterfactual, _missed(a)),
            Line(f"reliable:\n{CLASSES[1 - k]}", b.counterfactual, _missed(b)),
        ]
    write_sheet(lines, path)


def _missed(e: Explanation) -> Sequence[str | None]:
    return [None if valid else "red" for valid in e.valid.tolist()]


def write_cards(
    names: Sequence[str],
    near: Explanation,
    far: Explanation,
    typical: Sequence[Tensor],
    rows: Sequence[tables.Row],
    generator: Generator,
    path: Path,
) -> None:
    """Writes the page."""
    table = [["", "", *PLANS]]
    for setting in dict.fromkeys(row.setting for row in rows):
        for metric in MEASURED:
            own = [r.mean for r in rows if (r.setting, r.metric) == (setting, metric)]
            table.append([setting, metric, *(f"{mean:.4g}" for mean in own)])
    made = cards(
        near,
        names=names,
        typicality=typical[0],
        reliable=far,
        reliable_typicality=typical[1],
        generator=generator,
    )
    write_page(
        path,
        made,
        title="What would have had to be different?",
        about="Faces as a GAN draws them: what changes is synthetic. The classifier, a small "
        "network of expressions, was only queried whether a face smiles.",
        classes=CLASSES,
        table=table,
    )
