"""How operators check and rename: dtypes, ranks, words and numbers of a specification.

An operator converts its attributes, gets its arrays from `Rules.arrays`, and passes both to the
compiled function that computes it. That function checks all else: shapes, and that other data has
src's dtype.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, SupportsFloat

import numpy as np

import bn_ext._core as _core

#: Our names of arrays that are no vectors.
_DATA = ("src", "diff_dst")


@dataclass(frozen=True)
class Rules:
    """What a specification allows, and what its operators call our arguments."""

    #: dtype of the data -> dtypes of the vectors, which all have the same one in a call
    types: Mapping[str, Sequence[str]]
    #: our name -> the operators', where they differ
    names: Mapping[str, str]
    #: ranks that src may have; if empty, any from 2 up
    ranks: Sequence[int] = ()

    @cached_property
    def words(self) -> _core.Words:
        """The names, for the compiled function's errors."""
        return _core.Words(self.names)

    def arrays(self, optional: Mapping[str, Any] | None = None, **required: Any) -> dict[str, Any]:
        """Convert arrays, by our names, and check their dtypes and src's rank.

        Those in `optional` may be None. The result also has `words`, for the compiled function's
        errors.
        """
        arrays, vectors = {}, {}
        for role, a in {**required, **(optional or {})}.items():
            if a is not None or role in required:
                name = self.names.get(role, role)
                arrays[role] = _core.as_array(a, name)
                if role not in _DATA:
                    vectors[name] = arrays[role]
        src, name = arrays["src"], self.names.get("src", "src")
        _core.require_dtype(name, src, self.types)
        if self.ranks and src.ndim not in self.ranks:
            expected = " or ".join(map(str, self.ranks))
            raise ValueError(f"{name}: expected rank {expected}, got shape {src.shape}")
        allowed, like = self.types[src.dtype.name], ""
        for name, vector in vectors.items():
            _core.require_dtype(name, vector, allowed, like)
            if len(allowed) > 1:
                allowed, like = (vector.dtype.name,), f", like {name}"
        return {**arrays, "words": self.words}


def as_positive(value: SupportsFloat, name: str) -> float:
    """The double, if it is positive and finite as a float32."""
    expected = "a number that is positive and finite as a float32"
    number = _core.as_real(value, name, expected)
    with _core.DefaultMode():
        if not 0 < np.float32(number) < np.inf:
            raise ValueError(f"{name}: expected {expected}, got {_core.shown(value)}")
    return number


def as_word(value: Any, name: str, words: Mapping[str, Any]) -> Any:
    """The meaning of a word."""
    if not isinstance(value, str) or value not in words:
        expected = ", ".join(words)
        raise ValueError(f"{name}: expected one of {expected}, got {_core.shown(value)}")
    return words[value]
