# SPDX-License-Identifier: GPL-2.0-only
"""The command line: parses, imports the command asked for, and reports its errors."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import signal
import sys
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

from quell import ui
from quell.errors import QuellError, UsageError
from quell.paths import Cache


@dataclass(frozen=True)
class Command:
    """A subcommand: ``module`` has ``add_arguments(parser)`` and ``main(args) -> int``.

    With ``takes_command``, ``-- CMD ARG...`` is allowed and ``args.command`` is
    that list (else None). With ``uses_cache``, ``clean`` is kept away while it runs.
    """

    module: str
    help: str
    takes_command: bool = False
    uses_cache: bool = True


SUMMARY = "Compares stock Linux 6.12 with Quell's memory-management changes, in VMs."
COMMANDS = {
    "compare": Command(
        "quell.commands.compare",
        "stock against Quell, on the standard workloads or on -- CMD ARG...",
        takes_command=True,
    ),
    "sizes": Command(
        "quell.commands.sizes",
        "large anonymous folios: each fixed size on stock, against Quell's own choice",
    ),
    "run": Command(
        "quell.commands.run", "run -- CMD ARG... under the Quell kernel", takes_command=True
    ),
    "top": Command(
        "quell.commands.top",
        "who causes TLB shootdowns on this machine, live, on any x86 Linux kernel",
        takes_command=True,
        uses_cache=False,
    ),
    "report": Command("quell.commands.report", "the kept results as one HTML file with plots"),
    "figures": Command("quell.commands.figures", "the project's headline figures, measured here"),
    "ladder": Command(
        "quell.commands.ladder",
        "the mechanisms switched on one at a time, beside what others published",
    ),
    "build": Command("quell.commands.build", "build the stock and Quell kernels"),
    "tree": Command("quell.commands.tree", "a git tree to work on the kernel part in"),
    "status": Command(
        "quell.commands.status",
        "what the running Quell kernel does: switches, counters, parked memory",
        uses_cache=False,
    ),
    "explain": Command(
        "quell.commands.explain",
        "what a mechanism does and costs, when it helps, its switches and counters",
        uses_cache=False,
    ),
    "export": Command("quell.commands.export", "the kernel part as patches: a git-am series, and one for all"),
    "deb": Command("quell.commands.deb", "Debian packages of the Quell kernel, from your configuration"),
    "test": Command("quell.commands.test", "the checks"),
    "doctor": Command(
        "quell.commands.doctor",
        "what is missing here, and the command that mends it",
        uses_cache=False,
    ),
    "man": Command("quell.commands.man", "the manual page", uses_cache=False),
    "completion": Command(
        "quell.commands.completion", "completion for bash and zsh", uses_cache=False
    ),
    "clean": Command("quell.commands.clean", "free the cache", uses_cache=False),
}


class _Parser(argparse.ArgumentParser):
    """argparse, but errors are UsageErrors like all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _fill(parser: argparse.ArgumentParser, command: Command, module: Any) -> None:
    """A command's arguments, and its help: what it does, its options, examples."""
    parser.description = module.__doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    examples = module.EXAMPLES.rstrip("\n").replace("%", "%%")
    parser.epilog = "examples:\n  " + examples.replace("\n", "\n  ")
    module.add_arguments(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no notes, no progress")
    if command.takes_command:
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = usage.replace("%", "%%") + " [-- CMD ARG...]"


def whole_parser() -> argparse.ArgumentParser:
    """All commands in one parser, for completion and the manual page; imports all of them."""
    parser = argparse.ArgumentParser(
        prog="quell",
        description=SUMMARY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no notes, no progress")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help)
        _fill(sub, command, importlib.import_module(command.module))
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
            "./quell COMMAND --help tells more. --quiet leaves out notes and progress.",
            "Everything downloaded and built lies in $QUELL_CACHE, by default ~/.cache/quell.",
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
    if name in ("-h", "--help", "help"):
        print(_overview())
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
    module = importlib.import_module(command.module)
    parser = _Parser(prog=f"./quell {name}")
    _fill(parser, command, module)
    args = parser.parse_args(rest)
    args.command = command_argv
    if args.quiet:
        ui.set_quiet(True)
    with Cache().in_use() if command.uses_cache else nullcontext():
        code: int = module.main(args)
    sys.stdout.flush()
    return code


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

    # Being ended must clean up just as Ctrl-C does.
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("quell: interrupted", file=sys.stderr)
        return 130
    except QuellError as error:
        return _report(error)
    except BrokenPipeError:
        # The reader of our output went away; nothing more can reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _report(_os_error(error))
    except Exception as error:
        return _report(_internal(error))
