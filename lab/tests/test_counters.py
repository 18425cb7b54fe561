# SPDX-License-Identifier: GPL-2.0-only
"""Figures from a real guest's output (mapped-read, stock kernel, 256M, 2 CPUs), and the files of /proc."""

from pathlib import Path

import pytest

from conftest import fails
from quell import counters, procfs
from quell.frames import Frames, FramesError, parse_frames

DATA = Path(__file__).parent / "data"
RECORDED = (DATA / "mapped-read.frames").read_bytes()
INTERRUPTS = """\
            CPU0       CPU2
   0:         44          0   IO-APIC   2-edge      timer
 TLB:     115842     140157   TLB shootdowns
"""


def changed(**sections: bytes) -> Frames:
    """The recorded report with some sections replaced; "/" in their names is written as "__"."""
    new = {name.replace("__", "/"): content for name, content in sections.items()}
    return Frames({**parse_frames(RECORDED).sections, **new})


def test_recorded_guest() -> None:
    frames = parse_frames(RECORDED)
    assert "failure" not in frames.sections
    assert frames.status == ("exited", 0, "")
    said = "noise\nfigure ns_per_page 12.5 ns\nfigure+ rate 3 pages/s\nsame out 7: a b\n"
    sample = counters.sample(frames, said)
    assert sample.metrics.keys() == {m.name for m in counters.METRICS}
    assert sample.metrics == pytest.approx({
        "pages_scanned": 957456, "pages_reclaimed": 470570, "minor_faults": 46541, "major_faults": 427,
        "elapsed_s": 47.919686132, "user_s": 0.86562, "system_s": 58.4069,
        "peak_memory_kb": 228970496 // 1024, "shootdown_ipis": 5508 + 5281,
        "flush_requests": sample.extras["nr_tlb_remote_flush"],
    })  # fmt: skip
    assert sample.extras["kswapd_s"] > 0
    assert sample.figures["ns_per_page"] == counters.Figure(12.5, "ns", False)
    assert sample.figures["rate"].higher_is_better
    assert sample.same == {"out": "7: a b"}


def test_moves_between_tiers() -> None:
    frames = parse_frames(RECORDED)
    text = frames.sections["after/vmstat"].decode()
    assert "pgpromote" not in text and "pages_promoted" not in counters.sample(frames).extras
    for when, counts in ("before", (1, 2, 3, 90)), ("after", (10, 20, 30, 99)):
        names = ("pgpromote_success", "pgdemote_kswapd", "pgdemote_direct", "pgpromote_candidate")
        lines = "".join(f"{name} {count}\n" for name, count in zip(names, counts, strict=True))
        kept = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("pgdemote"))
        frames.sections[f"{when}/vmstat"] = (kept + lines).encode()
    moved = counters.sample(frames).extras
    assert (moved["pages_promoted"], moved["pages_demoted"]) == (9, 45)


def test_instructions_only_when_deterministic() -> None:
    frames = parse_frames(RECORDED)
    assert "guest_instructions" not in counters.sample(frames).metrics
    assert counters.sample(frames, deterministic=True).metrics["guest_instructions"] == 47919686132


def test_a_stream_that_ends_early_is_an_error() -> None:
    ends = [n + 1 for n in range(len(RECORDED)) if RECORDED.startswith(b"\n@", n)]
    for keep in (1, 14, 40, 300, *ends, len(RECORDED) - 9, len(RECORDED) - 1):
        fails(FramesError, "without a whole report", parse_frames, RECORDED[:keep])


@pytest.mark.parametrize("data", [
    b"", b"hello\n", b"quell-runner 2\n@end 0\n", b"quell-runner 1\n@a 1\nx\n@end 2\n",
    b"quell-runner 1\n@a 1\nx\n@end 1\nmore", b"quell-runner 1\n@a 3\nx\n@end 1\n",
])  # fmt: skip
def test_bad_streams(data: bytes) -> None:
    fails(FramesError, "without a whole report", parse_frames, data)


def test_missing_counters_are_errors_not_zero() -> None:
    frames = parse_frames(RECORDED)
    vmstat = frames.sections["after/vmstat"].replace(b"nr_tlb_remote_flush ", b"gone ")
    fails(FramesError, "CONFIG_DEBUG_TLBFLUSH", counters.sample, changed(after__vmstat=vmstat))
    interrupts = frames.sections["after/interrupts"].replace(b"TLB:", b"XXX:")
    fails(FramesError, "no line TLB", counters.sample, changed(after__interrupts=interrupts))
    result = frames.sections["result"].split(b"memory_peak")[0]
    fails(FramesError, "memory_peak", counters.sample, changed(result=result))


def test_new_counters_of_a_kernel_are_extras() -> None:
    frames = parse_frames(RECORDED)
    vmstat = frames.sections["after/vmstat"]
    extras = counters.sample(changed(after__vmstat=vmstat + b"luf_parked 41\ntlb_spared 1\n")).extras
    assert (extras["luf_parked"], extras["tlb_spared"]) == (41, 1)


def test_signal_becomes_an_exit_code() -> None:
    frames = parse_frames(RECORDED)
    result = frames.sections["result"].replace(b"exited 0", b"signalled 11")
    assert counters.sample(changed(result=result)).exit_code == 139


def test_figures_that_are_none() -> None:
    for value in ("fast", "nan", "inf", "-1e305"):
        fails(FramesError, "no number", counters.parse_figures, f"figure rate {value} pages\n")
    for name in ("elapsed_s", "kswapd_s", "luf_park"):
        with pytest.raises(FramesError, match=f"figure {name} has the name of one"):
            counters.parse_figures(f"figure+ {name} 3 s\n")


def test_interrupts() -> None:
    assert procfs.interrupts(INTERRUPTS, "TLB") == {0: 115842, 2: 140157}
    for text in "", "  CPU0\n 0: 1 timer\n", " CPU0\nIPI0: 2 Rescheduling\n", " CPU0 CPU1\nTLB: 1\n":
        fails(ValueError, None, procfs.interrupts, text, "TLB")


def test_vmstat() -> None:
    assert procfs.vmstat("nr_free_pages 1\nnr_tlb_remote_flush 4\n") == {"nr_free_pages": 1, "nr_tlb_remote_flush": 4}
    fails(ValueError, None, procfs.vmstat, "nr_free_pages 1\nnr_tlb_rem")


def test_ticks_of_a_thread_with_a_strange_name() -> None:
    line = "38 (k) s (d 0) S 2 0 0 0 -1 0 0 0 0 0 7 5 0 0 20 0 1 0\n"
    assert procfs.ticks(line * 2) == 24
    fails(ValueError, None, procfs.ticks, "38 (kswapd0) S 2\n")
