import numpy as np
import pytest
from PIL import Image

from leapfactual.data import export as exporting
from leapfactual.data import open_images, open_table, packages
from leapfactual.errors import InputError
from leapfactual.pretrained import load


@pytest.fixture
def digits(monkeypatch):
    """Lets the shipped digits stand in for both splits, so that nothing is fetched."""
    shipped = load().digits
    monkeypatch.setattr(exporting, "digits", lambda split: shipped)
    return shipped


def test_digits_become_class_folders(digits, tmp_path):
    counted = []
    folder = exporting.export("mnist", tmp_path / "out", limit=3, on_progress=counted.append)
    images = open_images(folder / "train")
    assert images.classes == tuple("0123456789")
    assert images.labels.bincount().tolist() == [3] * 10
    assert counted[-1] == 60
    first = (digits.labels == 7).nonzero()[0, 0]
    with Image.open(folder / "test" / "7" / "00000.png") as image:
        expected = (digits.images[first, 0] * 255).round().byte().numpy()
        assert np.array_equal(np.asarray(image), expected)


def test_wines_become_a_table(tmp_path):
    table = open_table(exporting.export("wine", tmp_path / "wine.csv"))
    assert len(table) == 178
    assert len(table.columns) == 13
    assert table.classes == ("class_0", "class_1", "class_2")


def test_what_cannot_be_exported_is_named(tmp_path):
    with pytest.raises(InputError, match="`cats` cannot be exported: there are mnist"):
        exporting.export("cats", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="there is something at .*full already"):
        exporting.export("mnist", tmp_path / "full")


def test_galaxies_are_cut_to_their_centre(tmp_path, monkeypatch):
    import io
    import zipfile

    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for n, (split, label) in enumerate((("train", 0), ("valid", 2), ("test", 3))):
            group = file.create_group(f"data_{n}")
            pixels = np.zeros((300, 300), np.uint8)
            pixels[150, 150] = 200 + n
            group["Img"], group["Label_literature"] = pixels, float(label)
            group["Split_literature"] = split
    with zipfile.ZipFile(tmp_path / "galaxies.zip", "w") as archive:
        archive.writestr("galaxy_data_h5.h5", buffer.getvalue())
    monkeypatch.setattr(packages, "files", lambda name: [tmp_path / "galaxies.zip"])
    folder = exporting.export("radio-galaxies", tmp_path / "out")
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.png"))
    assert found == ["test/Bent/00000.png", "train/Compact/00000.png", "train/FRI/00000.png"]
    with Image.open(folder / "train" / "FRI" / "00000.png") as image:
        assert image.size == (128, 128)
        assert image.getpixel((64, 64)) == 200
