# SPDX-License-Identifier: GPL-2.0-only
"""Running programs: input, logs, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quell import proc
from quell.errors import QuellError, UsageError


def gone(pid: int) -> bool:
    """True if a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int, seconds: float = 6) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if gone(pid):
            return True
        time.sleep(0.02)
    return False


def test_output_and_input() -> None:
    result = proc.run(["sh", "-c", "cat; echo err >&2"], stdin="in\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "in\n", "err\n")


def test_large_input_and_output() -> None:
    assert len(proc.run(["cat"], stdin="x" * 3_000_000).stdout) == 3_000_000


def test_no_input_is_empty() -> None:
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


def test_missing_program() -> None:
    with pytest.raises(UsageError, match="no-such-program"):
        proc.run(["no-such-program"])


def test_time_out_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! >{tmp_path}/pid; echo early; wait"
    with pytest.raises(proc.Timeout, match="within 0.4 s") as caught:
        proc.run(["sh", "-c", script], timeout=0.4)
    assert caught.value.stdout == "early\n"
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_stray_children_do_not_hold_us(tmp_path: Path) -> None:
    started = time.monotonic()
    proc.run(["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid"])
    assert time.monotonic() - started < 5
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_us(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "from quell import proc\n"
        f"proc.run(['sh', '-c', 'sleep 60 & echo $! >{tmp_path}/pid; wait'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(proc.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    ) as parent:
        deadline = time.monotonic() + 10
        pid = ""
        while not pid.endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.02)
            if (tmp_path / "pid").exists():
                pid = (tmp_path / "pid").read_text()
        parent.send_signal(number)
        parent.wait(10)
    assert wait_until_gone(int(pid))
