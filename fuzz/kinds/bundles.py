"""Bundles and explanations: manifests, tensors and what their headers declare."""

import hashlib
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import torch

import leapfactual as lf

from ..mutations import dump, mutate_bytes, mutate_tree, number, value
from ..watch import expect
from .kind import Kind, Read, bright, check_explanation, small_bundle

PLAN = "blend(2, 0.5), tighten(2)"
TYPES = ("F16", "F32", "F64", "BF16", "I8", "U8", "I64", "BOOL", "F8_E4M3", "F8_E5M2", "C64", "X")
# A bundle's own plan is tried where it is short enough.
MAX_LEAPS = 40


class Bundles(Kind):
    """Bundles, and explanations that were saved."""

    name, share = "bundles", 10

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        bundle = small_bundle()
        bundle.save(base / "bundle")
        found = bundle.explainer(bright, plan=PLAN, keep_path=True).explain(self.images, 1)
        found.save(base / "explanation.safetensors")

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        if rng.random() < 0.15:
            path = given / "a.safetensors"
            path.write_bytes(
                mutate_safetensors(rng, (self.base / "explanation.safetensors").read_bytes())
            )
            return lambda: self._read_explanation(path)
        folder = given / "bundle"
        shutil.copytree(self.base / "bundle", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        kind = rng.randrange(10)
        if kind < 5:
            name = rng.choice(("flow", "flow", "generator", "generator", "probes"))
            file = folder / f"{name}.safetensors"
            file.write_bytes(mutate_safetensors(rng, file.read_bytes()))
            if rng.random() < 0.9:
                record(manifest, file)
        if kind == 5:
            _misplace(rng, folder, outside)
        if kind > 5 or rng.random() < 0.1:
            manifest = mutate_tree(rng, manifest)
        content = dump(rng, manifest) if kind > 5 else json.dumps(manifest).encode()
        if not (folder / "manifest.json").is_symlink() and not (folder / "manifest.json").is_dir():
            (folder / "manifest.json").write_bytes(content)
        own = rng.random() < 0.3
        return lambda: self._read(folder, own)

    def _read_explanation(self, path: Path) -> None:
        found = lf.Explanation.load(path)
        check_explanation(found, len(found.x), found.probabilities.shape[1])
        repr(found)
        str(found.reason)

    def _read(self, folder: Path, own: bool) -> None:
        bundle = lf.Bundle.load(folder)
        repr(bundle)
        bundle._repr_html_()
        expect(bundle.recognizes(bright) in (True, False), "neither recognized nor not")
        if own:
            plan, solver = bundle.plan, None
            if sum(stage.n for stage in plan) > MAX_LEAPS:
                return
        else:
            plan, solver = PLAN, lf.solvers.Euler(2)
        x = self.images
        explainer = bundle.explainer(bright, plan=plan, solver=solver, force=True)
        check_explanation(explainer.explain(x, 1), len(x), 2)


def record(manifest: dict[str, Any], file: Path) -> None:
    """Notes a file's size and hash in the manifest, so that what is in it is reached."""
    content = file.read_bytes()
    manifest["files"][file.name] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Damages a safetensors file: its header, its configuration, its numbers, or anything."""
    kind = rng.randrange(10)
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    if kind == 0:
        return mutate_bytes(rng, content)
    if kind < 4:
        config = rng.choice(list(header["__metadata__"]))
        text = header["__metadata__"][config]
        try:
            tree = json.loads(text)
        except ValueError:
            tree = text
        changed = dump(rng, mutate_tree(rng, tree)).decode(errors="replace")
        header["__metadata__"][config] = changed
    elif kind == 4:
        body = _numbers(rng, header, body)
    elif kind < 8:
        _declare(rng, header)
    elif kind == 8:
        header = mutate_tree(rng, header)
    else:
        names = [name for name in header if name != "__metadata__"]
        header[rng.choice(names)] = header[rng.choice(names)]
    try:
        text = json.dumps(header)
    except (ValueError, RecursionError):
        text = "{" * 1000
    written = text.encode(errors="replace")
    return struct.pack("<Q", len(written)) + written + body


def _declare(rng: random.Random, header: dict[str, Any]) -> None:
    """Gives a tensor another shape or type of as many bytes, or of others."""
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = dict(header[name])
    kind = rng.randrange(6)
    if kind == 0:
        entry["shape"] = [rng.choice((0, 1, 10**9, 2**62, -1)) for _ in range(rng.randrange(5))]
    elif kind == 1:
        count = 1
        for n in entry["shape"]:
            count *= n
        entry["shape"] = rng.choice(
            ([count], [1, *entry["shape"]], [*entry["shape"], 1], [1, count])
        )
    elif kind == 2:
        entry["dtype"] = rng.choice(TYPES)
    elif kind == 3:
        entry["dtype"] = {"F32": "I32", "U8": "BOOL", "I64": "F64"}.get(entry["dtype"], "U32")
    elif kind == 4:
        entry["data_offsets"] = [rng.choice((0, 1, 2**40)), int(abs(rng.randrange(2**41)))]
    else:
        header[rng.choice(("other", "flow", "path/z", "path/", name + "x"))] = header.pop(name)
        return
    header[name] = entry


def _numbers(rng: random.Random, header: dict[str, Any], body: bytes) -> bytes:
    """Puts NaN, infinities, huge and tiny numbers into the tensors."""
    data = bytearray(body)
    spans = [v["data_offsets"] for k, v in header.items() if k != "__metadata__"]
    for _ in range(rng.choice((1, 1, 20))):
        start, stop = rng.choice(spans)
        if stop - start >= 4:
            at = start + 4 * rng.randrange((stop - start) // 4)
            chosen = rng.choice(
                (0.0, -0.0, 1e38, -1e38, 1e-40, 300.0, -1.0, *(3 * (number(rng),)))
            )
            try:
                data[at : at + 4] = struct.pack("<f", chosen)
            except (OverflowError, struct.error):
                data[at : at + 4] = struct.pack("<f", float("nan"))
    return bytes(data)


def _misplace(rng: random.Random, folder: Path, outside: Path) -> None:
    """Removes, replaces and links files, or puts foreign ones beside."""
    path = rng.choice(sorted(folder.iterdir()))
    kind = rng.randrange(4)
    path.unlink()
    if kind == 0:
        path.symlink_to(outside / "secret.txt")
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.write_bytes(
            b""
            if rng.random() < 0.5
            else json.dumps(value(rng), default=str).encode(errors="replace")
        )
