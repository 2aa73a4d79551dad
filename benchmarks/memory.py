"""Does memory grow with the number of images?

Writes N grey images of 64 × 64 to an HDF5 file, opens it (which looks at every image), embeds all
of them, and prints the resident memory of the process on the way. The latents themselves are part
of it: they are what `embed` returns.

    python -m benchmarks.memory [N]
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch

import leapfactual as lf

BATCH = 512


def resident() -> float:
    """Returns the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def write(path: Path, n: int) -> None:
    """Writes n images, a batch at a time."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (n, 64, 64), "u1", chunks=(BATCH, 64, 64))
        for start in range(0, n, BATCH):
            stop = min(start + BATCH, n)
            images[start:stop] = rng.integers(0, 256, (stop - start, 64, 64), dtype=np.uint8)


def main() -> None:
    """Measures and prints."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    vae = lf.generators.VAE((1, 64, 64), features=32)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 10)).eval()
    classifier = lf.classifiers.from_logits(network)
    seen, marks = 0, {}

    def counting(x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += len(x)
        marks[round(10 * seen / n)] = resident()
        return classifier(x)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.h5"
        write(path, n)
        size = path.stat().st_size / 2**20
        before = resident()
        started = time.perf_counter()
        images = lf.data.open_images(path)
        opened = time.perf_counter() - started
        print(f"{n} images, {size:.0f} MiB on disk; resident before: {before:.0f} MiB")
        print(f"opened in {opened:.1f} s; resident: {resident():.0f} MiB")
        started = time.perf_counter()
        z, p = lf.embed(images, vae, counting, batch_size=BATCH)
        seconds = time.perf_counter() - started
    for tenth, memory in sorted(marks.items()):
        print(f"{10 * tenth:>4} % embedded: resident {memory:.0f} MiB")
    kept = (z.nbytes + p.nbytes) / 2**20
    growth = max(marks.values()) - marks[1]
    print(f"embedded in {seconds:.1f} s, {1000 * seconds / n:.2f} ms per image")
    print(f"latents and answers: {kept:.0f} MiB; growth after the first tenth: {growth:.0f} MiB")


if __name__ == "__main__":
    main()
