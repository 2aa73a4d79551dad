"""The documentation is true: its code runs, its lists are whole, its numbers are on disk."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import leapfactual as lf
from leapfactual.report import tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def generated():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "your-own.md"], ids=lambda p: p.name
)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "page"})


def test_the_example_of_typicality_gives_percentiles():
    """Runs getting-started.md and looks at what it computes, not only that it runs."""
    page = (ROOT / "docs" / "getting-started.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(compile("\n".join(blocks[:-1]), "page", "exec"), names)
    assert not names["percent"].isnan().any()
    assert ((names["percent"] >= 0) & (names["percent"] <= 100)).all()
    assert names["explanation"].valid.all()


def test_every_classifier_of_the_page_on_ones_own_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "your-own.md").read_text()
    names = {"__name__": "page"}
    exec(
        compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "page", "exec"),
        names,
    )
    assert len(names["explanations"]) == 3
    for found in (*names["explanations"].values(), names["wines"]):
        assert found.valid.double().mean() > 0.9
    assert lf.agreement(names["images"], names["vae"], names["classifiers"]["torch"]).overall > 0.9
    assert names["inverted"].error.max() < 0.01
    assert [b.name for b in names["on_disk"].broken] == ["digits/3/broken.png"]


def test_the_tutorial_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]
    names = {"__name__": "tutorial"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tutorial", "exec"), names)
    assert names["explanation"].valid.all()
    assert names["change"] < 0.1
    assert (tmp_path / "digits.html").stat().st_size > 50_000
    assert (tmp_path / "digit.gif").exists()
    assert names["scores"]["oracle"].mean > 0.8


def test_the_api_page_is_fresh(generated):
    assert (ROOT / "docs" / "api.md").read_text() == generated.api(), "run `make docs`"


def test_every_command_and_option_is_documented(generated):
    written = (ROOT / "docs" / "cli.md").read_text()
    for words in generated.commands(generated.cli.app):
        assert f"## `leapfactual {' '.join(words)}`" in written, "run `make docs`"
    options = set(re.findall(r"--[a-z-]+", generated.command_line()))
    assert options <= set(re.findall(r"--[a-z-]+", written)), "run `make docs`"


def test_public_names_are_few_and_useful_to_print():
    assert len(lf.__all__) <= 20
    for name in lf.__all__:
        assert getattr(lf, name).__doc__, name


def test_the_pages_show_the_numbers_on_disk():
    for path in (ROOT / "docs" / "results").glob("*.json"):
        own = ROOT / "docs" / f"{path.stem}.md"
        other = {"bench": "performance.md"}.get(path.stem, "paper.md")
        page = (own if own.exists() else ROOT / "docs" / other).read_text()
        rows = [tables.Row(**row) for row in json.loads(path.read_text())["rows"]]
        if tables.markdown(rows) in page:
            continue
        for setting in {row.setting for row in rows if "γ" not in row.setting}:
            assert tables.pivot([r for r in rows if r.setting == setting]) in page, setting


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link
