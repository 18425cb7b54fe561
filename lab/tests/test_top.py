# SPDX-License-Identifier: GPL-2.0-only
"""The command, its sources, and its clean-up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
INTERRUPTS = "      CPU0  CPU1\n TLB:   {}   {}   TLB shootdowns\n"
Fake = Callable[[str, str], Path]


def _traces() -> bool:
    try:
        with tracefs.Tracefs() as found, found.session() as session:
            session.instance("probe")
    except (UsageError, OSError):
        return False
    return sources._interrupts() is not None


CAN_TRACE = sys.platform == "linux" and os.geteuid() == 0 and _traces()
real = pytest.mark.skipif(not CAN_TRACE, reason="tracefs is not to be had here")


class FakeInstance:
    """An instance with a dictionary of files; it refuses text that contains ``refused``."""

    def __init__(self, files: dict[str, str], refused: str = "\0") -> None:
        self.files = files
        self.refused = refused
        self.log: list[tuple[str, str]] = []

    def write(self, name: str, text: str) -> None:
        self.log.append((name, text))

    append = write

    def accepts(self, name: str, text: str) -> bool:
        self.log.append((name, text))
        return self.refused not in text

    def read(self, name: str) -> str:
        return self.files.get(name, "")

    def has(self, name: str) -> bool:
        return True

    def take(self, limit: int) -> str:
        return self.files.get("trace_pipe", "")


class FakeTracefs:
    """A tracefs with all events except those whose name contains ``lacks``."""

    mounted = True

    def __init__(self, instance: FakeInstance, lacks: str = "\0") -> None:
        self.one = instance
        self.lacks = lacks

    def has(self, name: str) -> bool:
        return self.lacks not in name

    @contextmanager
    def session(self) -> Iterator[FakeTracefs]:
        yield self

    def instance(self, suffix: str) -> FakeInstance:
        return self.one


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Interrupt counts that only the test changes."""
    counts = Counter({0: 10, 1: 20})
    monkeypatch.setattr(sources, "_interrupts", lambda: Counter(counts))
    return counts


def _wait(seconds: float) -> bool:
    return False


def _ended(seconds: float) -> bool:
    return True


def test_hist_counts_what_is_new(still: Counter[int]) -> None:
    one = FakeInstance({f"{sources._FLUSH}/hist": HIST})
    source = sources.Hist(FakeTracefs(one, lacks="csd"))  # type: ignore
    source.start(1)
    assert source.collect(1, _wait).sent == 0  # all of it was there before
    one.files[f"{sources._FLUSH}/hist"] = HIST.replace(":        120", ":        150")
    still[1] += 30
    found = source.collect(1, _wait)
    assert (found.sent, found.received[1], found.targets) == (30, 30, None)
    (flush,) = found.flushes
    assert flush.task == Task(4242, "my prog, x]") and flush.ranged
    one.files[f"{sources._FLUSH}/hist"] = HIST.replace(":        118", ":        128")
    assert source.collect(1, _wait).victims == {Task(4243, "spinner"): 10}
    source.stop()


def test_hist_starts_afresh_when_full(still: Counter[int]) -> None:
    one = FakeInstance({f"{sources._FLUSH}/hist": HIST})
    source = sources.Hist(FakeTracefs(one))  # type: ignore
    source.start(1)
    one.files[f"{sources._FLUSH}/hist"] = HIST.replace("Dropped: 0", "Dropped: 9", 1)
    assert source.collect(1, _wait).lost == 9
    done = [text for _, text in one.log[-3:]]  # of one histogram: victims are csd's here
    assert [re.sub(r".*:(\w+) if reason == 4$", r"\1", text) for text in done] == ["pause", "clear", "continue"]
    assert source.collect(1, _wait).sent == 123  # counted from 0 again


def test_hist_does_without_buckets(still: Counter[int]) -> None:
    one = FakeInstance({}, refused="buckets")
    sources.Hist(FakeTracefs(one)).start(1)  # type: ignore
    assert any("pages,stacktrace" in text for _, text in one.log)


def test_hist_refused(still: Counter[int]) -> None:
    with pytest.raises(UsageError, match="refused"):
        sources.Hist(FakeTracefs(FakeInstance({}, refused="hist:"))).start(1)  # type: ignore
    with pytest.raises(UsageError, match="CONFIG_HIST_TRIGGERS"):
        sources.Hist(FakeTracefs(FakeInstance({}), lacks="hist"))  # type: ignore


def test_events_scale_by_the_interrupts_seen(
    still: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = FakeInstance({"trace_pipe": (DATA / "top-trace-pipe.txt").read_text()})
    source = sources.Events(FakeTracefs(one))  # type: ignore
    source.start(1)
    steps = iter([0, 100, 300])  # before, while and after it looks

    def interrupts() -> Counter[int]:
        still[0] += next(steps, 0)
        return Counter(still)

    monkeypatch.setattr(sources, "_interrupts", interrupts)
    found = source.collect(1, _ended)
    assert found.received[0] == 400 and found.seen == pytest.approx(0.25)
    # Five lines were read and eight lost; flushes are two lines each.
    assert found.sent == pytest.approx(sum(found.flushes.values()))
    assert found.sent == pytest.approx(4 * 4 * (8 + 8) / 8)


BPFTRACE = r"""
say() { printf '%s\n' "$1"; }
trap 'say "{\"type\": \"map\", \"data\": {\"@targets\": {\"5,6,x\": 4}}}"; exit' INT
say '{"type": "attached_probes", "data": {"probes": 3}}'
say '{"type": "map", "data": {"@sent": {"5,6,1,x,\n    exit_mmap+3\n": 2}}}'
while :; do sleep 0.05; done
"""


def test_bpf(still: Counter[int], fake_program: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_program("bpftrace", BPFTRACE)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    source = sources.Bpf(FakeTracefs(FakeInstance({})))  # type: ignore
    try:
        source.start(1)
        time.sleep(0.2)
        found = source.collect(0, _ended)
    finally:
        source.stop()
    (flush,) = found.flushes
    assert (found.sent, flush.task, flush.stack) == (2, Task(6, "x", 5), ("exit_mmap+3",))
    assert found.targets == {Task(6, "x", 5): 4}


def test_bpf_that_does_not_start(
    still: Counter[int], fake_program: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_program("bpftrace", "echo 'ERROR: no BTF for you' >&2; exit 1")
    monkeypatch.setattr(Path, "exists", lambda self: True)
    source = sources.Bpf(FakeTracefs(FakeInstance({})))  # type: ignore
    with pytest.raises(UsageError, match="no BTF for you"):
        source.start(1)
    source.stop()


def test_bpf_script() -> None:
    script = sources.bpf_script(0.5, targets=False, handlers=False)
    assert "interval:ms:500" in script and "csd" not in script and "reason == 1" in script
    script = sources.bpf_script(2, targets=True, handlers=True)
    assert "csd_queue_cpu" in script and "print(@targets)" in script and "MANY" not in script


def test_no_shootdowns_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(text: str, label: str) -> dict[int, int]:
        raise ValueError

    monkeypatch.setattr(procfs, "interrupts", none)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UsageError, match="arm64"), ExitStack() as stack:
        sources.choose("auto", 1, stack)


def test_without_permission(
    still: Counter[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(self: object, root: object = None) -> None:
        raise tracefs._permission(PermissionError(13, "Permission denied"), "reading tracefs")

    monkeypatch.setattr(tracefs.Tracefs, "__init__", denied)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["top", "--once", "--interval", "0.1"]) == 0
    told = capsys.readouterr()
    assert "root only (CAP_SYS_ADMIN): sudo ./quell top" in told.err
    assert "source: counters" in told.out
    assert cli.main(["top", "--once", "--source", "hist"]) == 2
    assert "CAP_SYS_ADMIN" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cli.main(["top", "--once", "--source", "events"]) == 2
    assert "denied to root here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--interval", "0"], "--interval is 0.1 to 3600"),
        (["--interval", "nan"], "--interval is 0.1 to 3600"),
        (["--interval", "x"], "is not a number of seconds"),
        (["--rows", "0"], "--rows is at least 1"),
        (["--source", "magic"], "invalid choice"),
        (["--once", "--", "true"], "--once is not for a command"),
        (["--", "/no/such/program"], "/no/such/program"),
    ],
)
def test_bad_usage(
    args: list[str], words: str, still: Counter[int], capsys: pytest.CaptureFixture[str]
) -> None:
    source = [] if "--source" in args else ["--source", "counters"]
    assert cli.main(["top", *source, *args]) == 2
    told = capsys.readouterr().err
    assert words in told and "Traceback" not in told


def test_counters_as_json(still: Counter[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--once", "--json", "--interval", "0.1", "--source", "counters"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "quell-top/1" and found["source"]["name"] == "counters"
    assert found["causes"] == [] and found["receivers"]["cpus"] == {"0": 0, "1": 0}
    assert found["verdict"]["sentence"]


def test_command(still: Counter[int], capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["top", "--json", "--source", "counters", "--", "sh", "-c", "echo out; exit 7"]
    assert cli.main(argv) == 7
    told = capfd.readouterr()
    assert json.loads(told.out)["interrupts"] == 0 and "out" in told.err
    argv = ["top", "--source", "counters", "--", "sh", "-c", "echo out; kill -9 $$"]
    assert cli.main(argv) == 137
    told = capfd.readouterr()
    assert told.out == "out\n" and "source: counters" in told.err


def test_stop() -> None:
    stop = top.Stop()
    try:
        assert not stop.wait(0.01)
        stop.deadline = time.monotonic() + 0.05
        assert stop.wait(5) and stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            stop.interrupt(signal.SIGINT, None)
    finally:
        stop.close()


@pytest.mark.parametrize(("typed", "ends"), [(b"q", True), (b"x", False), (b"", False)])
def test_keys(typed: bytes, ends: bool) -> None:
    stop = top.Stop()
    mine, theirs = os.pipe()
    try:
        stop.keys = mine
        os.write(theirs, typed) if typed else os.close(theirs)
        assert stop.wait(0.05) is ends
    finally:
        os.close(mine)
        stop.close()


# --- with the kernel's tracefs


def _state() -> dict[str, str]:
    """State of tracefs that others share: settings, enabled events, triggers, instances."""
    found = {}
    with tracefs.Tracefs() as one:
        for name in (
            "tracing_on", "current_tracer", "trace_clock", "trace_options", "set_event",
            "set_event_pid", "buffer_size_kb", "events/enable", "events/tlb/tlb_flush/enable",
            "events/tlb/tlb_flush/filter", "events/tlb/tlb_flush/trigger",
            "events/csd/csd_queue_cpu/filter", "events/csd/csd_function_entry/enable",
        ):  # fmt: skip
            path = one.root / name
            found[name] = path.read_text() if path.exists() else ""
        found["instances"] = " ".join(
            name for name in sorted(os.listdir(one.root / "instances")) if name.startswith("quell-")
        )
    return found


def _gone(name: str, seconds: float = 8) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with tracefs.Tracefs() as one:
            if not list((one.root / "instances").glob(f"{name}*")):
                return True
        time.sleep(0.05)
    return False


def _instances(pid: int) -> list[str]:
    with tracefs.Tracefs() as one:
        return [path.name for path in (one.root / "instances").glob(f"quell-{pid}-*")]


@contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    """A running ``./quell top``."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "quell", "top", "--json", "--source", "events"],
        env={**os.environ, "PYTHONPATH": str(repo_root() / "lab")},
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
        child.wait()
        _gone(f"quell-{child.pid}-")
        for stream in (child.stdout, child.stderr):
            assert stream is not None
            stream.close()


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
        assert _gone(f"quell-{child.pid}-")
        assert _state() == before
        assert b"Traceback" not in err
        if code == 0:
            assert json.loads(out)["source"]["name"] == "events"


@real
def test_killed_with_its_guard_is_swept_by_the_next() -> None:
    script = (
        "import os, signal, time\n"
        "from quell.top.tracefs import Tracefs\n"
        "with Tracefs() as one, one.session() as session:\n"
        "    session.instance('left')\n"
        "    session.guard.kill()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(repo_root() / "lab")}
    child = subprocess.Popen([sys.executable, "-P", "-c", script], env=env)
    child.wait()
    assert _instances(child.pid)
    with tracefs.Tracefs() as one, one.session() as session:
        mine = session.instance("mine")
        assert not _instances(child.pid)
        # An instance in use stays.
        assert tracefs.sweep(one.root / "instances") == [] and mine.path.exists()
    assert not mine.path.exists()


@real
def test_once_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["top", "--once", "--json", "--interval", "0.3", "--source", "events"]
    assert cli.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shootdowns"] is not None and found["receivers"]["processes"] is not None
    assert sum(row["shootdowns"] for row in found["causes"]) <= found["shootdowns"] + 5
