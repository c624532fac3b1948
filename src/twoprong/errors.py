"""One family of errors. Every message says what was expected, what came, and what to do about it."""


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
    """A bundle on disk that is damaged, foreign or incomplete; the message names the file."""
