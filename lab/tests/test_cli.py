# SPDX-License-Identifier: GPL-2.0-only
"""The command line: every error is one message and an exit code, never a traceback."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from quell import cli, ui
from quell.errors import QuellError
from quell.paths import Cache

LAB = Path(cli.__file__).parents[1]


def use(monkeypatch: pytest.MonkeyPatch, main: object, **options: bool) -> None:
    """Add a command ``probe`` with this main()."""
    module = types.ModuleType("probe", "A probe.")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int)

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.main = main  # type: ignore[attr-defined]
    module.EXAMPLES = "./quell probe\n"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quell.commands.probe", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probes", **options))


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"  {name} " in out
    assert cli.main([]) == 2
    assert capsys.readouterr().err == out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"./quell {name}" in out and "examples:\n" in out
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_ends_with_examples_that_parse(name: str) -> None:
    module = cli.module_of(name)
    whole = cli.whole_parser()
    own = [line for line in module.EXAMPLES.splitlines() if line.startswith("./quell ")]
    assert any(line.split()[1] == name for line in own)
    for line in own:
        words = shlex.split(line.split(" > ")[0])[1:]
        before, _, command = " ".join(words).partition(" -- ")
        assert not command or cli.COMMANDS[words[0]].takes_command
        whole.parse_args(before.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["docter"], "unknown command 'docter'; did you mean doctor?"),
        (["xyzzy"], "unknown command 'xyzzy' (see ./quell --help)"),
        (["--wat"], "unknown option --wat"),
        (["--", "ls"], "needed before --"),
        (["doctor", "--", "ls"], "doctor takes no command after --"),
        (["compare", "--"], "no command after --"),
        (["doctor", "--wat"], "unrecognized arguments: --wat"),
        (["build", "vax"], "there is no 'vax'"),
        (["help", "xyzzy"], "unknown command 'xyzzy'"),
        (["compare", "make", "-j4"], "a command goes after --; did you mean: ./quell compare -- make -j4"),
        (["run", "--cpus", "4", "--memory=1G", "--stock", "ls", "-q", "a b"],
         "did you mean: ./quell run --cpus 4 --memory=1G --stock -- ls -q 'a b'"),
        (["top", "ls", "--help"], "did you mean: ./quell top -- ls --help"),
        (["ladder", "zap"], "workloads go after --workload; did you mean: ./quell ladder --workload zap"),
        (["compare", "--runs", "6", "zap,fault"], "did you mean: ./quell compare --runs 6 --workload zap,fault"),
        (["ladder", "nosuch"], "unrecognized arguments: nosuch"),
        (["compare", "--wat", "make"], "unrecognized arguments: --wat make"),
        (["compare", "--timeout", "abc"], "quell: --timeout: 'abc' is not a number of seconds (see ./quell compare --help)"),
        (["top", "--interval", "1s"], "quell: --interval: '1s' is not a number of seconds"),
        (["compare", "--runs", "1.5"], "quell: --runs: '1.5' is not a whole number"),
        (["deb", "--config", "x", "-j", "0"], "quell: --jobs is 1 to 1024, not 0"),
    ],
)
def test_bad_usage(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("quell: ") and message in captured.err
    assert len(captured.err.splitlines()) == 1 and captured.out == ""


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["help", "compare"], ["compare", "--help"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("usage: ./quell compare ")
    assert cli.main(["help", "--help"]) == 0


@pytest.mark.parametrize("words", ["explain luf", "help", "help compare", "--version", "man", "status --json --root /nonexistent"])
def test_output_that_cannot_be_written(words: str, cache: Cache) -> None:
    def said(redirection: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", f"exec {sys.executable} -m quell {words} {redirection}"],
            env={**os.environ, "PYTHONPATH": str(LAB)}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        return done.returncode, done.stderr

    code, text = said(">/dev/full")
    assert code == 2 and text.endswith("quell: standard output cannot be written: No space left on device\n")
    assert len(text.splitlines()) == 1 + words.startswith("status")  # which has an error of its own, too
    assert said(">&-") == (2, "quell: standard output is closed\n")
    assert not cache.root.exists()


def test_user_command_is_split_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def main(args: argparse.Namespace) -> int:
        seen.append(args)
        return 7

    use(monkeypatch, main, takes_command=True)
    assert cli.main(["probe", "--number", "3", "--", "ls", "--number", "--", "x"]) == 7
    assert (seen[0].number, seen[0].command) == (3, ["ls", "--number", "--", "x"])
    assert cli.main(["probe"]) == 7
    assert seen[1].command is None


def test_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (QuellError("it broke", detail="a.c:1: error", log=Path("/l")), 1,
         "quell: it broke\na.c:1: error\nlog: /l\n"),
        (KeyboardInterrupt(), 130, "quell: interrupted\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/big"), 2, "no disk space left for /big"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1,
         "quell: Permission denied: /root/x\n"),
        (ValueError("odd"), 1, "quell: internal error: ValueError: odd"),
    ],
)  # fmt: skip
def test_errors(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cache: Cache,
) -> None:
    def main(args: argparse.Namespace) -> int:
        raise error

    use(monkeypatch, main)
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
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(LAB)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err == "quell: interrupted\n"


def test_durations_and_sizes() -> None:
    assert [ui.duration(s) for s in (7.6, 65, 3725)] == ["8 s", "1 min 05 s", "1 h 02 min"]
    assert [ui.size(s) for s in (2_000, 12_000_000, 1_500_000_000)] == ["2 kB", "12 MB", "1.5 GB"]
