"""Sphinx configuration: .ci/run docs builds the site."""

import re
import shutil
import tomllib
from pathlib import Path

import bn_ext

project = "bn_ext"
author = "the bn_ext developers"
copyright = f"2026, {author}"
version = release = bn_ext.__version__

extensions = [
    "myst_nb",
    "notfound.extension",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
# autosummary writes its pages in the first of these.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore = [("py:obj", "bn_ext"), ("py:obj", "bn_ext.specs")]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

autosummary_generate = True
templates_path = ["_templates"]
default_role = "autolink"
autodoc_typehints = "none"  # docstrings say it for readers, stubs for checkers
numpydoc_show_class_members = False
# Types are links; to Python's and NumPy's pages by lists of the few that occur here, so that the
# site is built without a network.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "_inventories/python.txt"),
    "numpy": ("https://numpy.org/doc/stable/", "_inventories/numpy.txt"),
}
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    "None": ":data:`None`",
    **{
        name: f":class:`{name}`"
        for name in ["bool", "dict", "float", "int", "list", "str", "tuple"]
    },
    **{
        name: f":class:`{name} <numpy.{name}>`"
        for name in ["ndarray", "float16", "float32", "float64", "uint8"]
    },
    # What is taken as one is more than these.
    **{name: name for name in ("array", "sequence", "iterable", "True", "False")},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

#: Pages of tables that need all the room.
WIDE = ["figures"]

html_theme = "pydata_sphinx_theme"
html_title = f"bn_ext {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], **{page: [] for page in WIDE}},
    "footer_start": ["copyright"],
    "footer_end": [],
}
# Until the project has a home, nothing links there.
html_baseurl = ""
urls = tomllib.loads(Path("../pyproject.toml").read_text())["project"]["urls"]
if "example.invalid" not in urls["Repository"]:
    html_baseurl = urls["Documentation"]
    html_theme_options["icon_links"] = [
        {"name": "Repository", "url": urls["Repository"], "icon": "fa-solid fa-code-branch"}
    ]
html_sidebars = {"index": [], "tutorial": [], "layer": [], "glossary": []}


#: Of MathJax, what pages of TeX load: the rest is four fifths of it.
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2")


def keep_of_mathjax(app, error):
    """Nothing but that."""
    folder = Path(app.outdir, "_static", "mathjax")
    wanted = [folder / name for name in MATHJAX]
    for path in sorted(folder.rglob("*"), reverse=True) if error is None else ():
        if any(path == each or path in each.parents or each in path.parents for each in wanted):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def adapt(app, page, source):
    """Hide the blank line that ends an example for doctest; link programs in the repository."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")
    if html_baseurl:
        there = f"]({urls['Repository']}/blob/HEAD/examples/"
        source[0] = re.sub(r"\]\((\.\./)+examples/", there, source[0])


def setup(app):
    app.connect("source-read", adapt)
    app.connect("build-finished", keep_of_mathjax, priority=900)
