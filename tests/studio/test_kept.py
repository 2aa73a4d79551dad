"""What is kept stays, whole, whatever happens in between."""

import io
import json
import zipfile

import pytest
import torch
from PIL import Image

from leapfactual.errors import InputError, MissingData
from leapfactual.imaging import as_images
from leapfactual.studio import kept as module
from leapfactual.studio.kept import Kept
from tests.studio.conftest import found


@pytest.fixture(scope="module")
def explained(studio):
    return studio.answer(found(studio.walk("0", 3, 0))["answer"])[0]


def test_what_is_kept_is_there_after_a_restart(kept, explained):
    item = kept.add(explained, "a seven", "bends at the top")
    again = Kept(kept.folder)
    assert again.items() == [item]
    assert {k: item[k] for k in ("name", "note", "source", "target", "status")} == {
        "name": "a seven",
        "note": "bends at the top",
        "source": "7",
        "target": "3",
        "status": "reached",
    }
    loaded = again.load(item["key"])
    assert torch.equal(loaded.counterfactual, explained.counterfactual)
    assert loaded.classes == explained.classes
    assert kept.file(item["key"])[:8] != b""


def test_exports(kept, explained, studio):
    first, second = (kept.add(explained, f"seven {n}", "<b>note</b>" * n) for n in range(2))
    page = kept.page(studio.classes, studio.generator).decode()
    assert "seven 0" in page
    assert "\\u003cb>note" in page
    with zipfile.ZipFile(io.BytesIO(kept.archive())) as file:
        assert len(file.namelist()) == 5
        picture = Image.open(io.BytesIO(file.read(f"{first['key']}-counterfactual.png")))
        assert (as_images(picture) - explained.counterfactual).abs().max() < 0.01
        assert [item["key"] for item in json.loads(file.read("kept.json"))] == sorted(
            (first["key"], second["key"])
        )
    assert Image.open(io.BytesIO(kept.picture(first["key"]))).size == (28, 28)


def test_what_is_removed_is_gone(kept, explained):
    key = kept.add(explained, "a", "")["key"]
    kept.remove(key)
    assert kept.items() == []
    assert not [*kept.folder.glob("*")]
    with pytest.raises(MissingData, match="not kept any more"):
        kept.remove(key)


def test_what_a_kill_left_is_removed_and_what_is_whole_stays(kept, explained):
    item = kept.add(explained, "a", "")
    orphan = kept.folder / "20200101-000000-00000000.safetensors"
    orphan.write_bytes(b"half")
    stranger = kept.folder / "notes.safetensors"
    stranger.write_bytes(b"mine")
    assert [i["key"] for i in Kept(kept.folder).items()] == [item["key"]]
    assert not orphan.exists()
    assert stranger.exists(), "what is not ours is not touched"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"format": "other"}', "\xff"])
def test_damaged_notes_are_left_out(kept, explained, content):
    item = kept.add(explained, "a", "")
    bad = kept.folder / "20200101-000000-00000000.json"
    bad.write_text(content, encoding="latin-1")
    assert [i["key"] for i in kept.items()] == [item["key"]]


def test_a_damaged_explanation_does_not_spoil_the_export(kept, explained, studio):
    _, bad = (kept.add(explained, name, "") for name in ("good one", "bad one"))
    (kept.folder / f"{bad['key']}.safetensors").write_bytes(b"damaged")
    page = kept.page(studio.classes, None).decode()
    assert "good one" in page
    assert "bad one" not in page
    assert len(zipfile.ZipFile(io.BytesIO(kept.archive())).namelist()) == 3


@pytest.mark.parametrize("key", ["", "..", "../x", "20200101-000000-0000000g", "a" * 500, "\x00"])
def test_no_path_is_built_from_a_strangers_text(kept, explained, key):
    kept.add(explained, "a", "")
    for method in (kept.remove, kept.load, kept.file, kept.picture):
        with pytest.raises(MissingData):
            method(key)


def test_limits(kept, explained, monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT", 1)
    assert len(kept.add(explained, "a", "n" * 9999)["note"]) == module.MAX_NOTE
    with pytest.raises(InputError, match="1 are kept already"):
        kept.add(explained, "a", "")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--kept FOLDER"):
        Kept(tmp_path / "file")
