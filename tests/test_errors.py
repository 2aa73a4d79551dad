"""Each message names the value and the remedy: the page of mistakes shows what is printed."""

import re

import pytest

from tests.bad_inputs import CASES, PAGE, in_a_folder, row


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_printed_is_on_the_page(case):
    assert row(case, in_a_folder(case)) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_no_other_mistakes():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| `` .+ `` \|$", text, re.M)
    assert rows == [case.what for case in CASES]
    assert len(rows) == len({case.name for case in CASES}) >= 40
