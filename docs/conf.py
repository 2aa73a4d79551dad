"""Builds the documentation: ``make docs``.

What depends on the code is written anew for every build into ``_generated``: the help of every
command and the import graph.
"""

import html
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

DOCS = Path(__file__).parent
logger = logging.getLogger(__name__)
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import cli_reference
import import_graph

import leapfactual

project = "leapfactual"
author = "the leapfactual developers"
version = release = leapfactual.__version__
copyright = "the leapfactual developers, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_generated"]

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Arguments", "params_style")]
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 110
nitpicky = True
# Types in signatures come from other libraries, attributes are described with their class, and
# packages name their private modules and functions: none of them has an entry here.
nitpick_ignore_regex = [
    ("py:(class|attr|data)", ".*"),
    ("py:mod", r"\w+|leapfactual\._.*"),
    ("py:func", r"new_database|confusion_matrix|status\.run_history|worker\.load_explainer"),
]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = f"leapfactual {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def write_generated(app: Sphinx) -> None:
    """Writes the parts of pages that come from the code."""
    folder = DOCS / "_generated"
    folder.mkdir(exist_ok=True)
    for name, text in {
        "cli.md": cli_reference.markdown(),
        "imports.svg": import_graph.svg(),
        "imports.md": import_graph.table(),
        "summary.md": import_graph.summary(),
    }.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def link_by_suffix(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Lets docstrings refer to names of other modules as code does: ``Flow.lift``, ``blend``."""
    for n, line in enumerate(lines):
        lines[n] = re.sub(
            r":(meth|func|class|attr|data|mod|exc):`(~?)(?:leapfactual\.(?=\w+`))?(\w[\w.]*)`",
            r":\1:`\2.\3`",
            line,
        )


def mathml(node: nodes.Element, *, block: bool) -> str:
    """Returns a formula as MathML, which browsers draw without a script or a network."""
    formula = re.sub(r"\\[bB]igg?(?![a-z])", "", node.astext())
    try:
        return latex2mathml.tex2mathml(formula, as_block=block)
    except MathError as error:
        logger.warning("cannot draw the formula %r: %s", formula, error, location=node)
        return f"<code>{html.escape(formula)}</code>"


def inline_math(self: HTML5Translator, node: nodes.math) -> None:
    """Writes a formula within a line."""
    self.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def block_math(self: HTML5Translator, node: nodes.math_block) -> None:
    """Writes a displayed formula, in a box that scrolls by itself."""
    self.body.append(f'<div class="formula">{mathml(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Registers what the pages need beyond extensions."""
    app.connect("builder-inited", write_generated)
    app.connect("autodoc-process-docstring", link_by_suffix)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
