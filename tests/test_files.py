import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from leapfactual.files import atomic, read_safetensors, write_safetensors


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


def test_equal_tensors_make_equal_files_in_every_process(tmp_path):
    """The order of metadata is random in each process, unless it is put in order."""
    code = (
        "import sys, torch; from leapfactual.files import write_safetensors; "
        "write_safetensors({'a': torch.arange(6.0).reshape(2, 3), 'b': torch.ones(2)}, "
        "sys.argv[1], {k: k + ' über \\n\\x01' for k in 'format kind config more'.split()})"
    )
    paths = [tmp_path / f"{n}.safetensors" for n in range(3)]
    for path in paths:
        subprocess.run([sys.executable, "-c", code, path], check=True)
    assert len({path.read_bytes() for path in paths}) == 1
    metadata, tensors = read_safetensors(paths[0], "format über \n\x01", "")
    assert metadata["more"] == "more über \n\x01"
    assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_tied_weights_are_written_each(tmp_path):
    layer = nn.Linear(3, 3)
    weight = layer.weight.detach()
    tied = {"a": weight, "b": weight, "row": weight[1]}
    write_safetensors(tied, tmp_path / "t.safetensors", {"format": "t"})
    _, tensors = read_safetensors(tmp_path / "t.safetensors", "t", "")
    assert all(torch.equal(tensors[name], value) for name, value in tied.items())
