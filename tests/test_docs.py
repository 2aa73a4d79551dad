"""The documentation is true: its code runs, its lists are whole, its numbers are on disk."""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from inspect import isclass, isfunction, ismodule
from pathlib import Path

import pytest

import leapfactual as lf
from leapfactual.data import packages
from leapfactual.report import tables

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "getting-started" / "python.ipynb"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if not p.parent.name.startswith("_")),
]
RESULTS = {"bench": "performance", "squares": "paper", "morpho-mnist": "paper"}
INTERNAL = {"cli", "demos", "checks", "files", "extras", "web"}


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Lets the scripts of the documentation be imported by their names."""
    monkeypatch.syspath_prepend(str(DOCS))


def code(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


def run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    exec(compile(code(page), page.name, "exec"), names)
    return names


@pytest.mark.parametrize(
    "page", [p for p in PAGES if code(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_code_runs(page, tmp_path, monkeypatch):
    names = run(page, tmp_path, monkeypatch)
    CHECKS.get(page.stem, lambda names: None)(names)


def check_typicality(names):
    assert not names["percent"].isnan().any()
    assert ((names["percent"] >= 0) & (names["percent"] <= 100)).all()
    assert names["explanation"].valid.all()


def check_classifiers(names):
    assert len(names["explanations"]) == 3
    for explanation in names["explanations"].values():
        assert explanation.valid.double().mean() > 0.9
    assert lf.agreement(names["images"], names["vae"], names["classifiers"]["torch"]).overall > 0.9


def check_data(names):
    assert names["wines"].valid.double().mean() > 0.9
    assert [b.name for b in names["on_disk"].broken] == ["digits/3/broken.png"]


def check_generators(names):
    assert names["inverted"].error.max() < 0.01


def check_readme(names):
    assert names["explanation"].valid.all()


CHECKS = {
    "how-it-works": check_typicality,
    "classifier": check_classifiers,
    "data": check_data,
    "generator": check_generators,
    "README": check_readme,
}


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs"), "the outputs are made when the site is built"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert names["explanation"].valid.all()
    assert names["change"] < 0.1
    assert (tmp_path / "digits.html").stat().st_size > 50_000
    assert (tmp_path / "digit.gif").exists()
    assert names["scores"]["oracle"].mean > 0.8


def test_python_on_images_takes_fifteen_lines_in_the_readme():
    assert len([line for line in code(ROOT / "README.md").splitlines() if line]) <= 15
    assert max(map(len, (ROOT / "README.md").read_text().splitlines())) <= 100


def test_extending_takes_ten_lines():
    page = (DOCS / "how-to" / "extending.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for definition in re.findall(
            r"^(?:@.*\n)?(?:class|def) .*\n(?:(?: {4}.*)?\n)+", block, re.M
        ):
            assert len([line for line in definition.splitlines() if line]) <= 10, definition


def documented():
    """The names that the directives of the reference document, as dotted paths."""
    names = set()
    for page in (DOCS / "reference").glob("*.md"):
        for dotted in re.findall(r"\.\. automodule:: (\S+)", page.read_text()):
            module = importlib.import_module(dotted)
            listed = getattr(module, "__all__", None)
            members = listed or [
                name
                for name, value in vars(module).items()
                if not name.startswith("_") and getattr(value, "__module__", None) == dotted
            ]
            names |= {dotted} | {f"{dotted}.{name}" for name in members}
    return names


def test_every_public_name_is_in_the_reference():
    known = documented()
    objects = {id(_value(dotted)) for dotted in known}
    for name in lf.__all__:
        assert id(getattr(lf, name)) in objects, f"docs/reference lacks leapfactual.{name}"
    for found in pkgutil.iter_modules(lf.__path__, "leapfactual."):
        short = found.name.removeprefix("leapfactual.")
        if short.startswith("_") or short in INTERNAL:
            continue
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            if isclass(value := getattr(module, name)) or isfunction(value):
                assert f"{found.name}.{name}" in known, f"docs/reference lacks {short}.{name}"
        assert found.name in known, f"docs/reference lacks {found.name}"
        if found.ispkg and not hasattr(module, "__all__"):
            for inner in pkgutil.iter_modules(module.__path__, f"{found.name}."):
                assert inner.name in known, f"docs/reference lacks {inner.name}"


def _value(dotted):
    module, _, name = dotted.rpartition(".")
    value = sys.modules.get(dotted) or getattr(importlib.import_module(module), name)
    return value if not ismodule(value) else dotted


def test_every_command_is_documented():
    import cli_reference

    page = (DOCS / "reference" / "cli.md").read_text()
    generated = cli_reference.markdown()
    for words in cli_reference.commands():
        assert f"## `leapfactual {' '.join(words)}`" in generated
        name = "people …" if words[0] == "people" else " ".join(words)
        assert f"`leapfactual {name}" in page, f"docs/reference/cli.md lacks {words}"
    people = (DOCS / "how-to" / "people.md").read_text()
    for words in cli_reference.commands():
        if words[0] == "people" and len(words) == 2:
            assert re.search(rf"\b{words[1]}\b", people), f"docs/how-to/people.md lacks {words}"


def test_commands_on_the_pages_have_their_options():
    import cli_reference

    options = {}
    for part in cli_reference.markdown().split("## `leapfactual")[1:]:
        words, _, text = part.partition("`")
        options[words.strip()] = set(re.findall(r"--?[a-z][a-z-]*", text))
    for page in PAGES:
        for line in re.findall(r"^(?:\$ )?leapfactual ([^#\n]+)", page.read_text(), re.MULTILINE):
            names = [n for n in options if n and f"{line} ".startswith(f"{n} ")]
            used = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", line))
            known = options[max(names, key=len, default="")] | {"--install-completion"}
            assert used <= known, f"{page.name}: leapfactual {line}"


def test_data_sets_on_the_pages_are_listed():
    named = set()
    for page in (*PAGES, NOTEBOOK, *ROOT.glob("leapfactual/**/*.py")):
        found = re.findall(r"leapfactual data\s+(?:get|export)\s+([a-z][\w-]+)", page.read_text())
        named |= set(found)
    assert {"mnist", "wine", "lpips-alexnet", "efficientnet-lite0"} <= named <= set(packages.CARDS)


def test_public_names_are_few_and_useful_to_print():
    assert len(lf.__all__) <= 20
    for name in lf.__all__:
        assert getattr(lf, name).__doc__, name


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_the_pages_show_the_numbers_on_disk(path):
    page = (DOCS / "results" / f"{RESULTS.get(path.stem, path.stem)}.md").read_text()
    rows = [tables.Row(**row) for row in json.loads(path.read_text())["rows"]]
    if tables.markdown(rows) not in page:
        for setting in {row.setting for row in rows if "γ" not in row.setting}:
            assert tables.pivot([r for r in rows if r.setting == setting]) in page, setting


def test_the_explainers_are_compared_by_the_numbers_on_disk():
    rows = json.loads((DOCS / "results" / "morpho-mnist.json").read_text())["rows"]
    mean = {(r["setting"], r["method"], r["metric"]): r["mean"] for r in rows}
    page = (DOCS / "concepts" / "explainers.md").read_text()
    for name, setting, method in (
        ("LeapFactual, blending", "paper", "LeapFactual"),
        ("LeapFactual, reliable", "paper", "LeapFactual_R"),
        ("LeapFactual, tightened", "ours", "LeapFactual"),
        ("Opt-based", "paper", "Opt-based"),
        ("CGM-based", "paper", "CGM-based"),
    ):
        shares = [mean[setting, method, m] for m in ("validity", "oracle", "L1")]
        queries, time = (mean[setting, method, m] for m in ("queries", "milliseconds"))
        cells = [f"{share:.3f}".removeprefix("0") for share in shares]
        digits = 2 if time > 0.1 else 3
        assert f"| {name} | {' | '.join(cells)} | {queries:.0f} | {time:.{digits}f} ms |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_contributing_shows_the_layers():
    import import_graph

    assert import_graph.layers_markdown() in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_import_graph_shows_every_module():
    import import_graph

    edges, _ = import_graph.read()
    assert not import_graph.against(edges)
    assert not import_graph.cycles(edges)
    drawing = import_graph.svg()
    for found in pkgutil.iter_modules(lf.__path__):
        assert found.name == "__main__" or f">{found.name}</text>" in drawing
    assert "explainer imports flow" in drawing


def test_an_import_against_the_direction_and_a_cycle_would_be_seen():
    import import_graph

    assert import_graph.against({("flow", "cli"), ("cli", "flow")}) == {("flow", "cli")}
    assert import_graph.cycles({("a", "b"), ("b", "a"), ("c", "a")}) == {("a", "b"), ("b", "a")}
    assert not import_graph.cycles({("a", "b"), ("b", "c"), ("a", "c")})


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    out = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(out)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    assert "What would have had to be different" in (out / "index.html").read_text()
    assert "<math" in (out / "reference" / "flow.html").read_text()
    assert (
        '<svg xmlns="http://www.w3.org/2000/svg" class="imports"'
        in (out / "contributing.html").read_text()
    )
