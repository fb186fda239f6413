"""The tables of docs/reference.md, from signatures and docstrings: python docs/make_reference.py

conf.py makes the site's pages from the same GROUPS: a page for each group, and one for each name.
It needs autograd and Dask. In the place of torch, which would bring gigabytes, a stand-in will do.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "reference.md"
MARKS = "<!-- reference: begin -->\n", "<!-- reference: end -->"

#: {group: (what is said of it, {module: its names, or none for all})}; in the order of the page.
GROUPS = {
    "The layer": ("[How it is used](layer.md).", {"bn_ext": "BatchNorm"}),
    "Functions": (
        "[The forward pass](forward.md), [the gradient, derived](gradient.md).",
        {
            "bn_ext": "batch_norm_training batch_norm_inference batch_norm_backward "
            "batch_norm_double_backward batch_norm_statistics_backward BatchNormTraining "
            "BatchNormGradients BatchNormAddGradients BatchNormDoubleBackward"
        },
    ),
    "Parts and exact sums": (
        "[Larger than memory](howto/larger_than_memory.md), [several "
        "machines](howto/several_machines.md), [exact sums](exact.md).",
        {"bn_ext": "Statistics GradientSums"},
    ),
    "torch": ("`import bn_ext.torch`: [how it is used](howto/torch.md).", {"bn_ext.torch": ""}),
    "Other packages": (
        "`import bn_ext.dask`: [Dask](howto/dask.md). `import bn_ext.autograd`: "
        "[autograd](howto/autograd.md).",
        {"bn_ext.dask": "", "bn_ext.autograd": ""},
    ),
    "Checking your own kernel": (
        "`import bn_ext.testing`: [how it is used](howto/reference_for_kernels.md).",
        {"bn_ext.testing": "check_forward check_backward check_double_backward"},
    ),
    "The process": (
        "[Memory](howto/memory.md), [threads](howto/threads.md).",
        {"bn_ext": "show_config keep_memory get_isa available_isas"},
    ),
    "Published operators": (
        "`from bn_ext.specs import tensorflow`. Each takes and returns what its specification "
        "says. [Edge cases](semantics.md).",
        {"bn_ext.specs.onednn_graph": "", "bn_ext.specs.ngraph": "", "bn_ext.specs.tensorflow": ""},
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


class AnyName(type):
    """A class whose attributes, and what it is called to give, are such classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, AnyName(name, (), {}))
        return cls.__dict__[name]

    def __call__(cls, *arguments, **options):
        return AnyName("called", (), {})


if importlib.util.find_spec("torch") is None:
    sys.modules["torch"] = AnyName("torch", (), {})
    sys.modules["torch.library"] = sys.modules["torch"].library


def signature(function):
    """The parameters without types: what a reader types."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    return str(inspect.Signature(named)).replace("<class 'numpy.float64'>", "np.float64")


def sentence(thing):
    """The first one of its docstring."""
    text = " ".join(inspect.getdoc(thing).partition("\n\n")[0].split())
    text = re.split(r"(?<=\w[.;])\s+(?=[A-Z`])", text)[0].replace("``", "`").rstrip(";")
    return text.replace("|", r"\|")


def lines_of(name, thing):
    """(name, signature, sentence) of a function; of a class, also of its methods."""
    if not isinstance(thing, type) or issubclass(thing, tuple):
        return [(name, signature(thing), sentence(thing))]
    lines = [(name, signature(thing.__init__), sentence(thing))]
    own = [base for base in thing.__mro__ if base.__module__ == thing.__module__]
    for method in dict.fromkeys(n for base in own for n in vars(base) if not n.startswith("_")):
        member = getattr(thing, method)
        if inspect.isfunction(getattr(member, "fget", None)):
            lines.append((f"{name}.{method}", "", sentence(member)))
        elif callable(member) and member.__doc__:
            lines.append((f"{name}.{method}", signature(member), sentence(member)))
    return lines


def names_of(module, names):
    """These names, or all that are public; of the operators, without the tuples they return."""
    every = importlib.import_module(module).__all__
    return names.split() or [each for each in every if "specs" not in module or each.islower()]


def rows():
    """{group: (what is said, [(full name, shown name, signature, sentence)])}"""
    made = {}
    for group, (title, modules) in GROUPS.items():
        lines = {}  # what two classes inherit is shown once
        for module, names in modules.items():
            short = re.sub(r"^bn_ext\.?(specs\.)?", "", module) + "." * (module != "bn_ext")
            for name in names_of(module, names):
                thing = getattr(importlib.import_module(module), name)
                for shown, words, does in lines_of(name, thing):
                    line = f"{module}.{shown}", short + shown, words, does
                    of_class = shown.partition(".")[2]
                    lines.setdefault((of_class, does) if of_class else shown + module, line)
        made[group] = title, list(lines.values())
    return made


def with_tables(page):
    """The text of the page with new tables, in Markdown, for code hosts."""
    text = ""
    for group, (title, lines) in rows().items():
        cells = "".join(f"| `{name}{words}` | {does} |\n" for _, name, words, does in lines)
        text += f"\n## {group}\n\n{title}\n\n| name | what it does |\n|---|---|\n{cells}"
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


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
            listed = "\n".join(f"   {name}" for name in names_of(module, names))
            text += f"\n.. currentmodule:: {module}\n\n.. autosummary::\n   :toctree: .\n"
            text += f"   :nosignatures:\n\n{listed}\n"
        path = folder / f"{slug(group)}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
