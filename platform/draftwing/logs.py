"""Logs go to stderr, as text or as one JSON object a line; stdout is for results.

A record made with `extra={"request_id": ...}` shows that id. Whatever a client sent is escaped, so that no request can
forge a line.
"""

from __future__ import annotations

import json
import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def configure_logging(level: str = "info", form: str = "text") -> None:
    """Send the logs of draftwing to stderr from `level` on, those of libraries from warning on. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in ("draftwing", "draftwing_serve", "draftwing_tuner", "draftwing_dashboards"):
        logging.getLogger(package).setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """One line a record (a traceback follows on its own lines)."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        request = getattr(record, "request_id", None)
        about = f" [{request}]" if request else ""
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower()} {record.name}{about}: {record.getMessage()}"
        line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := getattr(record, "request_id", None)) is not None:
            entry["request_id"] = str(request)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
