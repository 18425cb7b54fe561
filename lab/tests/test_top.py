# SPDX-License-Identifier: GPL-2.0-only
"""The command, its two sources, and that it leaves nothing behind."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from quell import cli, procfs
from quell.commands import top
from quell.errors import UsageError
from quell.paths import repo_root
from quell.top import sources, tracefs
from quell.top.sample import Task

DATA = Path(__file__).parent / "data"
HIST = (DATA / "top-hist.txt").read_text().replace("Dropped: 5", "Dropped: 0")
PIPE = (DATA / "top-trace-pipe.txt").read_text()
LAB = repo_root() / "lab"


def _traces() -> bool:
    try:
        with tracefs.session() as session:
            session.instance("probe")
        sources.interrupts()
    except (UsageError, OSError):
        return False
    return True


CAN_TRACE = sys.platform == "linux" and os.geteuid() == 0 and _traces()
real = pytest.mark.skipif(not CAN_TRACE, reason="no tracefs here")


class FakeTracefs:
    """A session and its only instance. It has no files with ``lacks``, and refuses texts with ``refused``."""

    def __init__(self, lacks: str = "\0", refused: str = "\0", **files: str) -> None:
        self.lacks, self.refused, self.files = lacks, refused, files
        self.log: list[str] = []

    def instance(self, suffix: str) -> FakeTracefs:
        return self

    def has(self, name: str) -> bool:
        return self.lacks not in name

    def write(self, name: str, text: str) -> None:
        self.log.append(text)
        if self.refused in text:
            raise OSError(22, "Invalid argument")

    def read(self, name: str) -> str:
        return self.files.get("hist", "") if "tlb_flush" in name else ""

    def take(self) -> str:
        return self.files.get("pipe", "")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Interrupt counts that only the test moves."""
    counts = Counter({0: 10, 1: 20})
    monkeypatch.setattr(sources, "interrupts", lambda: Counter(counts))
    monkeypatch.setattr(sources, "_FIRST_S", 0.0)
    return counts


@pytest.fixture
def fake(still: Counter[int], monkeypatch: pytest.MonkeyPatch) -> FakeTracefs:
    """``top`` on a machine without histograms."""
    one = FakeTracefs(lacks="hist", pipe=PIPE)

    @contextmanager
    def session() -> Iterator[FakeTracefs]:
        yield one

    monkeypatch.setattr(sources, "session", session)
    return one


def _wait(seconds: float) -> bool:
    return False


def test_hist_counts_the_difference(still: Counter[int]) -> None:
    one = FakeTracefs(lacks="csd", hist=HIST)
    source = sources.Hist(one)  # type: ignore
    source.start()
    assert source.collect(0.05, _wait).sent == 0  # all of it was there before
    one.files["hist"] = HIST.replace(":        120", ":        150").replace(":        118", ":        128")
    still[1] += 30
    found = source.collect(0.05, _wait)
    assert (found.sent, found.received[1], found.interrupts, found.targets) == (30, 30, 30, None)
    (flush,) = found.flushes
    assert flush.task == Task(4242, "my prog, x]") and flush.ranged
    assert found.victims == {Task(4243, "spinner"): 10}


def test_hist_starts_afresh_when_full(still: Counter[int]) -> None:
    one = FakeTracefs(hist=HIST)
    source = sources.Hist(one)  # type: ignore
    source.start()
    one.files["hist"] = HIST.replace("Dropped: 0", "Dropped: 9", 1)
    assert source.collect(0.05, _wait).lost == 9
    # One histogram: victims are those of csd here.
    done = [re.sub(r".*:(\w+) if reason == 4$", r"\1", text) for text in one.log[-3:]]
    assert done == ["pause", "clear", "continue"]
    assert source.collect(0.05, _wait).sent == 123  # counted from 0 again


def test_hist_without_buckets_and_refused(still: Counter[int]) -> None:
    one = FakeTracefs(refused="buckets")
    sources.Hist(one).start()  # type: ignore
    assert any("pages,stacktrace" in text for text in one.log)
    with pytest.raises(UsageError, match="refused"):
        sources.Hist(FakeTracefs(refused="hist:")).start()  # type: ignore
    with pytest.raises(UsageError, match="CONFIG_HIST_TRIGGERS"):
        sources.Hist(FakeTracefs(lacks="hist"))  # type: ignore


def test_events_scale_a_sample(still: Counter[int], monkeypatch: pytest.MonkeyPatch) -> None:
    source = sources.Events(FakeTracefs(pipe=PIPE))  # type: ignore
    source.start()
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
    assert found.targets == {Task(99, "<...>"): pytest.approx(4 * (4 + 8) / 4)}


def test_no_shootdowns_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(text: str, label: str) -> dict[int, int]:
        raise ValueError

    monkeypatch.setattr(procfs, "interrupts", none)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UsageError, match="arm64"), ExitStack() as stack:
        sources.choose("auto", stack)


@pytest.mark.parametrize(
    ("uid", "words"), [(1000, "needs root (CAP_SYS_ADMIN): sudo ./quell top"), (0, "to root here")]
)
def test_without_permission(
    uid: int,
    words: str,
    still: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tracefs, "_mounted", lambda: Path("/none"))
    monkeypatch.setattr(tracefs, "_open", denied)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert cli.main(["top", "--once"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--interval", "0"], 2, "--interval is 0.1 to 3600"),
        (["--interval", "nan"], 2, "--interval is 0.1 to 3600"),
        (["--source", "magic"], 2, "there is no"),
        (["--source", "hist"], 2, "hist: this kernel lacks CONFIG_HIST_TRIGGERS"),
        (["--once", "--", "true"], 2, "--once is not for a command"),
        (["--json", "--folded"], 2, "exclude each other"),
        (["--pid", "999999999"], 2, "there is no process 999999999"),
        (["--", "nosuchcmd"], 127, "quell: nosuchcmd: command not found\n"),
        (["--", "/no/such/program"], 127, "quell: /no/such/program: command not found\n"),
        (["--", "/etc/passwd"], 126, "quell: /etc/passwd: not an executable file\n"),
    ],
)
def test_bad_usage(
    args: list[str], code: int, words: str, fake: FakeTracefs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", *args]) == code
    told = capsys.readouterr().err
    assert words in told and len(told.splitlines()) == 1


def test_once(fake: FakeTracefs, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["top", "--once", "--interval", "0.1"]
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "TLB shootdowns" in lines[1] and "; not hist: this kernel lacks CONFIG" in lines[-1]
    assert cli.main([*argv, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["schema"] == "quell-top/1"
    assert cli.main([*argv, "--folded"]) == 0
    told = capsys.readouterr()
    assert re.search(r"^dt;sys_madvise;do_madvise;\S+ \d+$", told.out, re.M) and "shootdowns" in told.err


def test_pid(fake: FakeTracefs, capsys: pytest.CaptureFixture[str]) -> None:
    own = os.getpid()
    fake.files["pipe"] = PIPE.replace("-10472 ", f"-{own} ")
    assert cli.main(["top", "--once", "--json", "--interval", "0.1", "--pid", str(own)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pid"] == own and [row["pid"] for row in found["processes"]] == [own]
    assert found["causes"][0]["cause"] == "madvise-other" and found["receivers"]["processes"] is None


def test_command(fake: FakeTracefs, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--json", "--", "sh", "-c", "echo out; exit 7"]) == 7
    told = capfd.readouterr()
    assert json.loads(told.out)["shootdowns"] > 0 and "out" in told.err
    assert cli.main(["top", "--", "sh", "-c", "echo out; kill -9 $$"]) == 137
    told = capfd.readouterr()
    assert told.out == "out\n" and "source: events" in told.err


def test_stop() -> None:
    stop = top.Stop()
    mine, theirs = os.pipe()
    stop.keys = mine
    os.write(theirs, b"x")
    assert not stop.wait(0.05)
    os.write(theirs, b"q")
    assert stop.wait(5)
    with pytest.raises(KeyboardInterrupt):
        stop.interrupt(signal.SIGINT, None)
    stop.close()
    stop = top.Stop()
    stop.keys = mine
    os.close(theirs)  # the terminal is gone
    assert not stop.wait(0.05)
    assert stop.keys is None
    stop.close()
    os.close(mine)


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_no_color_is_not_bold(
    no_color: str,
    bold: bool,
    fake: FakeTracefs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
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
    argv = [sys.executable, "-I", "-S", "-B", "-c", script, str(LAB)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    files = [line for line in done.stdout.splitlines() if line.endswith(".py")]
    assert any(file.endswith("top/tracefs.py") for file in files)
    for file in files:
        ast.parse(Path(file).read_text(), feature_version=(3, 9))


# --- with the kernel's tracefs


def _state() -> dict[str, str]:
    """All that another user of tracefs would notice."""
    names = ["tracing_on", "current_tracer", "trace_clock", "trace_options", "set_event", "set_event_pid"]
    names += ["buffer_size_kb", "events/enable", "events/csd/csd_function_entry/enable"]
    names += [f"events/tlb/tlb_flush/{name}" for name in ("enable", "filter", "trigger")]
    with tracefs.session() as one:
        found = {name: (one.root / name).read_text() for name in names if one.has(name)}
        found["instances"] = " ".join(sorted(path.name for path in one.instances.glob("quell-*")))
    return found


def _instances(pid: int) -> list[Path]:
    with ExitStack() as stack:
        root = tracefs._mounted()
        if root is None:
            fd = tracefs._private_mount()
            stack.callback(os.close, fd)
            root = Path(f"/proc/self/fd/{fd}")
        return list((root / "instances").glob(f"quell-{pid}-*"))


def _gone(pid: int, seconds: float = 8) -> bool:
    until = time.monotonic() + seconds
    while _instances(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    """./quell top on its way."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "quell", "top", "--json", "--source", "events"],
        env={**os.environ, "PYTHONPATH": str(LAB)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # not as under nohup
    )
    try:
        until = time.monotonic() + 20
        while len(_instances(child.pid)) < 2:
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.3)  # into the first interval
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()
        _gone(child.pid)


@real
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -9)],
)
def test_leaves_tracefs_as_it_was(number: signal.Signals, code: int) -> None:
    before = _state()
    with running() as child:
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
        assert child.returncode == code
        assert _gone(child.pid)
        assert _state() == before
        assert b"Traceback" not in err
        if code == 0:
            assert all(json.loads(line)["source"]["name"] == "events" for line in out.splitlines())


@real
def test_killed_with_its_guard_is_swept_by_the_next() -> None:
    script = (
        "import os, signal\n"
        "from quell.top.tracefs import session\n"
        "with session() as one:\n"
        "    one.instance('left')\n"
        "    one.guard.kill()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(LAB)}
    child = subprocess.Popen([sys.executable, "-P", "-c", script], env=env)
    child.wait()
    assert _instances(child.pid)
    with tracefs.session() as one:
        mine = one.instance("mine")
        assert not _instances(child.pid)
        # An instance in use stays.
        assert tracefs.sweep(one.instances) == [] and mine.path.exists()
    assert not _instances(os.getpid())
