"""Sphinx configuration: .ci/docs builds the site."""

import bn_ext

project = "bn_ext"
author = "the bn_ext developers"
copyright = f"2026, {author}"
version = release = bn_ext.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
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
default_role = "autolink"
autodoc_typehints = "none"  # docstrings say it for readers, stubs for checkers
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"bn_ext {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "tutorial": [], "reference": [], "glossary": []}


def setup(app):
    """Examples end with a blank line for doctest, which is not to be shown."""

    def strip(_, __, source):
        source[0] = source[0].replace("\n\n```\n", "\n```\n")

    app.connect("source-read", strip)
