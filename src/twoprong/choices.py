"""A word that must be one of a few: one message for the command line and for Python."""

from collections.abc import Iterable
from difflib import get_close_matches

from twoprong.errors import InputError


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise InputError, with the nearest known word, where `value` is none of them."""
    words = tuple(known)
    if value not in words:
        raise InputError(f"{name}: expected one of {', '.join(words)}, got {value!r}{nearest(value, words)}")


def nearest(value: object, known: Iterable[str]) -> str:
    """The end of a message: `; did you mean ...?`, or nothing where no known word is near."""
    near = get_close_matches(str(value).lower(), tuple(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
