# SPDX-License-Identifier: GPL-2.0-only
"""The errors that the command line turns into one clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class QuellError(Exception):
    """Something failed; ``str(error)`` is one sentence for the user.

    ``detail`` holds extra lines (a compiler's, a kernel's), ``log`` the file with
    the whole output, ``exit_code`` that of the process (1: a check, build or
    comparison failed).
    """

    exit_code = 1

    def __init__(self, message: str, *, detail: str = "", log: Path | None = None, exit_code: int = 0) -> None:
        super().__init__(message)
        self.message, self.detail, self.log = message, detail, log
        self.exit_code = exit_code or self.exit_code


class UsageError(QuellError):
    """Bad usage or a missing prerequisite: exit code 2."""

    exit_code = 2


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Begin the messages of errors with ``what``; UsageErrors stay as they are."""
    try:
        yield
    except UsageError:
        raise
    except QuellError as error:
        raise QuellError(f"{what}: {error.message}", detail=error.detail, log=error.log) from error
