import shutil

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Is Debian's chromium; tests that open pages do not run without it."""
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
