# SPDX-License-Identifier: GPL-2.0-only
"""The command line: parses, imports the command asked for, and reports its errors."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import re
import shlex
import signal
import sys
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from quell import ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Command:
    """A subcommand; quell.commands.NAME has ``add_arguments(parser)`` and ``main(args) -> int``.

    With ``takes_command``, ``-- CMD ARG...`` is allowed and ``args.command`` is
    that list (else None). With ``uses_cache``, ``clean`` is kept away while it runs.
    """

    help: str
    takes_command: bool = False
    uses_cache: bool = True


SUMMARY = "Compares stock Linux (6.12, 7.3) with Quell's memory-management changes, in VMs."
COMMANDS = {
    "compare": Command("stock Linux against Quell, on the standard workloads or on -- CMD ARG...", takes_command=True),
    "sizes": Command("large anonymous folios: each fixed size on stock Linux, against Quell's own choice"),
    "run": Command("run -- CMD ARG... under the Quell kernel", takes_command=True),
    "top": Command(
        "the causes of TLB shootdowns on this machine, live, on any x86 Linux kernel",
        takes_command=True,
        uses_cache=False,
    ),
    "report": Command("the kept results as one HTML file with charts"),
    "figures": Command("the project's headline figures, measured here"),
    "ladder": Command("the mechanisms switched on one at a time, beside published results"),
    "build": Command("build the stock and Quell kernels"),
    "tree": Command("a git tree for work on the kernel part"),
    "status": Command("switches, counters and deferred pages of the running Quell kernel", uses_cache=False),
    "explain": Command("a mechanism's effect, costs, benefits, switches and counters", uses_cache=False),
    "export": Command("the kernel part as patches: a git-am series, and one roll-up patch"),
    "deb": Command("Debian packages of the Quell kernel, from your configuration"),
    "test": Command("the checks"),
    "doctor": Command("missing prerequisites, each with the command that fixes it", uses_cache=False),
    "man": Command("the manual page", uses_cache=False),
    "completion": Command("completion for bash and zsh", uses_cache=False),
    "clean": Command("free the cache", uses_cache=False),
}


# argparse's messages, and the lab's.
_PLAIN = {
    r"^argument (?:[^/ ]*/)*(\S+): expected .*": r"\1 needs a value",
    r"^argument (?:[^/ ]*/)*(\S+): invalid choice: (\S+) \(choose from (.*)\)$": r"\1: there is no \2; the choices are \3",
    r"^the following arguments are required: (.*)$": r"\1 is missing",
}


class _Parser(argparse.ArgumentParser):
    """argparse with UsageErrors, which also name the type of an option's value."""

    def error(self, message: str) -> NoReturn:
        for pattern, plain in _PLAIN.items():
            message = re.sub(pattern, plain, message)
        raise UsageError(f"{message} (see {self.prog} --help)")

    def print_help(self, file: Any = None) -> None:
        # argparse's own ignores a failed write.
        print(self.format_help(), end="", file=file, flush=True)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            numbers = {int: "whole number", float: "number of seconds" if action.metavar == "S" else "number"}
            what = numbers.get(action.type) or getattr(action.type, "__name__", "value")  # type: ignore[call-overload]
            option = max(action.option_strings, key=len, default=action.metavar)
            self.error(f"{option}: '{arg_string}' is not a {what}")

    def stray(self, words: Sequence[str]) -> int | None:
        """The index of the first word that belongs to no option; None without one, or behind an unknown option."""
        at = 0
        while at < len(words) and words[at].startswith("-"):
            option, equals, _ = words[at].partition("=")
            if (action := self._option_string_actions.get(option)) is None:
                return None
            at += 1 if equals or action.nargs == 0 else 2
        return at if at < len(words) else None


def _check_stray(name: str, parser: _Parser, words: Sequence[str]) -> None:
    """UsageError for a command without its ``--``, or a workload without its option."""
    if (at := parser.stray(words)) is None:
        return
    missing, what = "--", "a command goes after --"
    if "--workload" in parser._option_string_actions:
        from quell import workload

        if {*words[at].split(",")} <= {*workload.known()}:
            missing, what = "--workload", "workloads go after --workload"
        elif not COMMANDS[name].takes_command:
            return
    meant = shlex.join(["./quell", name, *words[:at], missing, *words[at:]])
    raise UsageError(f"{what}; did you mean: {meant}")


def module_of(name: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"quell.commands.{name}")


def _fill(parser: argparse.ArgumentParser, name: str, module: Any, width: int | None = None) -> None:
    """A command's arguments, and its help of ``width`` (the terminal's): description, options, examples."""
    parser.description = module.__doc__
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=width)
    parser.allow_abbrev = False
    examples = module.EXAMPLES.rstrip("\n").replace("%", "%%")
    parser.epilog = "examples:\n  " + examples.replace("\n", "\n  ")
    module.add_arguments(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no notes, no progress")
    if COMMANDS[name].takes_command:
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = usage.replace("%", "%%") + " [-- CMD ARG...]"


def whole_parser() -> argparse.ArgumentParser:
    """All commands in one parser, for completion and the manual page, which wrap lines; imports all of them."""
    parser = argparse.ArgumentParser(
        prog="quell",
        description=SUMMARY,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=1000),
        allow_abbrev=False,
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no notes, no progress")
    parser.add_argument("--version", action="store_true", help="print Quell's version, and those of Linux")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        _fill(commands.add_parser(name, help=command.help), name, module_of(name), width=1000)
    return parser


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ./quell [--quiet] COMMAND [OPTION...] [-- CMD ARG...]",
            "",
            SUMMARY,
            "Start with: ./quell compare",
            "",
            *lines,
            "",
            "./quell help COMMAND describes one. --quiet leaves out notes and progress. --version prints the version.",
            "Downloads, builds and results are in $QUELL_CACHE, by default ~/.cache/quell.",
        ]
    )


def _run(argv: list[str]) -> int:
    own, command_argv = argv, None
    if "--" in argv:
        split = argv.index("--")
        own, command_argv = argv[:split], argv[split + 1 :]
    while own and own[0] in ("--quiet", "-q"):
        ui.set_quiet(True)
        own = own[1:]
    if not own:
        if command_argv is not None:
            raise UsageError("a command such as compare or run is needed before --")
        print(_overview(), file=sys.stderr)
        return 2
    name, rest = own[0], own[1:]
    if name == "help" and rest and not rest[0].startswith("-"):
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name == "--version":
        from quell import version

        print(version.line())
        return 0
    if name.startswith("-"):
        raise UsageError(f"unknown option {name} (see ./quell --help)")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else " (see ./quell --help)"
        raise UsageError(f"unknown command {name!r}{hint}")

    command = COMMANDS[name]
    if command_argv is not None and not command.takes_command:
        raise UsageError(f"{name} takes no command after -- (see ./quell {name} --help)")
    if command_argv == []:
        raise UsageError("no command after --")
    module = module_of(name)
    parser = _Parser(prog=f"./quell {name}")
    _fill(parser, name, module)
    if command_argv is None and (command.takes_command or "--workload" in parser._option_string_actions):
        _check_stray(name, parser, rest)
    args = parser.parse_args(rest)
    args.command = command_argv
    if args.quiet:
        ui.set_quiet(True)
    with Cache().in_use() if command.uses_cache else nullcontext():
        code: int = module.main(args)
    return code


class _OutputError(OSError):
    """Standard output cannot be written; not raised for a closed pipe."""


class _Output(io.FileIO):
    """Standard output; its errors differ from those of other files."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _OutputError(error.errno, error.strerror) from error


def checked(stdout: TextIO) -> TextIO:
    """A replacement of ``stdout``, as ``main`` needs it."""
    raw = io.BufferedWriter(_Output(stdout.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(raw, stdout.encoding, stdout.errors, line_buffering=stdout.isatty())


def _report(error: QuellError) -> int:
    print(f"quell: {error.message}", file=sys.stderr)
    if error.detail:
        print(error.detail.rstrip("\n"), file=sys.stderr)
    if error.log is not None:
        print(f"log: {error.log}", file=sys.stderr)
    return error.exit_code


def _os_error(error: OSError) -> QuellError:
    where = error.filename2 or error.filename or "the cache folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError(
            f"no disk space left for {where}; ./quell clean frees the cache, "
            "and QUELL_CACHE may name a folder on a larger disk"
        )
    return QuellError(f"{error.strerror or error}: {where}")


def _discard_output() -> None:
    """Discard standard output. Python would complain at exit about an unwritten rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal(error: Exception) -> QuellError:
    text = traceback.format_exc()
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = f"internal error: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    try:
        log = Cache().logs / "internal-error.log"
        log.write_text(text)
    except (OSError, QuellError):
        return QuellError(message)
    return QuellError(message, log=log)


def main(argv: list[str]) -> int:
    """Run one command; its exit code. Every error becomes one clear message."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    # SIGTERM and SIGHUP have to clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)
    if sys.stdout is None:
        return _report(UsageError("standard output is closed"))
    code = _reported(lambda: _run(argv))

    def flush() -> int:
        sys.stdout.flush()
        return code

    # Also after an error: a command may have printed before it.
    return _reported(flush)


def _reported(action: Callable[[], int]) -> int:
    """The exit code of ``action``, or of its error, which is reported."""
    try:
        return action()
    except KeyboardInterrupt:
        print("quell: interrupted", file=sys.stderr)
        return 130
    except QuellError as error:
        return _report(error)
    except BrokenPipeError:
        _discard_output()
        return 1
    except _OutputError as error:
        _discard_output()
        return _report(UsageError(f"standard output cannot be written: {error.strerror}"))
    except OSError as error:
        return _report(_os_error(error))
    except Exception as error:
        return _report(_internal(error))
