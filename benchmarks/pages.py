"""What the reports share: which machine this is, bars on the console, tables in pages."""

import json
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from rich.progress import Progress

import bn_ext

ROOT = Path(__file__).resolve().parent.parent


def machine():
    """Facts for the JSON, and the same as a line."""
    config = bn_ext.show_config(mode="dicts")
    facts = {
        "date": str(date.today()),
        "processor": config["processor"],
        "caches": config["cache_sizes"],
        "config": {key: config[key] for key in ("version", "isa", "python", "numpy")},
    }
    l2, last_level = facts["caches"]
    title = (
        f"{facts['processor']}, {config['isa']}, L2 {l2 >> 10} KiB, "
        f"last level {last_level >> 20} MiB; {facts['date']}"
    )
    return facts, title


@contextmanager
def counted(console, what, total):
    """A bar on the console; gives what moves it on by one."""
    with Progress(console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def show(options, console, name, text, facts=None):
    """A page by itself: on the console, and with its JSON where to write."""
    console.print(text, markup=False, soft_wrap=True)
    if options.write:
        (options.write / f"{name}.md").write_text(text)
    if options.write and facts:
        (options.write / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def put(name, page, text, console):
    """Replace what stands between the marks "name: begin" and "name: end" of a page; show it."""
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    path = ROOT / page
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{text}{end}{after}")
    console.print(text, markup=False, soft_wrap=True)
