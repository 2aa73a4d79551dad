import collections
import io
import os
import pickle
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leapfactual.data.checkpoints import DTYPES, MAGIC, MAX_OPCODES, read_checkpoint
from leapfactual.errors import InputError

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "parts"])


def saved(state, zipped):
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def parts(main, keys=(), storages=b""):
    """A checkpoint in five parts around a pickle of our own."""
    info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    heads = b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, 1001, info))
    return heads + main + pickle.dumps(list(keys), protocol=2) + storages


def archive(main, **storages):
    """A checkpoint as a ZIP archive around a pickle of our own."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("a/data.pkl", main)
        for key, content in storages.items():
            out.writestr(f"a/data/{key}", content)
    return file.getvalue()


class Reduced:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Described(pickle.Pickler):
    """Writes ``("storage", …)`` tuples as persistent ids, as torch does."""

    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] == ("storage",) else None


def described(size=(2, 3), stride=(3, 1), offset=0, numel=6, storage=None):
    """The pickle of one tensor, described at will."""
    storage = storage or ("storage", torch.FloatStorage, "k", "cpu", numel)
    tensor = Reduced(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {})
    file = io.BytesIO()
    Described(file, protocol=2).dump({"w": tensor})
    return file.getvalue()


def state():
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    return network.state_dict()


@FORMATS
def test_what_torch_saved_is_read(zipped):
    shared = torch.arange(12.0)
    kinds = {name: torch.arange(5).to(dtype) for name, dtype in DTYPES.items()}
    views = {
        "transposed": shared.view(3, 4).T,
        "part": shared[5:9],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    for expected in (state(), kinds, views):
        found = read_checkpoint(saved(expected, zipped))
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)


@FORMATS
def test_tensors_that_shared_memory_share_it(zipped):
    row = torch.zeros(4)
    found = read_checkpoint(saved({"a": row, "b": row[:2]}, zipped))
    found["a"][0] = 1
    assert found["b"][0] == 1


def test_our_own_pickle_is_read():
    numbers = struct.pack("<6f", *range(6))
    expected = torch.arange(6.0).view(2, 3)
    storage = ("storage", torch.FloatStorage, "k", "cpu", 6, None)
    old = parts(described(storage=storage), "k", struct.pack("<q", 6) + numbers)
    assert torch.equal(read_checkpoint(old)["w"], expected)
    assert torch.equal(read_checkpoint(archive(described(), k=numbers))["w"], expected)


@pytest.mark.parametrize("build", [parts, archive])
@pytest.mark.parametrize(
    "hostile",
    [
        Reduced(os.system, "touch /tmp/owned"),
        Reduced(eval, "1 + 1"),
        Reduced(getattr, "", "join"),
        Reduced(torch.load, "weights.pth"),
        Reduced(torch.nn.Linear, 2, 3),
        torch.nn.Module,
        torch.Tensor,
        collections.Counter,
    ],
    ids=lambda hostile: getattr(hostile, "call", [hostile])[0].__name__,
)
def test_only_tensors_are_read(build, hostile):
    with pytest.raises(InputError, match="but only tensors are read"):
        read_checkpoint(build(pickle.dumps({"w": hostile}, protocol=2)))


@pytest.mark.parametrize(
    "main",
    [
        pickle.dumps({"w": os.system}, protocol=4),
        b"(S'echo'\nios\nsystem\n.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"\x80\x02\x82\x01.",
    ],
    ids=["STACK_GLOBAL", "INST", "NEWOBJ", "EXT1"],
)
def test_other_ways_to_call_are_refused(main):
    with pytest.raises(
        InputError, match=r"the pickle uses [A-Z0-9_]+, but tensors do not need it"
    ):
        read_checkpoint(parts(main))


def test_a_pickle_cannot_change_what_reads_the_next_one():
    named = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n"
    attributes = b"}X\x08\x00\x00\x00__code__Ns"
    for build in (attributes, b"N" + attributes + b"\x86"):
        with pytest.raises(InputError):
            read_checkpoint(parts(named + build + b"b."))
    test_our_own_pickle_is_read()


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (described(size=(3, 3)), r"`w` of shape \(3, 3\) reaches out of its storage of 6"),
        (described(offset=1), "reaches out of its storage"),
        (described(stride=(4, 1)), "reaches out of its storage"),
        (described(size=(2**40,), stride=(0,)), "reaches out of its storage"),
        (described(size=(2, -3)), "which is no tensor"),
        (described(offset=-1), "which is no tensor"),
        (described(stride=(3,)), "which is no tensor"),
        (described(size=(2, 3.5)), "BINFLOAT"),
        (described(size="ab", stride="cd"), "which is no tensor"),
        (described(numel=2**40, size=(2**40,), stride=(1,)), "announces 4398046511104 bytes"),
        (described(numel=-6), "which is none"),
        (described(storage=("storage", "float", "k", "cpu", 6)), "which is none"),
        (described(storage=("storage", torch.FloatStorage, "k", "cpu", 6, (0, 6))), "is none"),
        (described(storage=("storage",)), "damaged"),
        (described(numel=5, size=(5,), stride=(1,)), "storage k has 24 bytes, expected 20"),
        (described(numel=7), "storage k has 24 bytes, expected 28"),
        (pickle.dumps({"epoch": 3}, protocol=2), "Only state dicts are read"),
        (pickle.dumps([1, 2], protocol=2), "Only state dicts are read"),
        (b"\x80\x02" + b"N" * (MAX_OPCODES + 1) + b".", "more than 80000 steps or slots"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "more than 80000 steps or slots"),
        (b"", "damaged"),
    ],
)
def test_wrong_descriptions_are_named(main, message):
    with pytest.raises(InputError, match=message):
        read_checkpoint(archive(main, k=struct.pack("<6f", *range(6))))


def test_a_storage_is_one_thing():
    tensors = {
        name: Reduced(
            torch._utils._rebuild_tensor_v2,
            ("storage", kind, "k", "cpu", 6),
            *(0, (6,), (1,), False, {}),
        )
        for name, kind in (("a", torch.FloatStorage), ("b", torch.IntStorage))
    }
    file = io.BytesIO()
    Described(file, protocol=2).dump(tensors)
    with pytest.raises(InputError, match="storage k is announced as two different ones"):
        read_checkpoint(archive(file.getvalue(), k=bytes(24)))


def test_old_files_hold_as_many_numbers_as_they_announced():
    old = parts(described(), "k", struct.pack("<q", 5) + bytes(24))
    with pytest.raises(InputError, match="storage k has 5 numbers, 6 were announced"):
        read_checkpoint(old)


def test_other_files_are_refused():
    for content in (b"", b"PK", b"\x80\x02K\x01.\x80\x02K\x01.", b"no checkpoint"):
        with pytest.raises(InputError, match="damaged|does not begin as one"):
            read_checkpoint(content)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.pkl", described())
        out.writestr("a/data/k", bytes(24))
    with pytest.raises(InputError, match="is compressed, which torch never does"):
        read_checkpoint(file.getvalue())
    content = saved(state(), zipped=True).replace(b"little", b"biglyx")
    with pytest.raises(InputError, match="big-endian|CRC"):
        read_checkpoint(content)


@FORMATS
def test_a_file_that_was_cut_off_is_refused(zipped):
    content = saved(state(), zipped)
    for length in range(0, len(content) - 1, 37):
        with pytest.raises(InputError):
            read_checkpoint(content[:length])


@FORMATS
@given(data=st.data())
def test_random_damage_gives_tensors_or_a_clear_error(zipped, data):
    content = bytearray(saved(state(), zipped))
    places = st.integers(0, len(content) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        content[place] = byte
    try:
        found = read_checkpoint(bytes(content))
    except InputError:
        return
    assert all(isinstance(value, torch.Tensor) for value in found.values())
