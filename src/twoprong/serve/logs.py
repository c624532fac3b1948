"""The service's log on stderr: one line per event, for people or as JSON for machines."""

import json
import logging
import time

from twoprong.errors import printable


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _stamp(record), "level": record.levelname.lower(), "message": record.getMessage()}
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = printable(f"{_stamp(record)} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip())
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def log_to(stream: logging.StreamHandler, as_json: bool) -> None:
    """Send everything the service says to one handler."""
    stream.setFormatter(JsonLines() if as_json else TextLines())
    for name in ("twoprong", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [stream], False
        logger.setLevel(logging.INFO if name == "twoprong" else logging.WARNING)


def _stamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
