"""Explains 20,000 pictures with the command line, kills it half-way, and goes on.

Prints the resident memory at each tenth of the way, which must stay flat, and what the kill cost.

    python -m benchmarks.explain [number of pictures]
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

import leapfactual
from leapfactual.pretrained import load

BUNDLE = Path(leapfactual.__file__).parent / "shipped" / "bundle"


def classify(x):
    """The classifier that the shipped bundle explains."""
    if not hasattr(classify, "shipped"):
        classify.shipped = load()
    return classify.shipped.classifier(x)


def draw(folder: Path, n: int) -> None:
    """Writes the shipped digits, shifted and dimmed at random, as PNG files."""
    folder.mkdir()
    digits = load().digits.images
    rng = torch.Generator().manual_seed(0)
    for row in range(n):
        down, right = torch.randint(-2, 3, (2,), generator=rng).tolist()
        light = 0.8 + 0.2 * torch.rand(1, generator=rng).item()
        x = digits[row % len(digits), 0].roll((down, right), (0, 1)) * light
        pixels = (x * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"{row:06d}.png")


def resident(pid: int) -> float:
    """The resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def run(words: list[str], out: Path, n: int, stop_at: float | None) -> float:
    """Runs the command, shows memory on the way, kills it where asked; returns the seconds."""
    started, shown = time.perf_counter(), 0
    with subprocess.Popen(words) as process:
        while process.poll() is None:
            time.sleep(0.2)
            done = 128 * len(list(out.glob("parts/0*.json"))) / n
            if done * 10 >= shown + 1 and process.poll() is None:
                shown = int(done * 10)
                print(f"{shown}/10: {resident(process.pid):.0f} MiB", flush=True)
            if stop_at is not None and done >= stop_at:
                os.kill(process.pid, signal.SIGKILL)
                break
    return time.perf_counter() - started


def main() -> None:
    """Draws, explains, kills, goes on, and compares."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as place:
        pictures, out = Path(place) / "pictures", Path(place) / "out"
        draw(pictures, n)
        words = [sys.executable, "-m", "leapfactual", "explain", str(BUNDLE), str(pictures)]
        words += ["--target", "3", "--reliability", "0", "--quiet", "--out", str(out)]
        words += ["--classifier", f"{Path(__file__).absolute()}:classify"]
        first = run(words, out, n, stop_at=0.5)
        kept = {p.name: p.stat().st_mtime_ns for p in out.glob("parts/0*.json")}
        print(f"killed after {first:.0f} s with {len(kept)} pieces done", flush=True)
        second = run(words, out, n, stop_at=None)
        rows = json.loads((out / "results.json").read_text())["rows"]
        names = [Path(row["name"]).name for row in rows]
        assert names == [f"{row:06d}.png" for row in range(n)], "something was lost"
        assert len(list((out / "counterfactuals").iterdir())) == n
        size = (out / "index.html").stat().st_size / 2**20
        print(f"went on for {second:.0f} s; {n} pictures, each once; page of {size:.1f} MiB")


if __name__ == "__main__":
    main()
