import os
import shutil

# One thread for each worker and for what it starts: on two cores, two workers with two threads
# each wait for one another most of the time. To be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Returns Debian's chromium; tests that open pages do not run without it."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.skip("CHROMIUM IS MISSING: THE PAGE IS NOT TESTED")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def pytest_terminal_summary(terminalreporter):
    """Says loudly what was not tested because a program is missing."""
    reasons = {
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "MISSING" in report.longrepr[2]
    }
    for reason in sorted(reasons):
        terminalreporter.write_sep("!", reason, red=True, bold=True)
