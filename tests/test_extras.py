import math

import pytest

from leapfactual.errors import MissingExtra
from leapfactual.extras import require


def test_a_module_that_is_there_is_imported():
    assert require("math", extra="none", subject="roots need") is math


@pytest.mark.parametrize(("remedy", "ending"), [("", "."), ("or use RK4", ", or use RK4.")])
def test_a_module_that_is_missing_is_named_with_its_extra(remedy, ending):
    with pytest.raises(MissingExtra) as caught:
        require("nothere.inside", extra="adaptive", subject="Dopri5 needs", remedy=remedy)
    assert str(caught.value) == (
        "Dopri5 needs nothere, which is not installed. Run `pip install "
        f"'leapfactual[adaptive]'`{ending}"
    )
