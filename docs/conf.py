"""Sphinx configuration: .ci/run docs builds the site."""

import inspect
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import bn_ext

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import make_reference  # noqa: E402

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
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]
# autosummary writes its pages in the first of these.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore = [("py:obj", "bn_ext"), ("py:obj", "bn_ext.specs")]
# Docstrings name torch's functions; its pages are not looked up.
nitpick_ignore_regex = [("py:obj", r"torch\..*")]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# .ci/run docs names a folder that keeps what cells have printed.
nb_execution_cache_path = os.environ.get("BN_EXT_CELLS", "")
nb_execution_mode = "cache" if nb_execution_cache_path else "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
NOTEBOOK = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n"
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")  # of the pages' kernels

autosummary_generate = True
autosummary_context = {"words": make_reference.WORDS}
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
html_js_files = ["site.js"]
html_favicon = "_static/favicon.svg"
urls = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]
sources = f"{urls['Repository']}/blob/HEAD"
# Until the project has a home, no page says where it lives.
public = "example.invalid" not in sources
html_baseurl = urls["Documentation"] if public else ""
html_theme_options = {
    "navigation_with_keys": False,
    "logo": {"text": project},
    "navbar_start": ["navbar-logo", *["version-switcher"] * public],
    "switcher": {"json_url": "_static/versions.json", "version_match": version},
    "check_switcher": False,  # the file is written after the check
    "icon_links": [
        {"name": "Repository", "url": urls["Repository"], "icon": "fa-solid fa-code-branch"}
    ]
    * public,
    "use_edit_page_button": public,
    "secondary_sidebar_items": {
        "**": ["page-toc", "page-source"],
        **{page: [] for page in WIDE},
    },
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_context = {
    "edit_page_url_template": sources + "/docs/{{ file_name }}",
    "default_mode": "auto",  # light or dark, as the reader's system is
}
# Pages without others beside them.
ALONE = ["index", "which_call", "tutorial", "installation", "layer", "examples", "troubleshooting"]
html_sidebars = {page: [] for page in ALONE}
#: Pages whose lists of links are the table of contents.
CONTENTS = ["index", "howto/index", "background", "project"]


def linkcode_resolve(domain, info):
    """Where the repository has a function or a class."""
    if not public:
        return None
    member = sys.modules.get(info["module"])
    for name in info["fullname"].split("."):
        member = getattr(member, name, None)
    if isinstance(member, type):
        member = member.__init__  # a class itself is said to be in bn_ext, whose file lacks it
    member = inspect.unwrap(member) if callable(member) else getattr(member, "fget", None)
    try:
        lines, first = inspect.getsourcelines(member)
        path = Path(inspect.getsourcefile(member)).relative_to(Path(bn_ext.__file__).parent)
    except (TypeError, OSError, ValueError):  # made by Python or by torch
        return None
    return f"{sources}/bn_ext/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"


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


def write_versions(app, error):
    """The versions that readers can choose; a release adds itself."""
    listed = [{"version": version, "url": urls["Documentation"] + "/"}]
    Path(app.outdir, "_static", "versions.json").write_text(json.dumps(listed))


def whole_file(link):
    """The text of a file of the repository, without its title, in the place of a link to it."""
    text = (HERE.parent / link[1]).read_text().partition("\n")[2]
    text = re.sub(r"\]\((?!https?:|#)", "](../", text).replace("](../docs/", "](")
    return re.sub(r"\]\(([\w/]+)/\)", r"](\1/index.md)", text)


def adapt(app, page, source):
    """Make the site's page of plain Markdown, which a code host shows as it is."""
    # The blank line that ends an example is for doctest.
    source[0] = source[0].replace("\n\n```\n", "\n```\n")
    if source[0].startswith("<!-- notebook -->\n"):  # its code runs, so its output is shown twice
        text = re.sub(r"^```text\n.*?^```\n", "", source[0], flags=re.MULTILINE | re.DOTALL)
        text = text.replace("```python\n", "```{code-cell} python\n")
        name = page.rpartition("/")[2]
        source[0] = f"{NOTEBOOK}{text}\n\nThis page as a notebook: {{nb-download}}`{name}.ipynb`.\n"
    if page in CONTENTS:
        links = re.findall(r"^- \[(.*?)\]\((.*?)\.md\)", source[0], re.MULTILINE)
        listed = "\n".join(f"{title} <{name}>" for title, name in links)
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    source[0] = re.sub(r"^\[\w+\]\(\.\./(\w+\.md)\)$", whole_file, source[0], flags=re.MULTILINE)
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):  # of which the site has pages
        source[0] = source[0].replace(f"](../{name}", f"]({name.lower()}")
    if public:
        programs = r"\]\((?:\.\./)+(examples|survey/findings)/"
        source[0] = re.sub(programs, rf"]({sources}/\1/", source[0])
    if page == "reference":
        source[0] = make_reference.linked(source[0])


def signature_of_class(app, kind, name, obj, options, signature, returned):
    """That of the tables: a class on the stand-in for torch would have another one."""
    if kind == "class" and not issubclass(obj, tuple):
        return make_reference.signature(obj.__init__), returned
    return None


def example_first(app, kind, name, obj, options, lines):
    """Move the examples, as numpydoc writes them, before the list of parameters."""
    if ":Parameters:" in lines and ".. rubric:: Examples" in lines:
        start, at = lines.index(".. rubric:: Examples"), lines.index(":Parameters:")
        lines[at:] = [*lines[start:], "", *lines[at:start]] if at < start else lines[at:]


def setup(app):
    make_reference.write_groups(HERE / "_generated")
    app.connect("autodoc-process-signature", signature_of_class)
    app.connect("autodoc-process-docstring", example_first, priority=900)  # behind numpydoc
    app.connect("source-read", adapt)
    app.connect("build-finished", write_versions)
    app.connect("build-finished", keep_of_mathjax, priority=900)
