# SPDX-License-Identifier: GPL-2.0-only
"""Run Linux's own selftests on stock and on Quell: every single result must be the same.

They are built from the kernels' source. The VM runs one test at a time, each in its own
process group with its own time limit. A test that fails or is skipped on both kernels
says nothing about Quell and is only listed. If results differ, both kernels run the test again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from quell import build, disks, machine, prereq, proc, source, toolchain, ui
from quell.checks import Case, CheckResult, ktap, steps
from quell.errors import QuellError
from quell.frames import DATA_DIR
from quell.paths import Cache, atomic_dir

KERNELS = ("stock", "quell")
# Suffix of kernels that are KVM hosts themselves, for the tests of KVM.
_KVM_KERNEL = "-kvm"
# Raise it when images that an older lab built can no longer be used.
_FORMAT = 2
# Two nodes, for page migration; half a gigabyte may go to huge pages.
_NODE = 768 * machine.MIB
_SWAP_KB = 131072
_HUGE_PAGES = 128
# The kernel's timer check panics if the host stalls the guest's CPU.
_APPEND = (f"brd.rd_size={_SWAP_KB}", "no_timer_check")
# Tests per boot: a hang of the whole guest is noticed only when all of them are overdue.
_GROUP = 12
# Runs of a test that differs, the first included, and of one that still differs after these. A test
# that fails on stock in one of three runs too often passes three times on stock and fails twice on Quell.
_ROUNDS = 3
_MOST_ROUNDS = 9
_CLEAN = "the kernel's log is clean"
# Stock with the folio sizes that Quell chooses from, for each fault that they fit. The parameter
# leaves PMD-sized pages alone.
LARGE = "stock-large"
LARGE_APPEND = ("thp_anon=16K-64K:always;2M:inherit",)


@dataclass(frozen=True)
class Selftest:
    """One run of a program.

    ``command`` is for the shell, in the folder of the programs of ``suite``. ``limit`` is in
    seconds, ``huge`` the initial number of huge pages, ``cpus`` the guest's. ``before`` is shell that
    runs first. ``hopeless`` is the reason if the test is never run.
    """

    suite: str
    command: str
    limit: int = 90
    huge: int = 0
    cpus: int = 2
    before: str = ""
    hopeless: str = ""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return f"{self.suite}/{self.command}"

    @property
    def program(self) -> str:
        """Its executable file."""
        return self.command.split()[0]


_SHM = "echo 268435456 > /proc/sys/kernel/shmmax; echo 4194304 > /proc/sys/kernel/shmall"
_XFS = (
    "truncate -s 300M /dev/shm/xfs; mkfs.xfs -q /dev/shm/xfs; mkdir -p /mnt/xfs;"
    " mount $(losetup -f --show /dev/shm/xfs) /mnt/xfs"
)
_OVERCOMMIT = "echo 1 > /proc/sys/vm/overcommit_memory"
# The arguments are those of mm/run_vmtests.sh; smaller if a test would take minutes under
# emulation.
_MM = (
    Selftest("mm", "hugepage-mmap", huge=_HUGE_PAGES),
    Selftest("mm", "hugepage-shm", huge=_HUGE_PAGES, before=_SHM),
    Selftest("mm", "map_hugetlb", huge=_HUGE_PAGES),
    Selftest("mm", "hugepage-mremap", huge=_HUGE_PAGES),
    Selftest("mm", "hugepage-vmemmap", huge=_HUGE_PAGES),
    Selftest("mm", "hugetlb-madvise", huge=_HUGE_PAGES),
    Selftest("mm", "hugetlb_dio", huge=_HUGE_PAGES),
    Selftest("mm", "hugetlb_fault_after_madv", hopeless="10,000 rounds: minutes under emulation"),
    Selftest("mm", "hugetlb_madv_vs_map", huge=1),
    Selftest("mm", "map_fixed_noreplace"),
    Selftest("mm", "gup_test -u", huge=_HUGE_PAGES),
    Selftest("mm", "gup_test -a", huge=_HUGE_PAGES),
    Selftest("mm", "gup_test -ct -F 0x1 0 19 0x1000", huge=_HUGE_PAGES),
    Selftest("mm", "gup_longterm", huge=_HUGE_PAGES),
    Selftest("mm", "compaction_test", 180),
    Selftest("mm", "on-fault-limit"),
    Selftest("mm", "map_populate"),
    Selftest("mm", "mlock-random-test"),
    Selftest("mm", "mlock2-tests"),
    Selftest("mm", "mrelease_test"),
    Selftest("mm", "mremap_test", 120, before=_OVERCOMMIT),
    Selftest("mm", "thuge-gen", huge=_HUGE_PAGES),
    Selftest("mm", "charge_reserved_hugetlb.sh -cgroup-v2"),
    Selftest("mm", "hugetlb_reparenting_test.sh -cgroup-v2"),
    Selftest("mm", "virtual_address_range", 180, before=_OVERCOMMIT),
    Selftest("mm", "va_high_addr_switch.sh"),
    Selftest("mm", "test_vmalloc.sh smoke"),
    Selftest("mm", "mremap_dontunmap"),
    Selftest("mm", "test_hmm.sh smoke"),
    Selftest("mm", "madv_populate"),
    Selftest("mm", "memfd_secret"),
    Selftest("mm", "ksm_tests -H -s 20"),
    Selftest("mm", "ksm_tests -P -s 20"),
    Selftest("mm", "ksm_tests -M -p 10"),
    Selftest("mm", "ksm_tests -U"),
    Selftest("mm", "ksm_tests -Z -p 10 -z 0"),
    Selftest("mm", "ksm_tests -Z -p 10 -z 1"),
    Selftest("mm", "ksm_tests -N -m 1"),
    Selftest("mm", "ksm_tests -N -m 0"),
    Selftest("mm", "ksm_functional_tests"),
    Selftest("mm", "protection_keys_64", huge=_HUGE_PAGES),
    Selftest("mm", "pkey_sighandler_tests_64"),
    Selftest("mm", "soft-dirty"),
    Selftest("mm", "pagemap_ioctl", 120, huge=_HUGE_PAGES),
    Selftest("mm", "cow", 180, huge=_HUGE_PAGES),
    Selftest("mm", "khugepaged", 180),
    Selftest("mm", "khugepaged -s 2", 180),
    Selftest("mm", "transhuge-stress -d 20"),
    # It writes 36 MB, byte by byte.
    Selftest("mm", "split_huge_page_test /mnt/xfs", 450, before=_XFS),
    # Each of its six tests moves pages for 20 s, under two threads or more.
    Selftest("mm", "migration", 240, huge=_HUGE_PAGES, cpus=3),
    Selftest("mm", "mkdirty"),
    Selftest("mm", "mdwe_test"),
    Selftest("mm", "mseal_test"),
    Selftest("mm", "seal_elf"),
    Selftest("mm", "droppable"),
    Selftest("mm", "uffd-unit-tests", 180, huge=_HUGE_PAGES),
    # In the whole program, "events" sometimes ends it before its last test.
    Selftest("mm", "uffd-unit-tests -f poison", huge=_HUGE_PAGES),
    Selftest("mm", "uffd-stress anon 20 16", 120),
    Selftest("mm", "uffd-stress hugetlb 32 4", 120, huge=_HUGE_PAGES),
    Selftest("mm", "uffd-stress hugetlb-private 32 4", 120, huge=_HUGE_PAGES),
    Selftest("mm", "uffd-stress shmem 20 16", 120),
    Selftest("mm", "uffd-stress shmem-private 20 16", 120),
    Selftest("mm", "hugetlb-soft-offline", huge=_HUGE_PAGES),
    Selftest("mm", "hugetlb-read-hwpoison", huge=_HUGE_PAGES),
)
_PROC = (
    "fd-001-lookup", "fd-002-posix-eq", "fd-003-kthread", "proc-2-is-kthread", "proc-loadavg-001",
    "proc-empty-vm", "proc-pid-vm", "proc-self-map-files-001", "proc-self-map-files-002",
    "proc-self-isnt-kthread", "proc-self-syscall", "proc-self-wchan", "proc-subset-pid", "proc-tid0",
    "proc-uptime-001", "proc-uptime-002", "read", "self", "setns-dcache", "setns-sysvipc",
    "thread-self", "proc-multiple-procfs", "proc-fsconfig-hidepid",
)  # fmt: skip
# Tests of x86; those that need an Intel CPU skip without one.
_KVM_X86 = (
    "cr4_cpuid_sync_test", "dirty_log_page_splitting_test", "get_msr_index_features",
    "exit_on_emulation_failure_test", "fix_hypercall_test", "hwcr_msr_test", "hyperv_clock",
    "hyperv_cpuid", "hyperv_evmcs", "hyperv_extended_hypercalls", "hyperv_features", "hyperv_ipi",
    "hyperv_svm_test", "hyperv_tlb_flush", "kvm_clock_test", "kvm_pv_test", "monitor_mwait_test",
    "nested_exceptions_test", "platform_info_test", "pmu_counters_test", "pmu_event_filter_test",
    "private_mem_conversions_test", "private_mem_kvm_exits_test", "set_boot_cpu_id",
    "set_sregs_test", "smaller_maxphyaddr_emulation_test", "smm_test", "state_test",
    "vmx_preemption_timer_test", "svm_vmcall_test", "svm_int_ctl_test", "svm_nested_shutdown_test",
    "svm_nested_soft_inject_test", "tsc_scaling_sync", "sync_regs_test", "ucna_injection_test",
    "userspace_io_test", "userspace_msr_exit_test", "vmx_apic_access_test",
    "vmx_close_while_nested_test", "vmx_dirty_log_test", "vmx_exception_with_invalid_guest_state",
    "vmx_msrs_test", "vmx_invalid_nested_guest_state", "vmx_set_nested_state_test",
    "vmx_tsc_adjust_test", "vmx_nested_tsc_scaling_test", "apic_bus_clock_test", "xapic_ipi_test",
    "xapic_state_test", "xcr0_cpuid_test", "xss_msr_test", "debug_regs", "tsc_msrs_test",
    "vmx_pmu_caps_test", "xen_shinfo_test", "xen_vmcall_test", "sev_init2_tests",
    "sev_migrate_tests", "sev_smoke_test", "amx_test", "max_vcpuid_cap_test",
    "triple_fault_event_test", "recalc_apic_map_test",
)  # fmt: skip
_MINUTES = "minutes in a guest within an emulated guest"
# Less memory and fewer rounds than by default.
_KVM = (
    *(Selftest("kvm", f"x86_64/{name}") for name in _KVM_X86),
    Selftest("kvm", "x86_64/nx_huge_pages_test", hopeless="it is for nx_huge_pages_test.sh, which reboots"),
    Selftest("kvm", "access_tracking_perf_test", hopeless="the lab's kernels do not track idle pages"),
    Selftest("kvm", "coalesced_io_test"),
    Selftest("kvm", "demand_paging_test -b 32M", 120),
    Selftest("kvm", "demand_paging_test -b 32M -u MISSING", 120),
    Selftest("kvm", "dirty_log_test -i 3", 240),
    Selftest("kvm", "dirty_log_perf_test -i 2 -b 32M", 180),
    Selftest("kvm", "guest_memfd_test"),
    Selftest("kvm", "guest_print_test"),
    Selftest("kvm", "hardware_disable_test", hopeless=_MINUTES),
    Selftest("kvm", "kvm_create_max_vcpus"),
    Selftest("kvm", "kvm_page_table_test -b 32M", 120),
    Selftest("kvm", "max_guest_memory_test", hopeless="it wants more memory than the guest has"),
    Selftest("kvm", "memslot_modification_stress_test -i 5 -b 32M", 120),
    Selftest("kvm", "memslot_perf_test -l 1 -s 512", 180),
    Selftest("kvm", "rseq_test", hopeless=_MINUTES),
    Selftest("kvm", "set_memory_region_test", 180),
    Selftest("kvm", "steal_time"),
    Selftest("kvm", "kvm_binary_stats_test"),
    Selftest("kvm", "system_counter_offset_test"),
    Selftest("kvm", "pre_fault_memory_test"),
)
_CGROUP = ("test_core", "test_kill", "test_memcontrol", "test_zswap")
_NOT_MEMORY = "another controller than memory"
TESTS = (
    Selftest("mincore", "mincore_selftest", huge=_HUGE_PAGES),
    Selftest("memfd", "memfd_test"),
    Selftest("memfd", "memfd_test hugetlbfs", huge=_HUGE_PAGES),
    Selftest("mqueue", "mq_open_tests"),
    Selftest("mqueue", "mq_perf_tests", hopeless="it only measures: minutes under emulation"),
    *(Selftest("proc", name) for name in _PROC),
    *(Selftest("cgroup", name, 120) for name in _CGROUP),
    Selftest("cgroup", "test_kmem", hopeless="100,000 look-ups on the host's file system"),
    Selftest("cgroup", "test_hugetlb_memcg", huge=_HUGE_PAGES),
    *(
        Selftest("cgroup", name, hopeless=_NOT_MEMORY)
        for name in ("test_cpu", "test_cpuset", "test_freezer", "test_pids")
    ),
    *_MM,
    *_KVM,
)
# Programs that other tests start.
_HELPERS = {"write_to_hugetlbfs", "wait_inotify", "va_high_addr_switch", "hmm-tests"}
# Targets for make; none: the whole suite. The rest of memfd needs FUSE.
_SUITES: dict[str, tuple[str, ...]] = {
    "mm": (),
    "mincore": (),
    "memfd": ("memfd_test",),
    "mqueue": (),
    "proc": (),
    "cgroup": (),
    "kvm": (),
}
# Folders beside tools/testing that a suite's Makefile and sources use.
_BESIDE = ("build", "include", "arch", "lib")


# --- building -----------------------------------------------------------------


def _make(folder: Path, output: Path, src: Path, headers: Path, targets: Sequence[str]) -> list[str]:
    """make's command line for one suite."""
    return [
        *build.clean_env(), "make", "-C", str(folder), f"OUTPUT={output}", f"top_srcdir={src}",
        f"KHDR_INCLUDES=-isystem {headers}", "ARCH=x86_64", "LLVM=", "CROSS_COMPILE=",
        # The lab's kernels run no 32-bit programs. 6.12's khugepaged.c uses KSFT_SKIP without the
        # header that defines it.
        "CAN_BUILD_I386=0", "EXTRA_CFLAGS=-DKSFT_SKIP=4",
        *(str(output / target) for target in targets),
    ]  # fmt: skip


def _build(kernel_source: source.Source, cache: Cache) -> Path:
    """A disk image with all programs, one folder a suite; it is made once and kept."""
    prereq.ensure([*prereq.BUILD, *prereq.VM, *prereq.SELFTESTS])
    recipe = _make(Path(), Path(), Path(), Path(), ())
    facts = [_FORMAT, kernel_source.key, toolchain.version("gcc"), recipe, _SUITES]
    key = f"selftests-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"
    image = cache.data / key / "image.ext4"
    if image.exists():
        return image
    with cache.lock(key):
        if image.exists():
            return image
        log = cache.logs / "build-selftests.log"
        log.unlink(missing_ok=True)
        with (
            atomic_dir(cache.data / key) as temp,
            ui.progress("building selftests", len(_SUITES)) as bar,
        ):
            _compile(kernel_source, temp, log, bar.advance)
            disks.make_ext4(temp / "image.ext4", temp / "root")
            shutil.rmtree(temp / "work")
    return image


def _compile(
    kernel_source: source.Source, temp: Path, log: Path, advance: Callable[[], None]
) -> None:
    """Compile into ``temp``/root, in a copy of the sources: the suites' Makefiles write to them."""
    src, work = kernel_source.tree, temp / "work"
    copy = work / "src/tools/testing/selftests"
    shutil.copytree(src / "tools/testing/selftests", copy, symlinks=True)
    for name in _BESIDE:
        (work / "src/tools" / name).symlink_to(src / "tools" / name)
    (work / "src/mm").mkdir()
    shutil.copy(src / "mm/gup_test.h", work / "src/mm")
    headers = work / "headers"
    headers.mkdir()
    make = [*build.clean_env(), "make", "-s", "-C", str(src), f"O={headers}", "ARCH=x86", "headers"]
    _run_make(make, "the kernel's headers", log)
    for suite, targets in _SUITES.items():
        output = temp / "root" / suite
        output.mkdir(parents=True)
        _run_make(
            _make(copy / suite, output, src, headers / "usr/include", targets),
            f"the kernel's selftests in {suite}", log,
        )  # fmt: skip
        for script in (copy / suite).glob("*.sh"):
            shutil.copy(script, output)
        for left in output.rglob("*.[od]"):
            left.unlink()
        advance()


def _run_make(argv: Sequence[str], what: str, log: Path) -> None:
    made = proc.run(argv, log=log, check=False, timeout=1800)
    if made.returncode != 0:
        lines = build.error_lines(made.stdout)
        raise QuellError(
            f"building {what} failed", detail="\n".join(lines) or proc.tail(made.stdout), log=log
        )


# --- output of the guests -----------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of a test on a kernel.

    ``status`` is pass, skip, fail, timeout, crash (the guest's kernel died), hang (the test could
    not be killed) or signal N. ``results`` are the single results by name: ok, not ok, skip or
    xfail. ``text`` is the output.
    """

    status: str
    results: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def whole(self) -> bool:
        """True if the test finished, so that no result is missing."""
        return self.status in ("pass", "skip", "fail")

    def says_nothing(self) -> bool:
        """True if nothing was tested: the test or all its results were skipped."""
        return self.status == "skip" or (
            self.status == "pass" and set(self.results.values()) == {"skip"}
        )

    def summary(self) -> str:
        """For a table: ``fail 10/1/2`` are 10 results ok, 1 not, 2 skipped."""
        count = Counter(self.results.values())
        if not count:
            return self.status
        skipped = count["skip"] + count["xfail"]
        return f"{self.status} {count['ok']}/{count['not ok']}/{skipped}"


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KTAP = re.compile(r"^[#\s]*(not )?ok \d+\b *(?:- )?(.*?)(?: *# *(SKIP|TODO|XFAIL)\b(.*))?$", re.M)
# uffd-unit-tests and khugepaged have output formats of their own.
_UFFD = re.compile(r"^Testing (.+?)\.\.\. (done|skipped|failed)", re.M)
_UFFD_WORDS = {"done": "ok", "skipped": "skip", "failed": "not ok"}
_KHUGEPAGED = re.compile(r"^Run test: (.+)$", re.M)
_STEP = re.compile(r"\.{3,} (OK|Fail|Skip)\b")
_HEX = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{9,16}\b")


def _steps(text: str) -> str:
    """The worst of khugepaged's steps in a text."""
    words = set(_STEP.findall(text))
    return "not ok" if "Fail" in words else "ok" if "OK" in words else "skip"


def read_results(text: str) -> dict[str, str]:
    """The single results in a test's output, by name; repeated names are numbered.

    Addresses in names are left out, because they differ between runs.
    """
    text = _COLOUR.sub("", text).replace("\r", "")
    found = []
    for bad, name, directive, why in _KTAP.findall(text):
        word = "not ok" if bad else {"SKIP": "skip", "XFAIL": "xfail"}.get(directive, "ok")
        found.append((name or why.strip(" -") or "unnamed", word))
    found += [(name, _UFFD_WORDS[word]) for name, word in _UFFD.findall(text)]
    parts = _KHUGEPAGED.split(text)
    found += [(name, _steps(said)) for name, said in zip(parts[1::2], parts[2::2], strict=True)]
    results: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for name, word in found:
        name = _HEX.sub("ADDRESS", name.strip())
        seen[name] += 1
        results[name if seen[name] == 1 else f"{name} ({seen[name]})"] = word
    return results


def read_outcome(said: steps.Said) -> Outcome:
    """The outcome of a test that ran as a step."""
    results = read_results(said.text)
    if steps.complaints(said.log) and said.status != "hang":
        results[_CLEAN] = "not ok"
    return Outcome(said.status, results, f"{said.text}\n--- kernel log\n{said.log}")


# --- comparing ----------------------------------------------------------------

Round = tuple[Outcome, Outcome]
# One occurrence is enough.
_GRAVE = ("crash", "hang")


def _values(outcome: Outcome) -> dict[str, str]:
    return {"as a whole": outcome.status, **outcome.results}


def differences(stock: Outcome, quell: Outcome) -> dict[str, tuple[str, str]]:
    """Results that differ: by name, (stock's, Quell's).

    A result that one kernel lacks is a difference, unless a test was cut short.
    """
    left, right = _values(stock), _values(quell)
    whole = stock.whole() and quell.whole()
    return {
        name: (left.get(name, "missing"), right.get(name, "missing"))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name) and (whole or (name in left and name in right))
    }


def judge(rounds: Sequence[Round]) -> dict[str, tuple[str, str]]:
    """The differences that count after some rounds: by name, (stock's, Quell's), one per round.

    A difference in at most half of the rounds is chance. So is a result that stock has at
    least a third as often. A crash, hang or complaint on Quell alone counts at once.
    """
    found = [differences(*each) for each in rounds]
    result = {}
    for name in dict.fromkeys(name for each in found for name in each):
        stock, quell = (
            [_values(each[side]).get(name, "missing") for each in rounds] for side in (0, 1)
        )
        often = 2 * sum(name in each for each in found) > len(rounds)
        grave = name == _CLEAN or set(quell) & set(_GRAVE)
        usual = all(3 * stock.count(value) >= quell.count(value) for value in quell)
        if (often and not usual) or (grave and not set(quell) <= set(stock)):
            result[name] = (", ".join(stock), ", ".join(quell))
    return result


def as_large(rounds: Sequence[Round], large: Sequence[Outcome]) -> list[str]:
    """The differences that count, if stock with large folios has the same results as Quell."""
    found = [_values(outcome) for outcome in large if outcome.whole() and not outcome.says_nothing()]
    result = []
    for name in judge(rounds):
        stock, quell = ({_values(each[side]).get(name, "missing") for each in rounds} for side in (0, 1))
        new = quell - stock
        often = all(2 * sum(one.get(name) == value for one in found) > len(large) for value in new)
        if name != _CLEAN and not new & {*_GRAVE, "missing"} and often:
            result.append(name)
    return result


def _verdict(rounds: Sequence[Round], large: Sequence[Outcome]) -> str:
    """The last column of a test's row."""
    if different := judge(rounds):
        if len(as_large(rounds, large)) == len(different):
            return f"as stock with large folios, in {len(rounds)} runs"
        return f"DIFFERENT in {len(rounds)} runs" if len(rounds) > 1 else "DIFFERENT"
    if len(rounds) > 1:
        return f"same (flaky: run {len(rounds)} times)"
    stock = rounds[0][0]
    if stock.says_nothing():
        return "same: skipped"
    return "same" if stock.status == "pass" else f"same: {stock.status} on both"


def report(
    tests: Sequence[Selftest],
    rounds: Mapping[str, Sequence[Round]],
    large: Mapping[str, Sequence[Outcome]] | None = None,
) -> CheckResult:
    """The table of all tests, one row each, then the differences; each test is a case.

    ``large``: outcomes on stock with large folios. A difference that these explain makes the
    case skipped, not failed.
    """
    large = large or {}
    rows = [f"{'test':<42} {'stock':<22} {'Quell':<22} ok/not ok/skipped"]
    cases = []
    compared = equal = 0
    notes = []
    for test in tests:
        if test.hopeless:
            cases.append(Case(test.name, "skipped", test.hopeless))
            rows.append(f"{test.name:<42} {'not run':<22} {'not run':<22} {test.hopeless}")
            continue
        runs = rounds[test.name]
        stock, quell = runs[0]
        different = judge(runs)
        names = {*_values(stock), *_values(quell)}
        compared += len(names)
        equal += len(names - different.keys())
        found = [f"{name}: stock {left}; Quell {right}" for name, (left, right) in different.items()]
        explained = len(as_large(runs, large.get(test.name, ()))) == len(different)
        if different and explained:
            cases.append(Case(test.name, "skipped", "as stock with large folios: " + "; ".join(found)))
        elif different:
            cases.append(Case(test.name, "failed", "\n".join(found)))
        elif stock.says_nothing() or (stock.status != "pass" and "ok" not in stock.results.values()):
            cases.append(Case(test.name, "skipped", f"{stock.status} on stock too"))
        else:
            cases.append(Case(test.name))
        rows.append(
            f"{test.name:<42} {stock.summary():<22} {quell.summary():<22} {_verdict(runs, large.get(test.name, ()))}"
        )
        what = "as stock with large folios" if explained else "not ok"
        notes += [f"{what}: {test.name}: {text}" for text in found]
        if len(runs) > 1:
            notes += [
                f"rerun: {test.name}: {name}: stock {left}; Quell {right} in run {number}"
                for number, each in enumerate(runs, 1)
                for name, (left, right) in differences(*each).items()
                if name not in different
            ]
    rows += notes
    rows.append(f"{compared} results compared, {equal} the same on both kernels")
    return CheckResult.of(cases, "\n".join(rows))


# --- running ------------------------------------------------------------------

# One swap device for all tests of a guest.
_SETUP = "mkswap /dev/ram0 >/dev/null && swapon /dev/ram0"


def step_of(test: Selftest) -> steps.Step:
    """``test`` for the guest's shell."""
    # on-fault-limit needs an unprivileged user, with a limit for mlock().
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups "
    command = f"{nobody if test.program == 'on-fault-limit' else ''}./{test.command}"
    if test.suite != "proc":
        # Otherwise a killed program's buffered output is lost. Not for suite proc: its tests
        # check their own mappings.
        command = f"stdbuf -oL {command}"
    before = (
        "sync; echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory;"
        f" cd {DATA_DIR}/{test.suite}; echo 0 > /proc/sys/vm/overcommit_memory;"
        f" echo {test.huge} > /proc/sys/vm/nr_hugepages; {test.before}"
    )
    return steps.Step(test.name, command, test.limit, before)


@dataclass(frozen=True)
class _Bench:
    """Kernels and disk for a group of tests."""

    images: Mapping[str, Path]
    disk: Path
    cache: Cache

    def boot(self, kernel: str, tests: Sequence[Selftest]) -> dict[str, Outcome]:
        """Run ``tests`` in one guest until it ends."""
        more = LARGE_APPEND if kernel == LARGE else ()
        guest = machine.Machine(
            cpus=tests[0].cpus, memory=2 * _NODE, nodes=(_NODE,) * 2, append=_APPEND + more
        )
        image = self.images[f"{kernel}{_KVM_KERNEL}" if tests[0].suite == "kvm" else kernel]
        found = steps.boot(
            kernel, image, guest, [step_of(test) for test in tests], self.cache,
            setup=_SETUP, data=self.disk,
        )  # fmt: skip
        return {name: read_outcome(said) for name, said in found.items()}

    def run(self, kernel: str, tests: Sequence[Selftest], number: int = 1) -> dict[str, Outcome]:
        """Run all of ``tests``; continue in a new guest after one that killed its guest."""
        outcomes = steps.run_all(tests, partial(self.boot, kernel))
        for name, outcome in outcomes.items():
            steps.keep(
                self.cache.logs / "selftests" / kernel, f"{name}.{number}" if number > 1 else name,
                f"{outcome.status}\n{outcome.text}",
            )  # fmt: skip
        return outcomes


def _unknown(folder: Path) -> list[str]:
    """Built programs that are missing from TESTS."""
    known = {f"{test.suite}/{test.program}" for test in TESTS}
    found = {path: str(path.relative_to(folder)) for path in folder.rglob("*")}
    return sorted(
        name
        for path, name in found.items()
        if path.is_file() and path.suffix == "" and path.name not in _HELPERS and name not in known
    )


def groups(tests: Sequence[Selftest]) -> list[list[Selftest]]:
    """``tests`` in order, in groups that share a guest: up to ``_GROUP`` of the same kind."""

    def kind(test: Selftest) -> tuple[int, bool]:
        return test.cpus, test.suite == "kvm"

    result: list[list[Selftest]] = []
    for test in tests:
        if not result or len(result[-1]) == _GROUP or kind(result[-1][0]) != kind(test):
            result.append([])
        result[-1].append(test)
    return result


def compare_all(
    tests: Sequence[Selftest], run_on: Callable[[str, Sequence[Selftest], int], dict[str, Outcome]]
) -> tuple[dict[str, list[Round]], dict[str, list[Outcome]]]:
    """Run ``tests`` on both kernels in turn, and again if they differ.

    Returns the rounds of each test; for those that still differ also the outcomes on stock
    with large folios.
    """
    rounds: dict[str, list[Round]] = {}
    large: dict[str, list[Outcome]] = {}
    wanted = [test for test in tests if not test.hopeless]

    def one(group: Sequence[Selftest], number: int) -> None:
        stock, quell = (run_on(kernel, group, number) for kernel in KERNELS)
        for test in group:
            rounds.setdefault(test.name, []).append((stock[test.name], quell[test.name]))

    with ui.progress("selftests", len(wanted)) as bar:
        for group in groups(wanted):
            one(group, 1)
            bar.advance(len(group))
    again = [test for test in wanted if differences(*rounds[test.name][0])]
    if again:
        ui.note(f"not the same: {', '.join(test.name for test in again)}; running them again")
    for number in range(2, _MOST_ROUNDS + 1):
        if number == _ROUNDS + 1:
            again = [test for test in again if judge(rounds[test.name])]
        for group in groups(again):
            one(group, number)
    for number in range(1, _ROUNDS + 1):
        for group in groups([test for test in again if judge(rounds[test.name])]):
            for name, outcome in run_on(LARGE, group, number).items():
                large.setdefault(name, []).append(outcome)
    return rounds, large


def run(cache: Cache) -> CheckResult:
    """Build, run on both kernels, compare."""
    kernel_source = source.debian_source(cache)
    wanted = [*KERNELS, *(f"{name}{_KVM_KERNEL}" for name in KERNELS)]
    kernels = build.build_kernels(kernel_source, wanted, cache)
    disk = _build(kernel_source, cache)
    shutil.rmtree(cache.logs / "selftests", ignore_errors=True)
    prereq.ensure([item for item in prereq.FILE_SYSTEMS if item.need == "mkfs.xfs"])
    images = {name: kernel.image for name, kernel in kernels.items()}
    large = {LARGE: images["stock"], f"{LARGE}{_KVM_KERNEL}": images[f"stock{_KVM_KERNEL}"]}
    bench = _Bench({**images, **large}, disk, cache)
    result = report(TESTS, *compare_all(TESTS, bench.run))
    folder = cache.logs / "selftests"
    (folder / "summary.ktap").write_text(ktap(result.cases))
    unknown = [Case(name, "skipped", "not in the list") for name in _unknown(disk.parent / "root")]
    names = ", ".join(case.name for case in unknown)
    more = f"\nnot in the list, and not run: {names}" if unknown else ""
    return CheckResult.of(
        [*result.cases, *unknown], f"{result.details}{more}\noutput of the tests: {folder}"
    )
