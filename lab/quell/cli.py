# SPDX-License-Identifier: GPL-2.0-only
"""The command line: parses, imports the command asked for, and reports its errors."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import signal
import sys
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from quell import ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache


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
    "doctor": Command("missing prerequisites, and the commands that install them", uses_cache=False),
    "man": Command("the manual page", uses_cache=False),
    "completion": Command("completion for bash and zsh", uses_cache=False),
    "clean": Command("free the cache", uses_cache=False),
}


# Git's hooks have these. In the lab's own repositories git would take the user's by them.
_USERS_REPOSITORY = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """argparse with UsageErrors."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.fullmatch(r"argument (\S+): invalid (int|float) value: (.*)", message):
            message = f"{wrong[1]}: {wrong[3]} is not a {'whole number' if wrong[2] == 'int' else 'number'}"
        if message.startswith("unrecognized arguments"):
            message += "; a command goes after --" * (self.usage is not None)
            message += "; workloads go after --workload" * ("--workload" in self._option_string_actions)
        raise UsageError(f"{message} (see {self.prog} --help)")

    def print_help(self, file: Any = None) -> None:
        # argparse's own ignores a failed write.
        print(self.format_help(), end="", file=file)


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
    args = parser.parse_args(rest)
    args.command = command_argv
    if args.quiet:
        ui.set_quiet(True)
    with Cache().in_use() if command.uses_cache else nullcontext():
        code: int = module.main(args)
    return code


def _report(error: QuellError) -> int:
    print(f"quell: {error.message}", file=sys.stderr)
    if error.detail:
        print(error.detail.rstrip("\n"), file=sys.stderr)
    if error.log is not None:
        print(f"log: {error.log}", file=sys.stderr)
    return error.exit_code


_OUTPUT = "standard output"


def _os_error(error: OSError) -> QuellError:
    where = error.filename2 or error.filename or "a file"
    if where == _OUTPUT:
        return UsageError(f"{where} cannot be written: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError(f"no disk space left for {where}; ./quell clean frees the cache, QUELL_CACHE moves it")
    return QuellError(f"{error.strerror or error}: {where}")


def name_output() -> None:
    """Let errors of standard output name it (Python's do not); drop the rest of the output."""
    raw: Any = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    write = raw.write

    def named(data: bytes) -> Any:
        try:
            return write(data)
        except OSError as error:
            # Else Python complains at exit about output that it could not write.
            os.dup2(os.open(os.devnull, os.O_WRONLY), raw.fileno())
            error.filename = _OUTPUT
            raise

    raw.write = named


def _internal(error: Exception) -> QuellError:
    found = QuellError(f"internal error: {type(error).__name__}: {error}")
    with suppress(OSError, QuellError):
        log = Cache().logs / "internal-error.log"
        log.write_text(traceback.format_exc())
        found.log = log
    return found


def main(argv: list[str]) -> int:
    """Run one command; its exit code. Every error becomes one clear message. SystemExit after help."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    # SIGTERM and SIGHUP have to clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)
    for name in _USERS_REPOSITORY:
        os.environ.pop(name, None)
    if sys.stdin is None:
        # It gets the number of standard input, and programs inherit it.
        sys.stdin = open(os.devnull)
        os.set_inheritable(sys.stdin.fileno(), True)
    if sys.stdout is None:
        return _report(UsageError("standard output is closed"))
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("quell: interrupted", file=sys.stderr)
        return 130
    except QuellError as error:
        return _report(error)
    except OSError as error:
        return 1 if isinstance(error, BrokenPipeError) else _report(_os_error(error))
    except Exception as error:
        return _report(_internal(error))
