"""Visual counterfactual explanations by leaps along a flow.

A generator, a classifier and a flow make an explainer; an explainer makes explanations.
"""

from . import alternatives as alternatives
from . import baselines as baselines
from . import bases as bases
from . import classifiers as classifiers
from . import couplings as couplings
from . import data as data
from . import errors as errors
from . import fields as fields
from . import generators as generators
from . import masks as masks
from . import metrics as metrics
from . import pretrained as pretrained
from . import reference as reference
from . import testing as testing
from . import training as training
from .bundle import Bundle
from .explainer import Explainer, LeapFactual
from .explanation import Explanation
from .fields import MLPField, VelocityField
from .flow import Flow
from .jobs.consistency import agreement
from .leaps import blend, focus, inject, leap, restart, tighten
from .solvers import RK4, Dopri5, Euler, Midpoint
from .training import embed, fit

__version__ = "0.1.0"

__all__ = [
    "RK4",
    "Bundle",
    "Dopri5",
    "Euler",
    "Explainer",
    "Explanation",
    "Flow",
    "LeapFactual",
    "MLPField",
    "Midpoint",
    "VelocityField",
    "agreement",
    "blend",
    "embed",
    "fit",
    "focus",
    "inject",
    "leap",
    "restart",
    "tighten",
]
