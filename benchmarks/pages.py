"""Tables that the reports write into pages of the repository, between two marks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def put(name, page, text, console):
    """Replace what stands between the marks "name: begin" and "name: end" of a page; show it."""
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    path = ROOT / page
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{text}{end}{after}")
    console.print(text, markup=False, soft_wrap=True)
