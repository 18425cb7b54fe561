# SPDX-License-Identifier: GPL-2.0-only
"""The completion scripts and the manual page, generated from the commands' own parsers."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from quell import mechanisms, presets, series, tree, version, workload

_LICENSE = "SPDX-License-Identifier: GPL-2.0-only"
_MADE = "Made by ./quell completion and ./quell man."

_END = """\
.SH ENVIRONMENT
.TP
.B QUELL_CACHE
the folder of downloads, builds and results (~/.cache/quell)
.TP
.B QUELL_LLAMA
a llama.cpp program (llama\\-completion) for the workload llm, instead of the lab's build
.SH EXIT STATUS
0: success. 1: a check, a comparison or the command failed. 2: bad usage, or a missing
prerequisite. 130: interrupted.
.B quell run
and
.B quell compare \\-\\- CMD
exit with the command's own code.
"""
_FILES = ("PATH[:FS]", "IMAGE-OR-DEVICE", "FILE|running")
# Files, and the kept results at the time of completion.
_KEPT = '$(ls "${QUELL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quell}/results" 2>/dev/null)'
_RESULTS = {
    "bash": f"_quell_results() {{ compgen -f -- $1; compgen -W '{_KEPT}' -- $1; }}",
    "zsh": f"_quell_results() {{ _files; compadd ${{(f)\"{_KEPT}\"}}; }}",
}
# Names with commas between; bash takes the whole word from a function.
_LIST = {
    "bash": """{}() {{ local last="${{1##*,}}"; compgen -P "${{1%"$last"}}" -W '{}' -- "$last"; }}""",
    "zsh": "{}() {{ _sequence compadd - {}; }}",
}


def _lists() -> dict[str, list[str]]:
    return {
        "NAME[,NAME...]": workload.known(),
        "PATCH[,PATCH...]": series.selectable(series.read(tree.kernel_dir())),
    }


def _function(metavar: str) -> str:
    return f"_quell_{metavar.partition('[')[0].lower()}"


def _parser() -> argparse.ArgumentParser:
    """All commands, with completion of files, folders and Quell's names."""
    import shtab

    from quell import cli

    names = {"GROUP": presets.group_names(), "MECHANISM": mechanisms.names()}
    lists, parser = _lists(), cli.whole_parser()
    for action in _actions(parser):
        if action.type is Path or action.metavar in _FILES:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "RESULT":
            action.complete = dict.fromkeys(_RESULTS, "_quell_results")  # type: ignore[attr-defined]
        elif action.metavar in lists:
            action.complete = dict.fromkeys(_LIST, _function(str(action.metavar)))  # type: ignore[attr-defined]
        elif action.metavar in names:
            action.choices = names[action.metavar]
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)


def completion(shell: str) -> str:
    """The completion script of a shell, bash or zsh."""
    import shtab

    parser = _parser()
    for action in _actions(parser) if shell == "zsh" else ():
        if isinstance(action.metavar, str):
            action.metavar = action.metavar.replace(":", "\\:")
    lists = [_LIST[shell].format(_function(metavar), " ".join(names)) for metavar, names in _lists().items()]
    text: str = shtab.complete(parser, shell, preamble="\n".join([_RESULTS[shell], *lists]))
    first, _, rest = text.partition("\n")
    return f"{first}\n# {_LICENSE}\n# {_MADE}\n{rest.rstrip()}\n"


def manual() -> str:
    """The manual page, in roff."""
    from argparse_manpage.manpage import Manpage  # type: ignore[import-untyped]

    page = Manpage(
        _parser(),
        {
            "date": " ",
            "project_name": "Quell",
            "version": version.RELEASE,
            "manual_title": "Quell",
            "description": "compare stock Linux with Quell's memory-management changes",
        },
        format="single-commands-section",
    )
    text = f'.\\" {_LICENSE}\n.\\" {_MADE}\n{str(page).rstrip()}\n'
    # A line that starts with ./quell is no macro.
    text = re.sub(r"^\./", r"\\&./", text, flags=re.M)
    return text + _examples() + _END


def _examples() -> str:
    """The section EXAMPLES, from the end of each command's help."""
    from quell import cli

    lines = [".SH EXAMPLES", ".nf"]
    for name in cli.COMMANDS:
        for line in cli.module_of(name).EXAMPLES.splitlines():
            lines.append("\\&" + line.replace("\\", "\\e").replace("-", "\\-"))
    return "\n".join([*lines, ".fi\n"])
