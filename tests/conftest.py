import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    """Says loudly what was not tested because a program is missing."""
    reasons = {
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "MISSING" in report.longrepr[2]
    }
    for reason in sorted(reasons):
        terminalreporter.write_sep("!", reason, red=True, bold=True)
