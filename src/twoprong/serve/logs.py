"""The service's log on stderr: one line per event, for people or as JSON for machines."""

import json
import logging
import re
import time
from contextvars import ContextVar
from typing import Any

from twoprong.errors import printable

PLAIN = re.compile(r"[\w.:/+-]+")
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")  # of the request that is being answered


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _stamp(record), "level": record.levelname.lower(), "message": record.getMessage()}
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_text(value)}" for name, value in getattr(record, "fields", {}).items())
        line = printable(f"{_stamp(record)} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip())
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def log_to(stream: logging.StreamHandler, as_json: bool) -> None:
    """Send everything the service says to one handler."""
    stream.setFormatter(JsonLines() if as_json else TextLines())
    for name in ("twoprong", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [stream], False
        logger.setLevel(logging.INFO if name == "twoprong" else logging.WARNING)


def _text(value: Any) -> str:
    """A value as JSON, and without quotation marks where it is one word: so that it ends where it seems to end."""
    return str(value) if PLAIN.fullmatch(str(value)) else json.dumps(value, ensure_ascii=False)


def _stamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
