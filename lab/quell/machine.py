# SPDX-License-Identifier: GPL-2.0-only
"""Boot a kernel image in QEMU with the host's root, and run one command in it.

The guest's init is ``guest/runner.c``: a boot takes some 2 s under emulation.

For tests and scripts::

    result = machine.run_script(image, "uname -r", memory="256M", append=["quell=off"], cache=Cache())
    result.exit_code, result.stdout, result.console
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import string
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quell import proc, procfs, toolchain, ui, watch
from quell.disks import Disk
from quell.errors import QuellError, UsageError
from quell.frames import Frames, FramesError, parse_frames
from quell.paths import Cache, write_atomic
from quell.qemu import find as find_qemu

MIB = 1 << 20
# Seconds from power-on to the guest's first output.
BOOT_TIMEOUT_S = {"kvm": 30.0, "tcg": 90.0}
# Added by each CPU when one thread emulates all of them: 16 take some 50 s on a busy host.
DETERMINISTIC_BOOT_S = 15.0
PROBE_TIMEOUT_S = 15.0
# Setting: the classic LRU lists, not MGLRU, which is on by default as in distributions.
CLASSIC_LRU = "/sys/kernel/mm/lru_gen/enabled=0"
ACCEL_HELP = "KVM or emulation (auto: KVM if a guest boots under it)"
SWAPS = ("ramdisk", "zram", "zswap")
# In about 200 boots under TCG, QEMU 10.0 was ended by signal 6 three times and a guest died of a
# removed breakpoint once (qemu.py); in 150 others one waited forever for a timer interrupt during
# boot. The guest is booted again.
_BOOT_TRIES = 3
# Longest kernel command line that x86 takes (COMMAND_LINE_SIZE), less its NUL.
_CMDLINE_MAX = 2047


@dataclass(frozen=True)
class Machine:
    """The hardware and the boot parameters of a guest.

    ``accel`` is "kvm" or "tcg"; ``memory`` is in bytes (whole MiB, 64 MiB at
    least); ``cpus`` 1 to 64. ``append`` are kernel parameters; they come last and
    override others. ``deterministic``: one thread emulates all CPUs and QEMU's
    instruction counter is the clock; needs "tcg". ``nodes`` are the sizes of NUMA
    nodes in bytes, ``memory`` in total. The first has all CPUs and is fast; the
    others have none and are slower memory tiers. Empty: one node. ``qemu`` are
    further arguments for QEMU.
    """

    accel: str = "tcg"
    memory: int = 512 * MIB
    cpus: int = 2
    append: tuple[str, ...] = ()
    deterministic: bool = False
    qemu: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.cpus <= 64:
            raise UsageError(f"a guest has 1 to 64 CPUs, not {self.cpus}")
        if self.memory < 64 * MIB:
            raise UsageError(f"a guest needs at least 64M of memory, not {format_memory(self.memory)}")


@dataclass(frozen=True)
class Job:
    """A command for the guest.

    ``env`` is its whole environment. ``data`` is an image by ``disks.make``
    (a file of the host, never written to). The guest mounts it at ``frames.DATA_DIR``,
    from a RAM disk if ``ram``. ``stage`` are programs of the host; the guest first copies
    them to ``frames.STAGE_DIR``, away from 9p. ``writes`` maps files of the guest (/sys,
    /proc) to values that are written before the command starts. ``disks`` are attached in
    this order, behind ``data``: the first is /dev/vda, or /dev/vdb with ``data``. ``swap``
    is one of SWAPS, half as large as the memory; empty: none.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH, "HOME": "/root"})
    cwd: str = "/"
    data: Path | None = None
    ram: bool = False
    stage: Sequence[Path] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    disks: Sequence[Disk] = ()
    swap: str = ""

    def encode(self, terminal: tuple[int, int] | None = None) -> bytes:
        """The job as the runner reads it; ``terminal`` is (rows, columns) of a terminal."""
        pairs = [("arg", word) for word in self.argv]
        pairs += [("env", f"{name}={value}") for name, value in self.env.items()]
        pairs.append(("cwd", self.cwd))
        letters = iter(string.ascii_lowercase)
        if self.data is not None:
            pairs.append(("data", f"vd{next(letters)}"))
            if self.ram:
                pairs.append(("ram", "1"))
        for letter, disk in zip(letters, self.disks):
            if disk.target:
                pairs.append(("disk", f"vd{letter}:{disk.filesystem}:{disk.target}"))
        if self.swap:
            pairs.append(("swap", self.swap))
        pairs += [("stage", str(path)) for path in self.stage]
        pairs += [("write", f"{path}={value}") for path, value in self.writes.items()]
        if terminal is not None:
            pairs += [("tty", "hvc0"), ("rows", str(terminal[0])), ("cols", str(terminal[1]))]
        return b"".join(os.fsencode(f"{key}\0{value}\0") for key, value in pairs)


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class GuestResult:
    """The outcome of a guest.

    ``exit_code`` is the command's, 128 + N when signal N ended it. ``console`` is
    the kernel's log, ``warnings`` its warnings, ``oops`` the lines of a crash (only
    with fail_on_oops=False). ``frames`` are the counters; None when the guest died
    before it sent them, and then ``exit_code`` is -1.
    """

    exit_code: int
    stdout: str
    stderr: str
    console: str
    frames: Frames | None = None
    warnings: tuple[str, ...] = ()
    oops: tuple[str, ...] = ()


def parse_memory(text: str) -> int:
    """Bytes of a size such as ``256M`` or ``1G`` (a bare number is MiB); UsageError otherwise."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGTkmgt]?)i?[Bb]?", text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a size; write for example 256M or 1G")
    unit = {"k": 1 << 10, "m": MIB, "": MIB, "g": 1 << 30, "t": 1 << 40}[match[2].lower()]
    return int(match[1]) * unit


def parse_cpus(text: str) -> int:
    """A number of guest CPUs; UsageError otherwise."""
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise UsageError(f"--cpus should be numbers such as 2 or 2,4, not '{text}'")
    return int(text)


def format_memory(count: int) -> str:
    """The reverse of ``parse_memory``: 268435456 is ``256M``."""
    for unit, size in (("G", 1 << 30), ("M", MIB), ("K", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count / MIB:.1f}M"


# --- the guest's programs ---------------------------------------------------


def compiled(name: str, sources: Sequence[Path], headers: Sequence[Path], cache: Cache) -> Path:
    """A static program, built by gcc into the cache once for its sources and ``headers``, found in their folders."""
    argv = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-pthread"]
    digest = hashlib.sha256(" ".join(argv).encode() + toolchain.version("gcc").encode())
    for path in (*sources, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    includes = [f"-I{folder}" for folder in dict.fromkeys(path.parent for path in (*sources, *headers))]

    def make(temp: Path) -> None:
        proc.run([*argv, *includes, "-o", temp / name, *sources], timeout=300)

    return cache.made(cache.data / f"{name}-{digest.hexdigest()[:16]}", make) / name


def guest_program(name: str, cache: Cache, folder: Path = Path(__file__).parent / "guest") -> Path:
    """The program of NAME.c and NAME_*.[ch] in ``folder``."""
    sources = [folder / f"{name}.c", *sorted(folder.glob(f"{name}_*.c"))]
    return compiled(name, sources, sorted(folder.glob(f"{name}_*.h")), cache)


# --- the command line of QEMU -----------------------------------------------

# TCG copies byte by byte where Linux uses ERMS or FSRM (rep movsb). That is slow, and another
# CPU can see half-written words, unlike on any processor.
_TCG_CPU = "max,-erms,-fsrm"
# The host's root over 9p. Its files do not change during a run; without a cache every read goes to
# the host.
_ROOT_DEVICES = (
    "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
    "-device", "virtio-9p-pci,fsdev=root,mount_tag=/dev/root",
)  # fmt: skip
_ROOT = ("rootfstype=9p", "rootflags=version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose", "ro")


def _numa(nodes: Sequence[int], cpus: int) -> list[str]:
    """QEMU's arguments for NUMA nodes, as in ``Machine``; an HMAT gives their speeds."""
    argv: list[str] = []
    for number, size in enumerate(nodes):
        argv += ["-object", f"memory-backend-ram,id=node{number},size={size}"]
        what = f"cpus=0-{cpus - 1}," if number == 0 else ""
        argv += ["-numa", f"node,nodeid={number},{what}memdev=node{number},initiator=0"]
    for number in range(len(nodes)):
        to = f"hmat-lb,initiator=0,target={number},hierarchy=memory"
        argv += ["-numa", f"{to},data-type=access-latency,latency={100 << number}"]
        argv += ["-numa", f"{to},data-type=access-bandwidth,bandwidth={16 >> number}G"]
    return argv


def _escape(path: Path) -> str:
    """A path inside a QEMU option, where a comma ends the value."""
    return str(path).replace(",", ",,")


def command_line(
    machine: Machine,
    image: Path,
    init: Path,
    job: Job,
    rundir: Path,
    *,
    live: bool = False,
    terminal: bool = False,
    qemu_program: str = "qemu-system-x86_64",
) -> list[str]:
    """QEMU's whole command line. The guest's init finds ``job`` in ``rundir``, and its channels end there."""
    memory = machine.memory
    # The size of each RAM disk.
    ram_kb = 0
    if job.data is not None and job.ram:
        ram_kb = -(-job.data.stat().st_size // 1024)
        # The RAM disk, and the kernel's overhead for that much more memory.
        memory += ram_kb * 1024 * 103 // 100
    memory_mib = -(-memory // MIB)
    # SeaBIOS of newer QEMUs waits 32 s for an empty CD-ROM drive, a default.
    qemu = [qemu_program, "-nodefaults", "-no-reboot", "-display", "none", *_ROOT_DEVICES]
    qemu += ["-m", f"{memory_mib}M", "-smp", str(machine.cpus), "-kernel", str(image)]
    qemu += ["-machine", "q35,hmat=on" if machine.nodes else "q35"]
    qemu += _numa(machine.nodes, machine.cpus)
    if machine.accel == "kvm":
        # Paravirtual flushing would change the counted interrupts.
        qemu += ["-accel", "kvm", "-cpu", "host,kvm-pv-tlb-flush=off"]
    elif machine.deterministic:
        qemu += ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", _TCG_CPU]
    else:
        qemu += ["-accel", "tcg,thread=multi", "-cpu", _TCG_CPU]

    qemu += ["-chardev", f"file,id=console,path={_escape(rundir / 'console.log')}"]
    qemu += ["-serial", "chardev:console", "-device", "virtio-serial-pci"]
    ports = ["frames"]
    if terminal:
        # Ctrl-A X ends the guest, Ctrl-A H lists all keys.
        qemu += ["-chardev", "stdio,id=terminal,signal=off,mux=on", "-mon", "chardev=terminal"]
        qemu += ["-device", "virtconsole,chardev=terminal"]
    else:
        ports += ["stdout", "stderr"]
    for name in ports:
        qemu += ["-chardev", f"file,id={name},path={_escape(rundir / name)}"]
    if live:
        qemu += ["-chardev", "stdio,id=stdin,signal=off"]
        ports.insert(0, "stdin")
    for name in ports:
        qemu += ["-device", f"virtserialport,name=quell.{name},chardev={name}"]
    drives = [] if job.data is None else [Disk(job.data)]
    for number, disk in enumerate((*drives, *job.disks)):
        qemu += ["-drive", f"if=none,id=disk{number},file={_escape(disk.image)},format={disk.format},snapshot=on"]
        qemu += ["-device", f"virtio-blk-pci,drive=disk{number}"]

    # Warnings are logged; an oops ends the guest at once.
    kernel = [*_ROOT, "console=ttyS0", "loglevel=5", "panic=-1", "oops=panic"]
    # On a busy host an emulated timer may tick too late for Linux' check at boot, which then panics (under
    # KVM Linux skips it), and a CPU may stop for more than the 20 s of a soft lockup or an RCU stall.
    kernel += ["no_timer_check", "watchdog_thresh=60", "rcupdate.rcu_cpu_stall_timeout=120"]
    if job.swap:
        # The second RAM disk; writes allocate its memory.
        kernel.append("brd.rd_nr=2")
        ram_kb = max(ram_kb, machine.memory // 2048)
    if ram_kb:
        kernel.append(f"brd.rd_size={ram_kb}")
    kernel += machine.append
    kernel += [f"init={init}", "--", str(rundir / "job")]
    line = " ".join(f'"{arg}"' if re.search(r"\s", arg) else arg for arg in kernel)
    if len(line) > _CMDLINE_MAX:
        raise UsageError(f"the kernel's command line would have {len(line)} characters; it takes {_CMDLINE_MAX}")
    return [*qemu, "-append", line, *machine.qemu]


# --- booting ----------------------------------------------------------------


def boot(
    machine: Machine,
    image: Path,
    job: Job,
    rundir: Path,
    *,
    cache: Cache,
    timeout: float,
    live: bool = False,
    terminal: bool = False,
    fail_on_oops: bool = True,
    boot_timeout: float | None = None,
    cut: Callable[[], bool] | None = None,
) -> GuestResult:
    """Boot ``image``, run ``job`` in it and wait for the end.

    ``rundir`` (an existing folder) receives console.log, frames, stdout,
    stderr and qemu.log. ``timeout`` is the command's, in seconds, ``boot_timeout``
    that from power-on to the guest's first output. ``live``
    also copies the command's output to ours and our stdin to it; with
    ``terminal`` the command gets our terminal instead. ``cut`` is polled: when it
    is true, QEMU is killed, and the known part is returned, with exit code -1.

    UsageError when the command cannot be started in the guest; GuestPanic, GuestTimeout,
    GuestError (see ``watch.supervise``); FramesError when the guest's report is truncated.
    """
    rundir = rundir.absolute()
    console_log, frames_file = rundir / "console.log", rundir / "frames"
    size = shutil.get_terminal_size()
    (rundir / "job").write_bytes(job.encode((size.lines, size.columns) if terminal else None))
    qemu = find_qemu(cache)
    argv = command_line(
        machine, image, guest_program("runner", cache), job, rundir,
        live=live, terminal=terminal, qemu_program=qemu.program,
    )  # fmt: skip
    (rundir / "qemu.cmd").write_text(shlex.join(argv) + "\n")
    if boot_timeout is None:
        boot_timeout = BOOT_TIMEOUT_S[machine.accel] + DETERMINISTIC_BOOT_S * machine.cpus * machine.deterministic
    for left in reversed(range(_BOOT_TRIES)):
        for name in ("console.log", "frames", "stdout", "stderr"):
            (rundir / name).write_bytes(b"")
        with ExitStack() as stack:
            poll = cut
            if terminal:
                stack.enter_context(_terminal_restored())
            elif live:
                poll = stack.enter_context(_relayed(rundir))
            try:
                console = watch.supervise(
                    argv, rundir, boot_timeout=boot_timeout, timeout=timeout,
                    emulated=machine.accel == "tcg", fail_on_oops=fail_on_oops, env=qemu.env,
                    terminal=terminal, stdin=None if live else subprocess.DEVNULL, poll=poll,
                )  # fmt: skip
                break
            except watch.GuestError as error:
                if not error.retry or not left:
                    raise
                ui.note(f"{error.message}; booting the guest again")
    result = GuestResult(
        exit_code=-1,
        stdout=procfs.read(rundir / "stdout"),
        stderr=procfs.read(rundir / "stderr"),
        console=console,
        warnings=watch.find_warnings(console),
        oops=watch.find_oops(console),
    )
    try:
        frames = parse_frames(frames_file.read_bytes())
    except FramesError as error:
        if result.oops or cut is not None:
            return result
        error.log = console_log
        error.detail = proc.tail(console.replace("\r", ""), 8)
        raise
    if "failure" in frames.sections:
        raise watch.GuestError(f"the guest could not be prepared: {frames.text('failure')}", log=console_log)
    status, number, message = frames.status
    if status not in ("exited", "signalled"):
        raise UsageError(f"the guest cannot start the command {job.argv[0]} in {job.cwd}: {message}")
    return replace(result, exit_code=number + 128 * (status == "signalled"), frames=frames)


@contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal: QEMU makes it raw, and may be killed."""
    saved = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)


@contextmanager
def _relayed(rundir: Path) -> Iterator[Callable[[], bool]]:
    """Yields a function that copies the command's new output to ours and returns False; called at the end, too."""
    with (rundir / "stdout").open("rb") as out, (rundir / "stderr").open("rb") as err:

        def copy() -> bool:
            # QEMU makes our stdin non-blocking; stdout may be the same socket (ssh), and a write would fail.
            os.set_blocking(0, True)
            for file, ours in ((out, sys.stdout), (err, sys.stderr)):
                shutil.copyfileobj(file, ours.buffer)
                ours.flush()
            return False

        try:
            yield copy
        finally:
            copy()


# --- the accelerator --------------------------------------------------------


@dataclass(frozen=True)
class Accelerator:
    """``name`` is "kvm" or "tcg", ``reason`` the reason of the choice."""

    name: str
    reason: str


def host_cpu() -> str:
    """The host's CPU model in /proc/cpuinfo."""
    for line in procfs.read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def host_memory() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def choose_accelerator(wanted: str, image: Path, cache: Cache, qemu: Sequence[str] = ()) -> Accelerator:
    """The accelerator for ``--accel``: "auto" boots ``image`` under KVM once per machine.

    ``qemu`` are arguments that the boot needs: an initramfs. The answer is kept in
    the cache for this CPU, QEMU, host kernel and /dev/kvm.
    """
    if wanted == "tcg":
        return Accelerator("tcg", "chosen with --accel tcg")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        if wanted == "kvm":
            raise UsageError("/dev/kvm cannot be opened; use --accel tcg")
        return Accelerator("tcg", "/dev/kvm is missing or cannot be opened")
    if wanted == "kvm":
        return Accelerator("kvm", "chosen with --accel kvm")
    device = os.stat("/dev/kvm")
    facts = [host_cpu(), find_qemu(cache).version, platform.release(), device.st_rdev, os.geteuid() == 0]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    kept = cache.folder("accel") / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        return Accelerator(**json.loads(kept.read_text()))
    guest, limit = Machine("kvm", 256 * MIB, qemu=tuple(qemu)), PROBE_TIMEOUT_S
    accel = Accelerator("kvm", "a guest boots under KVM")
    try:
        boot_once(guest, image, Job(["/bin/true"]), cache=cache, timeout=limit, boot_timeout=limit)
    except QuellError as error:
        why = error.message.rstrip(".")
        accel = Accelerator("tcg", f"/dev/kvm opens, but a guest does not run under it: {why}")
    write_atomic(kept, json.dumps(vars(accel)))
    return accel


# --- scripts ----------------------------------------------------------------


def boot_once(machine: Machine, image: Path, job: Job, *, cache: Cache, **options: Any) -> GuestResult:
    """``boot``, with its ``options``, in a folder of its own; the log of an error is kept in the cache's logs."""
    with cache.scratch("guest") as temp:
        try:
            return boot(machine, image, job, temp, cache=cache, **options)
        except QuellError as error:
            error.log = save_log(error.log, cache)
            raise


def run_script(
    kernel_image: Path,
    script: str | Sequence[str],
    *,
    memory: str | int = "512M",
    cpus: int = 2,
    append: Sequence[str] = (),
    timeout: float = 120,
    data: Path | None = None,
    stage: Sequence[Path] = (),
    disks: Sequence[Disk] = (),
    qemu: Sequence[str] = (),
    nodes: Sequence[int] = (),
    cache: Cache,
    **options: Any,
) -> GuestResult:
    """Boot ``kernel_image``, run ``script`` in it, return its exit code, output and console.

    ``script`` is a line for /bin/sh, or a command as a list of words.
    ``append`` are kernel parameters ("loglevel=7" shows KUnit's output on the console), and
    settings as a side has them (/FILE=VALUE). ``timeout`` in seconds is the script's; a boot has
    its own limit. ``data``, ``stage`` and ``disks`` are as in Job, ``nodes`` as in Machine (they
    make up the memory). The host's root is the guest's, writes are discarded. With
    ``fail_on_oops=False`` a crash is not an error: see ``GuestResult.oops``. Other ``options``
    and errors as in ``boot_once``.
    """
    machine = Machine(
        accel=choose_accelerator("auto", kernel_image, cache, qemu).name,
        memory=sum(nodes) or (memory if isinstance(memory, int) else parse_memory(memory)),
        cpus=cpus,
        append=tuple(word for word in append if not word.startswith("/")),
        qemu=tuple(qemu),
        nodes=tuple(nodes),
    )
    argv = ["/bin/sh", "-c", script] if isinstance(script, str) else list(script)
    writes = dict(word.split("=", 1) for word in append if word.startswith("/"))
    job = Job(argv, data=data, stage=stage, disks=disks, writes=writes)
    return boot_once(machine, kernel_image, job, cache=cache, timeout=timeout, **options)


def save_log(log: Path | None, cache: Cache) -> Path | None:
    """A copy of a guest's log in the cache's logs."""
    if log is None or not log.exists():
        return None
    kept = cache.logs / f"guest-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{log.name}"
    shutil.copyfile(log, kept)
    return kept
