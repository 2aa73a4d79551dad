"""The kinds of hostile inputs, each with its share of all inputs."""

from .archives import Archives
from .arrays import Arrays
from .bundles import Bundles
from .classifiers import Answers, Spellings
from .commands import Commands, Configs
from .graphs import Graphs
from .kind import Kind
from .networks import Networks
from .parts import Parts
from .pictures import Pictures
from .plans import Plans
from .tables import Lists, Tables

KINDS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        *(Plans, Pictures, Archives, Tables, Lists, Arrays, Bundles, Networks, Graphs, Answers),
        *(Spellings, Parts, Configs, Commands),
    )
}

__all__ = ["KINDS", "Kind"]
