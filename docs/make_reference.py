"""The tables of docs/reference.md, from signatures and docstrings: python docs/make_reference.py

It reads source text, so it needs none of the packages that a module imports. conf.py makes the
site's pages from the same GROUPS: a page for each group, and one for each name.
"""

import ast
import importlib.util
import re
from pathlib import Path

HERE = Path(__file__).parent
MARKS = "<!-- reference: begin -->\n", "<!-- reference: end -->"

#: {group: (what is said of it, {module: its names}); in the order of the page.
GROUPS = {
    "The layer": (
        "[How it is used](layer.md).",
        {"bn_ext": ["BatchNorm"]},
    ),
    "Functions": (
        "[The forward pass](forward.md), [the gradient, derived](gradient.md).",
        {
            "bn_ext": [
                "batch_norm_training",
                "batch_norm_inference",
                "batch_norm_backward",
                "batch_norm_double_backward",
                "batch_norm_statistics_backward",
                "BatchNormTraining",
                "BatchNormGradients",
                "BatchNormAddGradients",
                "BatchNormDoubleBackward",
            ]
        },
    ),
    "Parts and exact sums": (
        "[Larger than memory](howto/larger_than_memory.md), [several "
        "machines](howto/several_machines.md), [exact sums](exact.md).",
        {"bn_ext": ["Statistics", "GradientSums"]},
    ),
    "torch": (
        "`import bn_ext.torch`: [how it is used](howto/torch.md).",
        {
            "bn_ext.torch": [
                "BatchNorm1d",
                "BatchNorm2d",
                "BatchNorm3d",
                "SyncBatchNorm",
                "convert",
                "batch_norm",
            ]
        },
    ),
    "Other packages": (
        "`import bn_ext.dask`: [Dask](howto/dask.md). `import bn_ext.autograd`: "
        "[autograd](howto/autograd.md).",
        {
            "bn_ext.dask": [
                "batch_norm_training",
                "batch_norm_inference",
                "batch_norm_backward",
            ],
            "bn_ext.autograd": [
                "batch_norm_training",
                "batch_norm_inference",
                "BatchNorm",
            ],
        },
    ),
    "Checking your own kernel": (
        "`import bn_ext.testing`: [how it is used](howto/reference_for_kernels.md).",
        {"bn_ext.testing": ["check_backward"]},
    ),
    "The process": (
        "[Memory](howto/memory.md), [threads](howto/threads.md).",
        {"bn_ext": ["show_config", "keep_memory", "get_isa", "available_isas"]},
    ),
    "Published operators": (
        "Each takes and returns what its specification says. [Edge cases](semantics.md).",
        {
            "bn_ext.specs.onednn_graph": [
                "batch_norm_forward_training",
                "batch_norm_inference",
                "batch_norm_training_backprop",
                "batch_norm_training_backward",
            ],
            "bn_ext.specs.ngraph": [
                "batch_norm_training",
                "batch_norm_inference",
                "batch_norm_training_backprop",
            ],
            "bn_ext.specs.tensorflow": [
                "fused_batch_norm_v3",
                "fused_batch_norm_ex",
                "fused_batch_norm_grad_v3",
            ],
        },
    ),
}

#: {full name: what people look for under other words}, for the site's search.
WORDS = {
    "bn_ext.BatchNorm": ["layer", "running mean", "running variance", "eval", "save a network"],
    "bn_ext.batch_norm_training": ["running mean", "running variance", "momentum", "forward pass"],
    "bn_ext.batch_norm_inference": ["inference", "eval", "frozen statistics"],
    "bn_ext.batch_norm_backward": ["gradient", "backward pass", "dx", "dgamma"],
    "bn_ext.batch_norm_double_backward": ["gradient of the gradient", "gradient penalty"],
    "bn_ext.Statistics": ["larger than memory", "memory map", "partial fit", "streaming"],
    "bn_ext.torch.SyncBatchNorm": ["synchronized", "distributed", "ranks"],
    "bn_ext.torch.convert": ["PyTorch"],
    "bn_ext.show_config": ["threads", "bug report"],
}


def tree_of(module):
    """The top-level definitions of a module, by name."""
    path = Path(importlib.util.find_spec(module).origin)
    return {
        node.name: node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }


def public(module):
    """The names that the module exports."""
    path = Path(importlib.util.find_spec(module).origin)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise LookupError(module)


def found(module, name):
    """(definition, all of its module), where a name of the package is defined."""
    inside = ["_layer", "_functions", "_sums", "_results", "_runtime"]
    places = [f"bn_ext.{each}" for each in inside] if module == "bn_ext" else [module]
    for place in places:
        tree = tree_of(place)
        if name in tree:
            return tree[name], tree
    raise LookupError(f"{module}.{name}")


def signature(function):
    """The parameters without types: what a reader types."""
    given = function.args
    first = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    values = [None] * (len(first) - len(given.defaults)) + given.defaults
    words = [
        n if v is None else f"{n}={ast.unparse(v)}" for n, v in zip(first, values, strict=True)
    ]
    words = words[1:] if first[:1] in (["self"], ["cls"]) else words
    if given.vararg:
        words.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        words.append("*")
    for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        words.append(arg.arg if value is None else f"{arg.arg}={ast.unparse(value)}")
    # A parameter of type Never only explains what a wrong name might mean.
    if given.kwarg and "Never" not in ast.dump(given.kwarg):
        words.append(f"**{given.kwarg.arg}")
    return f"({', '.join(words)})"


def first_sentence(node):
    said = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    said = re.split(r"(?<=\w[.;])\s+(?=[A-Z`])", said)[0].replace("``", "`").rstrip(";")
    return said.replace("|", r"\|")


def fields(node):
    """The fields of a named tuple."""
    return ", ".join(each.target.id for each in node.body if isinstance(each, ast.AnnAssign))


def called(node, name):
    return isinstance(node, ast.FunctionDef) and node.name == name


def lines_of(node, others):
    """(name, signature, sentence) of a function; of a class, also of its methods."""
    if isinstance(node, ast.FunctionDef):
        return [(node.name, signature(node), first_sentence(node))]
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    if "NamedTuple" in bases:
        return [(node.name, f"({fields(node)})", first_sentence(node))]
    family = [node, *(others[base] for base in bases if base in others)]
    if "_layer.BatchNorm" in bases:  # of which only __init__ and what is overridden are shown
        made = found("bn_ext", "BatchNorm")[0]
        family.append(ast.ClassDef(name="", body=[m for m in made.body if called(m, "__init__")]))
    methods = {}
    for each in family:
        for method in each.body:
            if isinstance(method, ast.FunctionDef):
                methods.setdefault(method.name, method)
    made = signature(methods["__init__"]) if "__init__" in methods else "()"
    rows = [(node.name, made, first_sentence(node))]
    for name, method in methods.items():
        if name.startswith("_") or not ast.get_docstring(method):
            continue
        decorators = [ast.unparse(each) for each in method.decorator_list]
        of_method = "" if "property" in decorators else signature(method)
        if not any(each.endswith(".setter") for each in decorators):
            rows.append((f"{node.name}.{name}", of_method, first_sentence(method)))
    return rows


def short(module):
    """What stands before a name on the page."""
    return re.sub(r"^bn_ext\.?(specs\.)?", "", module) + "." * (module != "bn_ext")


def rows():
    """{group: (what is said, [(full name, shown name, signature, sentence)])}"""
    made = {}
    for group, (said, modules) in GROUPS.items():
        lines = {}  # what two classes inherit is shown once
        for module, names in modules.items():
            for name in names:
                for shown, words, sentence in lines_of(*found(module, name)):
                    line = f"{module}.{shown}", short(module) + shown, words, sentence
                    of_class = shown.partition(".")[2]
                    lines.setdefault((of_class, sentence) if of_class else shown + module, line)
        made[group] = said, list(lines.values())
    return made


def tables():
    """Markdown, for code hosts."""
    text = []
    for group, (said, lines) in rows().items():
        cells = "\n".join(f"| `{name}{words}` | {does} |" for _, name, words, does in lines)
        text.append(f"## {group}\n\n{said}\n\n| name | what it does |\n|---|---|\n{cells}\n")
    return "\n".join(text)


def with_tables(page):
    """The text of the page with new tables."""
    before, _, rest = page.partition(MARKS[0])
    return before + MARKS[0] + "\n" + tables() + "\n" + MARKS[1] + rest.partition(MARKS[1])[2]


# ---- the site -----------------------------------------------------------------------------------


def slug(group):
    return group.lower().replace(" ", "_")


def linked(page):
    """The page as the site shows it: names are links, and the sidebar has a page for each group."""
    for _, lines in rows().values():
        for full, name, words, _ in lines:
            role = f"{{py:obj}}`{name} <{full}>`" + f"`{words}`" * bool(words)
            page = page.replace(f"| `{name}{words}` |", f"| {role} |")
    names = "\n".join(f"_generated/{slug(group)}" for group in GROUPS)
    return f"{page}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def write_groups(folder):
    """A page for each group, whose names autosummary gives pages of their own."""
    folder.mkdir(exist_ok=True)
    for group, (_, modules) in GROUPS.items():
        text = f"{group}\n{'=' * len(group)}\n"
        for module, names in modules.items():
            listed = "\n".join(f"   {name}" for name in names)
            text += f"\n.. currentmodule:: {module}\n\n.. autosummary::\n   :toctree: .\n"
            text += f"   :nosignatures:\n\n{listed}\n"
        path = folder / f"{slug(group)}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    page = HERE / "reference.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
