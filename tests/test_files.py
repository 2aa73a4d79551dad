import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from leapfactual.files import atomic


def test_files_have_the_mode_that_the_users_others_have(tmp_path):
    (tmp_path / "other").write_text("")
    with atomic(tmp_path / "a.safetensors") as temporary:
        save_file({"z": torch.zeros(2)}, temporary)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with atomic(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_full_disk_is_an_os_error_whoever_was_writing(tmp_path):
    with pytest.raises(OSError, match="No space left on device"), atomic(tmp_path / "a"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError, match="something else"), atomic(tmp_path / "a"):
        raise SafetensorError("something else")
    assert not list(tmp_path.iterdir())
