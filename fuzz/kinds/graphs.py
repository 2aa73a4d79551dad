"""OpenVINO models: graphs without ports and attributes, with cycles, of wrong shapes."""

import random
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch

from leapfactual.generators import GAN, from_openvino

from ..mutations import TEXTS, mutate_bytes, number
from ..watch import expect
from .kind import Kind, Read

FEATURES, SHAPE = 4, (1, 8, 8)
MODEL = """<?xml version="1.0"?>
<net name="a" version="11"><layers>
<layer id="0" name="z" type="Parameter"><data shape="1,4" element_type="f32"/>
 <output><port id="0"/></output></layer>
<layer id="1" name="w" type="Const"><data element_type="f32" shape="4,16" offset="0" size="256"/>
 <output><port id="0"/></output></layer>
<layer id="2" name="m" type="MatMul"><data transpose_a="false" transpose_b="false"/>
 <input><port id="0"/><port id="1"/></input><output><port id="2"/></output></layer>
<layer id="3" name="s" type="Const"><data element_type="i64" shape="4" offset="256" size="32"/>
 <output><port id="0"/></output></layer>
<layer id="4" name="r" type="Reshape"><data special_zero="true"/>
 <input><port id="0"/><port id="1"/></input><output><port id="2"/></output></layer>
<layer id="5" name="n" type="Const"><data element_type="i64" shape="4" offset="288" size="32"/>
 <output><port id="0"/></output></layer>
<layer id="6" name="t" type="Tile">
 <input><port id="0"/><port id="1"/></input><output><port id="2"/></output></layer>
<layer id="7" name="k" type="Const">
 <data element_type="f32" shape="1,1,1,1" offset="320" size="4"/>
 <output><port id="0"/></output></layer>
<layer id="8" name="c" type="Convolution">
 <data strides="1,1" dilations="1,1" pads_begin="0,0" pads_end="0,0" auto_pad="explicit"/>
 <input><port id="0"/><port id="1"/></input><output><port id="2"/></output></layer>
<layer id="9" name="o" type="Result"><input><port id="0"/></input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="4" to-port="0"/>
<edge from-layer="3" from-port="0" to-layer="4" to-port="1"/>
<edge from-layer="4" from-port="2" to-layer="6" to-port="0"/>
<edge from-layer="5" from-port="0" to-layer="6" to-port="1"/>
<edge from-layer="6" from-port="2" to-layer="8" to-port="0"/>
<edge from-layer="7" from-port="0" to-layer="8" to-port="1"/>
<edge from-layer="8" from-port="2" to-layer="9" to-port="0"/>
</edges></net>
"""
KINDS = ("Tile", "Reshape", "Broadcast", "Squeeze", "Gather", "VariadicSplit", "Concat", "Power")
KINDS += ("Add", "ShapeOf", "PReLU", "GroupConvolution", "GroupConvolutionBackpropData", "Result")
KINDS += ("Parameter", "ReduceMean", "Unsqueeze", "Loop", "")
ENTITIES = """<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "aaaaaaaaaa">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">
<!ENTITY s SYSTEM "file:///etc/passwd">]>"""


def weights() -> bytes:
    """Returns the constants of the model."""
    rng = np.random.default_rng(0)
    parts = (
        rng.standard_normal((4, 16)).astype("f4") / 8,
        np.array([0, 1, 4, 4], "i8"),
        np.array([1, 1, 2, 2], "i8"),
        np.ones(1, "f4") / 8,
    )
    return b"".join(part.tobytes() for part in parts)


class Graphs(Kind):
    """OpenVINO models."""

    name, share = "graphs", 6

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        root = ElementTree.fromstring(MODEL)
        constants = bytearray(weights())
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            _change(rng, root)
        if rng.random() < 0.4:
            at = rng.choice((256, 264, 272, 280, 288, 296, 304, 312))
            constants[at : at + 8] = np.int64(
                rng.choice((0, 1, 2, 3, -1, -2, 8, 10**6, 2**40, 2**62))
            ).tobytes()
        content = ElementTree.tostring(root)
        if rng.random() < 0.2:
            content = mutate_bytes(rng, content)
        elif rng.random() < 0.05:
            content = ENTITIES.encode() + content.replace(b'name="z"', b'name="&c;&s;"')
        path = given / "a.xml"
        path.write_bytes(content)
        cut = rng.choice((len(constants),) * 9 + (100,))
        path.with_suffix(".bin").write_bytes(constants[:cut])
        return lambda: _read(path)


def _change(rng: random.Random, root: ElementTree.Element) -> None:
    elements = list(root.iter())
    element = rng.choice(elements)
    kind = rng.randrange(5)
    if kind == 0 and len(element):
        element.remove(rng.choice(list(element)))
    elif kind == 1 and element.attrib:
        del element.attrib[rng.choice(list(element.attrib))]
    elif kind == 2:
        edge = rng.choice(list(root.iter("edge")) or [element])
        edge.attrib[rng.choice(("from-layer", "to-layer"))] = str(rng.randrange(11))
    elif kind == 3:
        layer = rng.choice(list(root.iter("layer")) or [element])
        layer.attrib["type"] = rng.choice(KINDS)
    elif element.attrib:
        texts = [t for t in TEXTS if t.isprintable() and len(t) < 99]
        shape = ",".join(str(rng.choice((0, 1, 4, -1, 10**9))) for _ in range(rng.randrange(6)))
        key = rng.choice(list(element.attrib))
        element.attrib[key] = rng.choice((str(number(rng)), rng.choice(texts), shape))


def _read(path: Path) -> None:
    generator = GAN(from_openvino(path, engine="torch"), features=FEATURES, shape=SHAPE)
    z = torch.randn(3, FEATURES, generator=torch.Generator().manual_seed(0))
    x = generator.decode(z)
    expect(tuple(x.shape) == (3, *SHAPE), f"images of {x.shape} for {z.shape}")
    # Whether they are finite is seen where they are used.
