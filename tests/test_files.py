import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from leapfactual.errors import InputError
from leapfactual.files import (
    MAX_NESTING,
    atomic,
    load_weights,
    parse_json,
    read_modules,
    read_safetensors,
    remove_temporaries,
    write_modules,
    write_safetensors,
)


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


def test_tied_kernels_with_their_channels_last_are_written(tmp_path):
    kernel = torch.rand(2, 3, 3, 3).to(memory_format=torch.channels_last)
    bias = torch.rand(4, 5).T
    tied = {"a": kernel, "b": kernel.detach(), "c": bias, "d": bias.detach()}
    write_safetensors(tied, tmp_path / "w.safetensors", {"format": "any"})
    _, found = read_safetensors(tmp_path / "w.safetensors", "any", "")
    for name, value in tied.items():
        assert torch.equal(found[name], value), name


def test_tied_weights_are_written_each(tmp_path):
    layer = nn.Linear(3, 3)
    weight = layer.weight.detach()
    tied = {"a": weight, "b": weight, "row": weight[1]}
    write_safetensors(tied, tmp_path / "t.safetensors", {"format": "t"})
    _, tensors = read_safetensors(tmp_path / "t.safetensors", "t", "")
    assert all(torch.equal(tensors[name], value) for name, value in tied.items())


@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 990, 100_000])
def test_json_is_nested_no_deeper_than_a_limit(depth):
    assert parse_json("[" * MAX_NESTING + "]" * MAX_NESTING) is not None
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ValueError, match=f"nested more than {MAX_NESTING} deep"):
            parse_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(3, 4)}, r"`weight` has the shape \(3, 4\), .*has \(3, 2\)"),
        ({"weight": torch.zeros(3, 2, dtype=torch.int8)}, "`weight` holds torch.int8, expected"),
        ({"weight": torch.zeros(3, 2).to(torch.float8_e5m2)}, "holds torch.float8_e5m2"),
        ({"weight": torch.zeros(3, 2).half()}, "`bias` holds torch.float32.*torch.float16"),
        ({"other": torch.zeros(1)}, "1 tensors are of another network, `other` among them"),
    ],
)
def test_weights_that_a_network_does_not_declare_are_named(change, message):
    layer = nn.Linear(2, 3)
    before = layer.weight.clone()
    tensors = {**nn.Linear(2, 3).state_dict(), **change}
    for assign in (True, False):
        with pytest.raises(ValueError, match=message):
            load_weights(layer, tensors, assign=assign)
    assert torch.equal(layer.weight, before)
    with pytest.raises(ValueError, match="2 tensors are missing, `bias` among them"):
        load_weights(layer, {})


def test_parts_of_another_network_are_named(tmp_path):
    write_modules({"judge": nn.Linear(2, 3)}, tmp_path / "parts")
    with pytest.raises(
        InputError, match=r"parts does not fit .*`weight`.*Delete it to train anew"
    ):
        read_modules({"judge": nn.Linear(2, 4)}, tmp_path / "parts")


def test_what_a_kill_left_of_a_write_is_removed_and_nothing_else(tmp_path):
    names = {".hidden", ".a.json", "b.0123456789abcdef0123456789abcdef.json", ".a.0123.json"}
    for name in names:
        (tmp_path / name).write_text("")
    killed = [atomic(tmp_path / name) for name in ("job.json", "folder")]
    for writing in killed:
        writing.__enter__().write_text("half")
    assert len(list(tmp_path.iterdir())) == len(names) + 2
    remove_temporaries(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names
