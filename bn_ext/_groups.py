"""Limits of the process's control groups, of Linux's version 2. build_c.py reads this file, too."""

import re


def read(path: str) -> str:
    """The text of a system file; "" if it cannot be read."""
    # Not with pathlib, which would double the time of the import. File names in the text may be any
    # bytes; escaped, they can be printed.
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""


def limits(
    file: str, cgroups: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"
) -> list[list[int]]:
    """The numbers of this file, for each control group that sets a limit: the process's, and those
    up to the root.
    """
    group = re.search("^0::(.*)", read(membership), re.MULTILINE)
    if not group:
        return []
    # A container may see only its own group, mounted as the root; then most files are missing.
    names = group[1].strip("/").split("/")
    folders = {"/".join([cgroups, *names[:k]]) for k in range(len(names) + 1)}
    contents = [read(f"{folder}/{file}").split() for folder in folders]
    return [[int(word) for word in words] for words in contents if words and words[0] != "max"]


def cpu_quota(*places: str) -> int | None:
    """Whole CPUs that these groups allow the process, at least 1; None: no limit."""
    quotas = [quota / period for quota, period in limits("cpu.max", *places)]
    return max(1, int(min(quotas) + 0.5)) if quotas else None
