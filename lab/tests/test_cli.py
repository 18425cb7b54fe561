# SPDX-License-Identifier: GPL-2.0-only
"""The command line: every error is one message and an exit code, never a traceback."""

import argparse
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conftest import Capture
from guests import Patch, execute, lab_env
from quell import cli, source, tree, ui, version
from quell.errors import QuellError
from quell.paths import Cache, repo_root


def use(monkeypatch: Patch, main: object, **options: bool) -> None:
    """Add a command ``probe`` with this main()."""
    module: Any = types.ModuleType("probe", "A probe.")
    module.add_arguments = lambda parser: parser.add_argument("--number", type=int)
    module.main = main
    module.EXAMPLES = "./quell probe\n"
    monkeypatch.setitem(sys.modules, "quell.commands.probe", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probes", **options))


def test_help(capsys: Capture) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in cli.COMMANDS)
    assert cli.main([]) == 2
    assert capsys.readouterr().err == out
    assert cli.main(["help", "--help"]) == 0


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help_with_examples_that_parse(name: str, capsys: Capture) -> None:
    texts = []
    for words in ([name, "--help"], ["help", name]):
        with pytest.raises(SystemExit, match="^0$"):
            cli.main(words)
        texts.append(capsys.readouterr().out)
    out = texts[0]
    assert out == texts[1] and out.startswith(f"usage: ./quell {name} ") and "examples:\n" in out
    assert max(map(len, out.splitlines())) <= 110
    whole = cli.whole_parser()
    own = [line for line in cli.module_of(name).EXAMPLES.splitlines() if line.startswith("./quell ")]
    assert any(line.split()[1] == name for line in own)
    for line in own:
        words = shlex.split(line.split(" > ")[0])[1:]
        before, _, command = " ".join(words).partition(" -- ")
        assert not command or cli.COMMANDS[words[0]].takes_command
        whole.parse_args(before.split())


@pytest.mark.parametrize(("argv", "message"), [
    (["docter"], "unknown command 'docter'; did you mean doctor?"),
    (["xyzzy"], "unknown command 'xyzzy' (see ./quell --help)"),
    (["--wat"], "unknown option --wat"),
    (["--", "ls"], "needed before --"),
    (["doctor", "--", "ls"], "doctor takes no command after --"),
    (["compare", "--"], "no command after --"),
    (["doctor", "--wat"], "unrecognized arguments: --wat"),
    (["build", "vax"], "invalid choice: 'vax' (choose from "),
    (["help", "xyzzy"], "unknown command 'xyzzy'"),
    (["compare", "make"], "unrecognized arguments: make; a command goes after --; workloads go after --workload"),
    (["top", "ls"], "unrecognized arguments: ls; a command goes after -- (see ./quell top --help)"),
    (["ladder", "zap"], "unrecognized arguments: zap; workloads go after --workload"),
    (["compare", "--timeout", "abc"], "--timeout: 'abc' is not a number (see ./quell compare --help)"),
    (["deb", "--config", "x", "-j", "0"], "quell: --jobs is 1 to 1024, not 0"),
])  # fmt: skip
def test_bad_usage(argv: list[str], message: str, capsys: Capture) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("quell: ") and message in captured.err
    assert len(captured.err.splitlines()) == 1 and captured.out == ""


@pytest.mark.parametrize(
    "words", ["explain luf", "help", "help compare", "--version", "man", "status --json --root /nonexistent"]
)
def test_output_that_cannot_be_written(words: str, cache: Cache) -> None:
    def said(redirection: str, unbuffered: str = "") -> tuple[int, str]:
        env = lab_env() | {"PYTHONUNBUFFERED": unbuffered}
        done = execute("sh", "-c", f"exec {sys.executable} -m quell {words} {redirection}", env=env)
        return done.returncode, done.stderr

    full = (2, "quell: standard output cannot be written: No space left on device\n")
    assert said(">/dev/full") == said(">/dev/full", "1") == full
    assert said(">&-") == (2, "quell: standard output is closed\n")
    assert not cache.root.exists()


def test_standard_input_that_is_closed(cache: Cache) -> None:
    done = execute("sh", "-c", f"exec {sys.executable} -m quell run <&-", env=lab_env())
    assert (done.returncode, done.stderr) == (2, "quell: run needs a command after -- when stdin is no terminal\n")


def test_the_users_git_repository_is_left_alone(monkeypatch: Patch) -> None:
    monkeypatch.setenv("GIT_DIR", "/somewhere/.git")
    monkeypatch.setenv("GIT_INDEX_FILE", "/somewhere/.git/index.lock")
    use(monkeypatch, lambda args: sum(name in os.environ for name in ("GIT_DIR", "GIT_INDEX_FILE")))
    assert cli.main(["probe"]) == 0


def test_user_command_is_split_off(monkeypatch: Patch) -> None:
    main = Mock(return_value=7)
    use(monkeypatch, main, takes_command=True)
    assert cli.main(["probe", "--number", "3", "--", "ls", "--number", "--", "x"]) == 7
    assert cli.main(["probe"]) == 7
    [first], [second] = (call.args for call in main.call_args_list)
    assert (first.number, first.command) == (3, ["ls", "--number", "--", "x"])
    assert second.command is None


def test_quiet(monkeypatch: Patch, capsys: Capture) -> None:
    def main(args: argparse.Namespace) -> int:
        ui.note("chatter")
        with ui.progress("work", 3) as bar:
            bar.advance()
        ui.warn("matters")
        return 0

    use(monkeypatch, main)
    assert cli.main(["probe"]) == 0
    assert "chatter" in capsys.readouterr().err
    for argv in (["probe", "--quiet"], ["--quiet", "probe"]):
        assert cli.main(argv) == 0
        assert capsys.readouterr().err == "quell: warning: matters\n"
        ui.set_quiet(False)


@pytest.mark.parametrize(("error", "code", "message"), [
    (QuellError("it broke", detail="a.c:1", log=Path("/l")), 1, "quell: it broke\na.c:1\nlog: /l\n"),
    (KeyboardInterrupt(), 130, "quell: interrupted\n"),
    (OSError(errno.ENOSPC, "No space left on device", "/big"), 2, "no disk space left for /big"),
    (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1, "quell: Permission denied: /root/x\n"),
    (ValueError("odd"), 1, "quell: internal error: ValueError: odd"),
])  # fmt: skip
def test_errors(
    error: BaseException, code: int, message: str, monkeypatch: Patch, capsys: Capture, cache: Cache
) -> None:
    use(monkeypatch, Mock(side_effect=error))
    assert cli.main(["probe"]) == code
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    log = cache.logs / "internal-error.log"
    assert log.exists() == isinstance(error, ValueError) and (not log.exists() or "Traceback" in log.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys, types, time, quell.cli as cli\n"
        "m = types.ModuleType('m'); m.add_arguments = lambda p: None; m.EXAMPLES = ''\n"
        "def main(args):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "m.main = main; sys.modules['quell.commands.probe'] = m\n"
        "cli.COMMANDS['probe'] = cli.Command('x')\n"
        "sys.exit(cli.main(['probe']))\n"
    )
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(argv, env=lab_env(), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "quell: interrupted\n")


def test_durations_and_sizes() -> None:
    assert [ui.duration(s) for s in (7.6, 65, 3725)] == ["8 s", "1 min 05 s", "1 h 02 min"]
    assert [ui.size(s) for s in (2_000, 12_000_000, 1_500_000_000)] == ["2 kB", "12 MB", "1.5 GB"]


def test_version_option(capsys: Capture, cache: Cache) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"quell {version.RELEASE} (Linux 6.12.y, 7.3.y)\n"
    assert not cache.root.exists()


def test_versions_of_linux_are_those_with_hooks() -> None:
    assert sorted(source.VERSIONS) == sorted(path.name for path in (tree.kernel_dir() / "hooks").iterdir())
    assert all(source.linux_of(release) == linux for linux, release in source.MADE_WITH.items())


def test_documents_name_this_release() -> None:
    changes = (repo_root() / "CHANGELOG.md").read_text()
    first = re.search(r"^## \[(.+?)\]", changes, re.M)
    assert first and first[1] == version.RELEASE
    for name in ("CHANGELOG.md", "SECURITY.md"):
        text = (repo_root() / name).read_text()
        for linux in source.VERSIONS:
            assert f"{linux}.y" in text, name
