"""Where the project's files are, and how to load one that is in no package."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PROGRAMS, SHARED = TESTS / "programs", TESTS / "shared"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
