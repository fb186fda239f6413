"""The state of an object, as copies and pickles have it: attributes, and what is in slots of a
subclass.
"""

from typing import Any


def attributes_of(instance: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its attributes, and what is in slots."""
    state: Any = object.__getstate__(instance)
    return state if isinstance(state, tuple) else (state, {})


def state_of(attributes: dict[str, Any], slots: dict[str, Any]) -> Any:
    """As Python's own __getstate__ returns it: a dictionary, or a pair if there are slots."""
    return (attributes, slots) if slots else attributes


def set_state(instance: object, state: Any) -> None:
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    vars(instance).update(attributes)
    for name, value in slots.items():
        setattr(instance, name, value)


def remade(instance: Any, copied: Any = lambda state: state, memo: Any = None) -> Any:
    """A copy, as Python's protocol of pickles makes it; `copied` copies what it is made of."""
    make, arguments, *state = instance.__reduce_ex__(4)
    other = make(*copied(arguments))
    if memo is not None:
        memo[id(instance)] = other
    if state and state[0] is not None:
        other.__setstate__(copied(state[0]))
    return other
