# SPDX-License-Identifier: GPL-2.0-only
"""The command, its two sources, and that it leaves nothing behind."""

import ast
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Self
from unittest.mock import Mock

import pytest

from conftest import Capture, fails, until
from guests import Patch, lab_env
from quell import cli, procfs
from quell.commands import top
from quell.errors import UsageError
from quell.paths import repo_root
from quell.top import sources, tracefs
from quell.top.sample import Task

DATA = Path(__file__).parent / "data"
_wait = Mock(return_value=False)  # the user does not stop it
HIST = (DATA / "top-hist.txt").read_text().replace("Dropped: 5", "Dropped: 0")
PIPE = (DATA / "top-trace-pipe.txt").read_text()
LAB = repo_root() / "lab"


def _traces() -> bool:
    try:
        with ExitStack() as stack:
            return bool(sources.choose("events", stack))
    except UsageError:
        return False


real = pytest.mark.skipif(not _traces(), reason="no tracefs here")


class FakeTracefs:
    """A session and its only instance, which has no files with ``lacks``."""

    def __init__(self, lacks: str = "\0", **files: str) -> None:
        self.lacks, self.files = lacks, files
        self.log: list[str] = []

    def instance(self, suffix: str) -> Self:
        return self

    def has(self, name: str) -> bool:
        return self.lacks not in name

    def write(self, name: str, text: str) -> None:
        self.log.append(text)

    def read(self, name: str) -> str:
        return self.files.get("hist", "") if "tlb_flush" in name else ""

    def take(self) -> str:
        return self.files.get("pipe", "")


@pytest.fixture
def still(monkeypatch: Patch) -> Counter[int]:
    """Interrupt counts that only the test moves."""
    counts = Counter({0: 10, 1: 20})
    monkeypatch.setattr(sources, "interrupts", lambda: Counter(counts))
    monkeypatch.setattr(sources, "_FIRST_S", 0.0)
    return counts


@pytest.fixture
def fake(still: Counter[int], monkeypatch: Patch) -> FakeTracefs:
    """``top`` on a machine without histograms."""
    one = FakeTracefs(lacks="hist", pipe=PIPE)
    monkeypatch.setattr(sources, "session", lambda: nullcontext(one))
    return one


def test_hist_counts_the_difference(still: Counter[int]) -> None:
    """On a kernel before 6.4, which tells no initiator's interrupts."""
    one = FakeTracefs(lacks="csd", hist=HIST)
    source = sources.Hist(one)  # type: ignore
    assert source.collect(0.05, _wait).sent == 0  # all of it was there before
    one.files["hist"] = HIST.replace(":        120", ":        150").replace(":        118", ":        128")
    still[1] += 60
    found = source.collect(0.05, _wait)
    task = Task(4242, "my prog, x]")
    assert (found.sent, found.interrupts, found.targets) == (30, 60, {task: 60})
    [flush] = found.flushes
    assert flush.task == task and flush.ranged
    assert found.victims == {Task(4243, "spinner"): 10}
    assert source.collect(0.05, _wait, lambda task: False).sent == 0


def test_hist_starts_afresh_when_full(still: Counter[int]) -> None:
    one = FakeTracefs(hist=HIST)
    source = sources.Hist(one)  # type: ignore
    one.files["hist"] = HIST.replace("Dropped: 0", "Dropped: 9", 1)
    assert source.collect(0.05, _wait).lost == 9
    done = [re.sub(r".*:(\w+) if .*", r"\1", text) for text in one.log[-9:]]
    assert done == 3 * ["pause", "clear", "continue"]
    assert source.collect(0.05, _wait).sent == 123  # counted from 0 again


def test_events_scale_a_sample(still: Counter[int], monkeypatch: Patch) -> None:
    source = sources.Events(FakeTracefs(pipe=PIPE))  # type: ignore
    source.rate = 1e6
    steps = iter([0, 100, 300])  # before the sample, in it, after it

    def interrupts() -> Counter[int]:
        still[0] += next(steps, 0)
        return Counter(still)

    monkeypatch.setattr(sources, "interrupts", interrupts)
    found = source.collect(0.1, _wait)
    assert found.interrupts == 400 and found.seen == pytest.approx(0.25)
    # Of the four events, one request; eight were lost. Flushes are two events each.
    assert found.sent == pytest.approx(4 * 4 * (8 + 8) / 8)
    assert found.targets == {Task(99, "<...>"): 400}


def test_no_shootdowns_are_counted(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(procfs, "interrupts", Mock(side_effect=ValueError))
    assert cli.main(["top"]) == 2
    assert "not for x86" in capsys.readouterr().err


def test_without_permission(still: Counter[int], monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(tracefs, "mounted", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert cli.main(["top"]) == 2
    assert "needs root with CAP_SYS_ADMIN" in capsys.readouterr().err


@pytest.mark.parametrize(("args", "code", "words"), [
    (["--interval", "0"], 2, "--interval is 0.1 to 3600"),
    (["--source", "magic"], 2, "invalid choice"),
    (["--source", "hist"], 2, "hist: this kernel lacks CONFIG_HIST_TRIGGERS"),
    (["--once", "--", "true"], 2, "--once is not for a command"),
    (["--json", "--folded"], 2, "not allowed with"),
    (["--pid", "9999999999"], 2, "there is no process 9999999999"),
    (["--", "nosuchcmd"], 127, "quell: nosuchcmd: command not found\n"),
    (["--", "/etc/passwd"], 126, "quell: /etc/passwd: not an executable file\n"),
])  # fmt: skip
def test_bad_usage(args: list[str], code: int, words: str, fake: FakeTracefs, capsys: Capture) -> None:
    assert cli.main(["top", *args]) == code
    told = capsys.readouterr().err
    assert words in told and len(told.splitlines()) == 1


def test_once(fake: FakeTracefs, capsys: Capture) -> None:
    argv = ["top", "--once", "--interval", "0.1"]
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "TLB shootdowns" in lines[1] and "; not hist: this kernel lacks CONFIG" in lines[-1]
    assert cli.main([*argv, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["schema"] == "quell-top/2"
    assert cli.main([*argv, "--folded"]) == 0
    told = capsys.readouterr()
    assert re.search(r"^dt;sys_madvise;do_madvise;\S+ \d+$", told.out, re.M) and "shootdowns" in told.err


def test_pid(fake: FakeTracefs, capsys: Capture) -> None:
    own = os.getpid()
    fake.files["pipe"] = PIPE.replace("-10472 ", f"-{own} ")
    assert cli.main(["top", "--once", "--json", "--interval", "0.1", "--pid", str(own)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pid"] == own and [row["pid"] for row in found["processes"]] == [own]
    assert found["causes"][0]["cause"] == "madvise-other" and found["receivers"]["processes"] == []


def test_command(fake: FakeTracefs, capfd: Capture) -> None:
    assert cli.main(["top", "--json", "--", "sh", "-c", "echo out; sleep 0.3; exit 7"]) == 7
    told = capfd.readouterr()
    assert json.loads(told.out)["shootdowns"] > 0 and "out" in told.err
    assert cli.main(["top", "--", "sh", "-c", "echo out; kill -9 $$"]) == 137
    told = capfd.readouterr()
    assert told.out == "out\n" and "source: events" in told.err


def test_stop() -> None:
    with ExitStack() as stack, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        stop = top.Stop(stack)
        stop.at_end_of(child.pid)
        assert not stop.wait(0.05)
        child.kill()
        assert stop.wait(5)
    with ExitStack() as stack:
        stop = top.Stop(stack)
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(5)
        fails(KeyboardInterrupt, None, signal.raise_signal, signal.SIGINT)


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_no_color_is_not_bold(
    no_color: str, bold: bool, fake: FakeTracefs, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["top", "--once", "--interval", "0.1"]) == 0
    assert ("\x1b" in capsys.readouterr().out) is bold


def test_python_3_9_and_its_standard_library() -> None:
    """Without site-packages; the syntax of all modules is that of 3.9."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from quell import cli
try: cli.main(["top", "--help"])
except SystemExit: print(*(one.__file__ for name, one in sys.modules.items() if "quell" in name), sep="\\n")
"""
    said = subprocess.check_output([sys.executable, "-I", "-S", "-B", "-c", script, str(LAB)], text=True)
    files = [line for line in said.splitlines() if line.endswith(".py")]
    assert any(file.endswith("top/tracefs.py") for file in files)
    for file in files:
        text = Path(file).read_text()
        ast.parse(text, feature_version=(3, 9))
        # Without this 3.9 evaluates "int | None".
        assert "\nfrom __future__ import annotations\n" in text or "def " not in text, file


# --- with the kernel's tracefs


def _state() -> dict[str, str]:
    """All that another user of tracefs would notice."""
    names = ["tracing_on", "current_tracer", "trace_clock", "trace_options", "set_event", "set_event_pid"]
    names += ["buffer_size_kb", "events/enable", "events/tlb/tlb_flush/filter"]
    with tracefs.session() as one:
        found = {name: (one.root / name).read_text() for name in names if one.has(name)}
        return {**found, "instances": " ".join(os.listdir(one.instances))}


def _instances(pid: int) -> list[Path]:
    mount = tracefs.mounted()
    try:
        return list(Path(f"/proc/self/fd/{mount}/instances").glob(f"quell-{pid}-*"))
    finally:
        os.close(mount)


@real
def test_live() -> None:
    """On a terminal q ends it, other keys do nothing, and the terminal is as before."""
    pid, fd = pty.fork()
    if not pid:
        os.execve(sys.executable, [sys.executable, "-P", "-m", "quell", "top"], lab_env())
    before, said = termios.tcgetattr(fd), b""
    while b"interrupts" not in said:
        said += os.read(fd, 4096)
    os.write(fd, b"x~Qq")
    with suppress(OSError):  # the end
        while part := os.read(fd, 4096):
            said += part
    assert os.waitpid(pid, 0)[1] == 0 and termios.tcgetattr(fd) == before
    os.close(fd)
    assert b"x~" not in said and b"source: " in said.rpartition(b"\x1b[?1049l")[2]


@real
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -9)],
)
def test_leaves_tracefs_as_it_was(number: signal.Signals, code: int) -> None:
    before = _state()
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "quell", "top", "--json", "--source", "events"], env=lab_env(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # not as under nohup
    )  # fmt: skip
    try:
        assert until(lambda: len(_instances(child.pid)) == 2, 20)
        time.sleep(0.3)  # into the first interval
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == code and b"Traceback" not in err
    assert until(lambda: not _instances(child.pid), 8)
    assert _state() == before
    if code == 0:
        assert all(json.loads(line)["source"]["name"] == "events" for line in out.splitlines())


@real
def test_killed_with_its_guard_is_swept_by_the_next() -> None:
    script = """
import os, signal
from quell.top.tracefs import session
with session() as one:
    one.instance("left")
    one.guard.kill()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    child = subprocess.Popen([sys.executable, "-P", "-c", script], env=lab_env())
    child.wait()
    assert _instances(child.pid)
    with tracefs.session() as one:
        mine = one.instance("mine")
        assert not _instances(child.pid)
        # An instance in use stays.
        tracefs.sweep(one.instances)
        assert mine.path.exists()
    assert not _instances(os.getpid())
