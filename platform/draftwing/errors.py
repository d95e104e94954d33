"""The errors a user sees: each is one line that names the cause and the remedy."""

from __future__ import annotations


class DraftwingError(Exception):
    """A failed run: exit code 1."""

    exit_code = 1


class ConfigError(DraftwingError):
    """A wrong setting, flag or file given by the user: exit code 2."""

    exit_code = 2


class SetupError(DraftwingError):
    """The machine or a service is not as needed (port in use, too little memory, hub unreachable): exit code 3."""

    exit_code = 3


class RequestError(DraftwingError):
    """A request that can't be served as asked: HTTP 4xx with the field, its value and what is accepted.

    param: dotted field name. code: the error code of the API contract. On the command line: exit code 2.
    """

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class OverloadedError(DraftwingError):
    """No room for another request now: HTTP 503 with Retry-After seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RankLost(DraftwingError):
    """Another rank of the same replica is gone, and so is the replica; another replica may do the work."""
