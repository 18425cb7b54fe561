# SPDX-License-Identifier: GPL-2.0-only
"""Running programs: input, logs, and no process left behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import fails, gone, text_of, until
from guests import lab_env
from quell import proc
from quell.errors import QuellError, UsageError


def test_input_and_output() -> None:
    result = proc.run(["sh", "-c", "cat; echo err >&2"], stdin="in\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "in\n", "err\n")
    assert len(proc.run(["cat"], stdin="x" * 3_000_000).stdout) == 3_000_000
    assert proc.run(["cat"]).stdout == ""


def test_lines_and_log(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "log"
    proc.run(["sh", "-c", "echo a; echo b >&2; printf 'c\\rd'"], log=log, on_line=lines.append)
    assert lines == ["a", "b", "c", "d"]
    assert log.read_bytes() == b"a\nb\nc\rd"


def test_failure_and_environment() -> None:
    with pytest.raises(QuellError, match="exit code 3") as caught:
        proc.run(["sh", "-c", "echo $WHY >&2; exit 3"], env={"WHY": "because"})
    assert caught.value.detail == "because"
    assert proc.run(["sh", "-c", "kill -9 $$"], check=False).returncode == -9
    fails(UsageError, "no-such-program cannot be run: No such file", proc.run, ["no-such-program"])


def test_time_out_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! >{tmp_path}/pid; wait"
    fails(proc.Timeout, "within 0.4 s", proc.run, ["sh", "-c", script], timeout=0.4)
    fails(proc.Timeout, "within 0.2 s", proc.run, ["yes"], timeout=0.2)
    assert gone(tmp_path / "pid")


def test_stray_children_do_not_hold_us(tmp_path: Path) -> None:
    started = time.monotonic()
    proc.run(["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid"])
    assert time.monotonic() - started < 20
    assert gone(tmp_path / "pid")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_us(tmp_path: Path, number: signal.Signals) -> None:
    code = f"from quell import proc; proc.run(['sh', '-c', 'sleep 60 & echo $! >{tmp_path}/pid; wait'])"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, env=lab_env(), stderr=subprocess.DEVNULL) as parent:
        assert until(lambda: text_of(tmp_path / "pid"), 10)
        parent.send_signal(number)
        parent.wait(10)
    assert gone(tmp_path / "pid")
