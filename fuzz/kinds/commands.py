"""The command line, in process: options with any values, and configurations."""

import contextlib
import importlib
import io
import os
import random
import shutil
import sys
from pathlib import Path

import torch
from PIL import Image

from leapfactual import cli
from leapfactual.errors import InputError
from leapfactual.imaging import to_pil

from ..mutations import TEXTS, mutate_bytes, mutate_text, number
from ..watch import expect, has_secret
from .classifiers import MODULE
from .kind import Kind, Read, small_bundle

COMMANDS = ("fit", "explain", "evaluate", "augment", "inspect", "data", "people", "demo")
OPTIONS = {
    "fit": "--classifier --votes --output-type --oracle --classes --size --channels --stretch "
    "--generator --minutes --features --epochs --flow-epochs --seed --device --config",
    "explain": "--target --targets --classifier --output-type --mask --reliability --plan "
    "--alternatives --seed --device --page --title --config",
    "evaluate": "--target --classifier --oracle --reliability --plan --seed --device --config",
    "augment": "--to --share --classifier --typical --oracle --reliability --plan --seed --config",
    "inspect": "--json",
    "data": "--archive --limit",
    "people": "--question --out --target --targets --classes --name --plan --mode --max-frames "
    "--least --share --most --method --posterior --gold --gold-share --repeat-share --lease",
    "demo": "--out --engine --faces --photo --steps --device --seed",
}
FLAGS = {
    "fit": "--rotate --json --quiet",
    "explain": "--all-targets --force --reliable --fast --keep-pixels --no-keep-pixels --json -q",
    "evaluate": "--all-targets --force --reliable --fast --keep-pixels --json --quiet",
    "augment": "--rare --force --no-valid --valid --fast --keep-pixels --json --quiet",
}
WORDS = (
    *("dark", "bright", "images", "bundle", "mine.py:label", "targets.csv", "images/0.png"),
    *("config.toml", "blend(2, 0.5)", "tighten(3)", "cpu", "1", "0", "0.5", "labels", "auto"),
)

# What a user names on the command line may be read, wherever it is.
SAID = [text for text in TEXTS if "outside" not in text]


class Commands(Kind):
    """Commands with options of any value."""

    name, share = "commands", 2

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        # Fonts are looked for once, by another program, and not by the inputs.
        os.environ["MPLCONFIGDIR"] = str(base)
        importlib.import_module("matplotlib.font_manager")
        small_bundle().save(base / "bundle")
        (base / "images").mkdir()
        pixels = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(4))
        for n, image in enumerate(pixels):
            to_pil(image).save(base / "images" / f"{n}.png")
        Image.new("L", (8, 8), 255).save(base / "mask.png")
        (base / "mine.py").write_text(MODULE)
        (base / "targets.csv").write_text("image,target\n0.png,bright\n1.png,dark\n")
        (base / "config.toml").write_text("[explain]\ntarget = 'dark'\n")

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        shutil.copytree(self.base, given, dirs_exist_ok=True)
        # Everything is drawn before it runs.
        words = _words(rng)
        return lambda: invoke(words)


class Configs(Kind):
    """Configuration files."""

    name, share = "configs", 5

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        command = rng.choice(COMMANDS[:4])
        lines = [f"[{command}]" if rng.random() < 0.8 else f"{command} = {_toml(rng)}"]
        for _ in range(rng.randrange(5)):
            key = rng.choice(OPTIONS[command].split()).removeprefix("--")
            key = key if rng.random() < 0.9 else rng.choice(TEXTS)
            lines.append(f"{key} = {_toml(rng)}")
        content = "\n".join(lines)
        if rng.random() < 0.3:
            content = mutate_text(rng, content)
        written = content.encode(errors="surrogatepass")
        path = given / "config.toml"
        path.write_bytes(mutate_bytes(rng, written) if rng.random() < 0.2 else written)
        words = [command, "bundle", "images", "--config", "config.toml", "--out", "out"]
        return lambda: invoke([w for w in words if command != "fit" or w != "bundle"])


def _toml(rng: random.Random) -> str:
    word = repr(rng.choice((*TEXTS, *WORDS)))
    deep = rng.choice((3, 500, 5000))
    return rng.choice(
        (
            *(repr(number(rng)), word, word, "true", "[]", "{}", f"[{word}, 1]", "2020-01-01"),
            *("[1, 2]", "[" * deep + "]" * deep, "0x" + "f" * 99, "1e400", "'''", "nan"),
            "9" * 5000,
        )
    )


def _words(rng: random.Random) -> list[str]:
    command = rng.choice((*COMMANDS, *COMMANDS[1:4], *COMMANDS[1:4]))
    words = [command]
    if command in ("explain", "evaluate", "augment"):
        words += ["bundle", "images", "--classifier", "mine.py:label"]
        words += ["--out", "out"] + (["--target", "bright"] if command == "explain" else [])
    elif command == "fit":
        # What a fit refuses, it refuses before it trains, which would take minutes.
        words += [rng.choice(("images", "targets.csv", "none", "mine.py")), "--out", "out"]
    elif command == "people":
        words += [rng.choice(("create", "status", "results", "verify", "invite", "import"))]
        words += [rng.choice(("bundle", "none.db", "targets.csv")), "images"]
    elif command == "data":
        words += [rng.choice(("list", "get", "export")), rng.choice(("mnist", "none", "wine"))]
        # Nothing is fetched: there is no network.
        words += ["--archive", "targets.csv"] if words[1] == "get" else ["out.csv"]
    elif command == "inspect":
        words += [rng.choice(("bundle", "images", "none", rng.choice(SAID)))]
    else:
        words += [rng.choice(("digit", "face", "people"))]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        words.append(rng.choice(OPTIONS[command].split()))
        words.append(rng.choice((*WORDS, rng.choice(SAID), rng.choice(SAID), repr(number(rng)))))
    if rng.random() < 0.4 and command in FLAGS:
        words.append(rng.choice(FLAGS[command].split()))
    if rng.random() < 0.1:
        words[rng.randrange(len(words))] = rng.choice(SAID)
    # A shell hands over bytes without zeros; those that are no text become surrogates.
    return [os.fsdecode(word.replace("\0", "").encode(errors="replace")) for word in words]


def invoke(words: list[str]) -> None:
    """Runs the command line as the program does, and says how it ended."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    before = sys.argv
    sys.argv = ["leapfactual", *words]
    status: object = 0
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            cli.main()
    except SystemExit as end:
        status = 0 if end.code is None else end.code
    finally:
        sys.argv = before
    for stream in streams:
        stream.flush()
    out, said = (stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]
    expect(status in (0, 1, 2), f"exit status {status}")
    expect(b"Traceback" not in out + said, "a traceback")
    expect(not has_secret(out + said), "the secret is printed")
    if status:
        raise InputError(f"exit status {status}: {said.decode(errors='replace')}")
