# SPDX-License-Identifier: GPL-2.0-only
"""The completion scripts and the manual page, generated from the commands' own parsers."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
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


# The last name of a comma list. $1 is the word in bash.
_LIST = {
    "bash": """\
_quell_NAME() {
  local before=
  [[ $1 != *,* ]] || before=${1%,*},
  compgen -P "$before" -W "VALUES" -- "${1##*,}"
}
""",
    "zsh": """\
_quell_NAME() {
  _values -s , NAME VALUES
}
""",
}
# The names of the cache's results, else files. With _files in the function's name bash treats both as file names.
_RESULTS = {
    "bash": """\
_quell_results_or_files() {
  local file names=
  for file in "${QUELL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quell}"/results/*/result.json; do
    file=${file%/result.json}
    [[ $file == *'*' ]] || names+=" ${file##*/}"
  done
  compgen -W "$names" -- "$1" || compgen -f -- "$1"
}
""",
    "zsh": """\
_quell_results_or_files() {
  local -a names=(${QUELL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quell}/results/*/result.json(N:h:t))
  _alternative 'results:result:compadd -a names' 'files:file:_files'
}
""",
}
_FILES = ("PATH[:FS]", "IMAGE-OR-DEVICE", "FILE|running")


def _completer(name: str, functions: Mapping[str, str], values: Sequence[str] = ()) -> dict[str, object]:
    """Each shell's function and its text, as shtab takes them."""
    text = {
        shell: one.replace("NAME", name).replace("VALUES", " ".join(values)) for shell, one in functions.items()
    }
    return {**dict.fromkeys(text, f"_quell_{name}"), "preamble": text}


def _parser() -> argparse.ArgumentParser:
    """All commands, with completers for files, folders and Quell's names."""
    import shtab

    from quell import cli

    completers = {
        "NAME[,NAME...]": _completer("workloads", _LIST, workload.known()),
        "PATCH[,PATCH...]": _completer("patches", _LIST, series.selectable(series.read(tree.kernel_dir()))),
        "GROUP": _completer("groups", _LIST, presets.group_names()),
        "RESULT": _completer("results_or_files", _RESULTS),
        **dict.fromkeys(_FILES, shtab.FILE),
    }
    parser = cli.whole_parser()
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "MECHANISM":
            action.choices = mechanisms.names()
        elif action.metavar in completers:
            action.complete = completers[action.metavar]  # type: ignore[attr-defined]
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
    text: str = shtab.complete(parser, shell)
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
