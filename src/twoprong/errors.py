"""One family of errors. Every message says what was expected, what came, and what to do about it."""

LONGEST = 2000  # characters of a message about a bundle, which may quote what is in it


class TwoprongError(Exception):
    """Base of everything this package raises on purpose; the command line shows it as one line and exits with 2."""


class InputError(TwoprongError, ValueError):
    """Images, labels or arguments that cannot be used as they are."""


class ConfigError(TwoprongError, ValueError):
    """Settings that do not validate; the message lists every problem, not the first."""


class DataError(TwoprongError, ValueError):
    """A data set on disk that is missing, unreadable or not what it claims to be."""


class StateError(TwoprongError, RuntimeError):
    """A call out of order; the message names the call that has to come first."""


class BundleError(TwoprongError, ValueError):
    """A bundle on disk that is damaged, foreign or incomplete; the message names the file, in one line of plain text."""

    def __init__(self, message: str) -> None:
        line = printable(" ".join(message.split()))
        super().__init__(line if len(line) <= LONGEST else f"{line[:LONGEST]} ...")


def printable(text: object) -> str:
    """Text that came from elsewhere, for a terminal: control characters and the like become their Python escapes."""
    line = str(text)
    return line if line.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
