# SPDX-License-Identifier: GPL-2.0-only
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import fails, write_files
from guests import Patch
from quell import counters, debian, disks, engine, machine, workload
from quell.errors import QuellError, UsageError
from quell.frames import DATA_DIR, STAGE_DIR
from quell.paths import Cache, repo_root

MIB = machine.MIB
GOOD = """
name = "tiny"
version = 3
summary = "Says how much it has"
origin = "Written for this test"
stresses = "Nothing"
matters = ["elapsed_s"]
[guest]
memory = "64M"
cpus = 1
[program]
sources = ["tiny.c"]
[data]
filesystem = "ext4"
make = ["sh", "-c", "head -c {bytes} /dev/zero > {out}/data"]
size = "0.01x"
[run]
argv = ["{program}", "{data}/data", "{bytes}"]
timeout_s = 9
"""
PROGRAM = "int main(void) { return 0; }\n"
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "workloads/tiny", {"workload.toml": GOOD, "tiny.c": PROGRAM})


def load(folder: Path, old: str, new: str) -> workload.Workload:
    """The workload ``folder`` with another description."""
    assert old in GOOD
    (folder / "workload.toml").write_text(GOOD.replace(old, new))
    return workload.load(folder)


def test_load(folder: Path) -> None:
    tiny = workload.load(folder)
    assert (tiny.name, tiny.version, tiny.memory, tiny.cpus) == ("tiny", 3, 64 * MIB, 1)
    assert tiny.timeout_s == 9 and tiny.data is not None
    assert tiny.data.bytes_for(100 * MIB) == MIB
    sizes = [workload.Data((), size).bytes_for(256 * MIB) for size in ("4x", "64M")]
    assert sizes == [1024 * MIB, 64 * MIB] and workload.Data(()).bytes_for(256 * MIB) == 0


@pytest.mark.parametrize(("old", "new", "says"), [
    ('name = "tiny"', 'name = "huge"', "name should be"),
    ("version = 3", "version = true", "Expected `int`, got `bool` - at `$.version`"),
    ('summary = "Says how much it has"', "", "missing required field `summary`"),
    ('memory = "64M"', 'memory = "lots"', "not a size"),
    ('size = "0.01x"', 'size = "some"', "size should be"),
    ('filesystem = "ext4"', 'filesystem = "vfat"', "Invalid enum value 'vfat'"),
    ("timeout_s = 9", "timeout = 9", "there is no field timeout"),
    ('matters = ["elapsed_s"]', "matters = 1", "at `$.matters`"),
    ("version = 3", "version = 3\ndefault = 1", "at `$.default`"),
    ('memory = "64M"', 'nodes = ["some"]', "not a size"),
    ("cpus = 1", "cpus = 1\nwrites = {a = 1}", "at `$.writes"),
    ("cpus = 1", 'cpus = 1\nswap = "disk"', "Invalid enum value 'disk'"),
    ('sources = ["tiny.c"]', 'of = "huge"', "of should be the name of another workload"),
    ('sources = ["tiny.c"]', 'of = "tiny"', "of should be the name of another workload"),
    ("[guest]", "[tool]\nname = 'x'\n[guest]", "missing required field `package`"),
    ("[guest]", "[guest", "cannot be used"),
])  # fmt: skip
def test_bad_descriptions(folder: Path, old: str, new: str, says: str) -> None:
    fails(QuellError, re.escape(says), load, folder, old, new)


def test_unknown_workload_lists_the_known_ones(folder: Path) -> None:
    root = folder.parent
    with pytest.raises(UsageError, match="no workload 'huge'; the workloads are: tiny") as error:
        workload.select(["tiny,huge"], root)
    assert error.value.exit_code == 2
    for names in ([], ["tiny,tiny", "tiny"]):
        assert [w.name for w in workload.select(names, root)] == ["tiny"]


def test_the_workloads_here_are_well_formed() -> None:
    names = {m.name for m in (*counters.METRICS, *counters.EXTRAS)}
    for item in workload.select(workload.known()):
        assert names.union(item.figures).issuperset(item.matters), item.name
        machine.Machine(memory=item.memory, cpus=item.cpus, nodes=item.nodes)


def test_the_default_set() -> None:
    names = ["dontneed-touch", "fault", "kernel-build", "mapped-read", "zap"]
    assert [w.name for w in workload.select([])] == names


@needs_gcc
@pytest.mark.parametrize("name", workload.known())
def test_programs_compile_without_a_warning(name: str, tmp_path: Path) -> None:
    item = workload.load(repo_root() / "workloads" / name)
    if item.base or not item.sources:
        return
    sources = [item.folder / source for source in item.sources]
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", f"-I{item.folder.parent}", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", tmp_path / name, *sources], check=True)


def test_programs_of_packages(folder: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    text = GOOD.replace("[run]", '[data.programs]\nserved = "serverd"\n[run]')
    (folder / "workload.toml").write_text(text.replace('"{bytes}"', '"{packages}"'))
    tiny = workload.load(folder)
    assert tiny.data is not None and tiny.data.programs == {"served": "serverd"}
    # A workload that uses another one's data has the same prerequisites.
    for item in (tiny, workload.load(other(folder, "twin", "tiny"))):
        assert [(one.need, one.package) for one in item.prerequisites()] == [("served", "serverd")]
    monkeypatch.setattr(debian, "root", lambda programs, cache: tmp_path / "unpacked")
    monkeypatch.setattr(disks, "make", lambda filesystem, image, root: image.write_text(""))
    images = []
    for version in ("1", "2"):
        write_files(tmp_path / "unpacked", {"usr/bin/served": version})
        prepared = workload.prepare(tiny, tiny.memory, Cache(tmp_path / "cache"), {})
        assert prepared.argv[-1] == str(tmp_path / "unpacked")
        images.append(prepared.data)
    assert images[0] != images[1]


def other(folder: Path, name: str, program: str, rest: str = "") -> Path:
    """A workload beside the one in ``folder``, with another one's program."""
    text = GOOD[: GOOD.index("[data]")].replace('"tiny"', f'"{name}"')
    text = text.replace('sources = ["tiny.c"]', f'of = "{program}"').replace("[guest]", rest + "[guest]")
    text += '[run]\nargv = ["{program}", "-x"]\n'
    return write_files(folder.parent / name, {"workload.toml": text})


def test_a_program_of_another_workload(folder: Path) -> None:
    tiny = workload.load(folder)
    same = workload.load(other(folder, "same", "tiny", "default = false\n"))
    assert (same.base, same.sources, same.data) == (tiny, tiny.sources, tiny.data)
    assert [w.name for w in workload.select([], folder.parent)] == ["tiny"]
    assert [w.name for w in workload.select(["same"], folder.parent)] == ["same"]
    larger = other(folder, "larger", "tiny")
    with (larger / "workload.toml").open("a") as file:
        file.write('[data]\nsize = "2x"\n')
    assert tiny.data is not None
    assert workload.load(larger).data == workload.Data(tiny.data.make, "2x")
    with pytest.raises(QuellError, match="same/workload.toml: of should be .* its own"):
        workload.load(other(folder, "chain", "same"))


def test_nodes_and_writes(folder: Path) -> None:
    tiny = load(folder, 'memory = "64M"', 'nodes = ["64M", "192M"]\nwrites = {"/sys/x" = "1"}')
    assert tiny.memory == 256 * MIB and tiny.writes == {"/sys/x": "1"}
    assert tiny.nodes_for(256 * MIB) == tiny.nodes == (64 * MIB, 192 * MIB)
    assert tiny.nodes_for(513 * MIB) == (128 * MIB, 385 * MIB)
    prepared = workload.Prepared(tiny, ("x",), None)
    plan = engine.plan_for(prepared, 512 * MIB, 2)
    assert plan.nodes == (128 * MIB, 384 * MIB) and plan.job.writes == {"/sys/x": "1"}


@pytest.mark.parametrize(("own", "asked", "swap"), [
    ("", "", ""), ("", "zram", "zram"), ("ramdisk", "", "ramdisk"), ("ramdisk", "zswap", "zswap"), ("own", "", ""),
])  # fmt: skip
def test_swap(folder: Path, own: str, asked: str, swap: str) -> None:
    tiny = load(folder, "cpus = 1", f"cpus = 1\nswap = '{own}'" if own else "cpus = 1")
    prepared = workload.Prepared(tiny, ("x",), None)
    assert engine.plan_for(prepared, 64 * MIB, 1, swap=asked).job.swap == swap


@needs_gcc
def test_prepare_builds_once_and_fills_in(folder: Path, tmp_path: Path) -> None:
    tiny, cache = workload.load(folder), Cache(tmp_path / "cache")
    first = workload.prepare(tiny, tiny.memory, cache, {})
    assert first.argv == (f"{STAGE_DIR}/tiny", f"{DATA_DIR}/data", "671088")
    assert first.data is not None
    with first.data.open("rb") as image:
        image.seek(0x438)
        assert image.read(2) == b"\x53\xef"  # ext4's magic
    made = [path.stat().st_mtime_ns for path in (*first.programs, first.data)]
    assert workload.prepare(tiny, tiny.memory, cache, {}) == first
    assert [path.stat().st_mtime_ns for path in (*first.programs, first.data)] == made
    assert workload.prepare(tiny, 2 * tiny.memory, cache, {}).data != first.data
    same = workload.prepare(workload.load(other(folder, "same", "tiny")), tiny.memory, cache, {})
    assert (same.programs, same.data) == (first.programs, first.data)
    assert same.argv == (f"{STAGE_DIR}/tiny", "-x")
    tiny = load(folder, '"{data}/data"', '"{cpus}"')
    for values, cpus in ({}, "1"), ({"cpus": "8"}, "8"):
        assert workload.prepare(tiny, MIB, cache, values).argv[1] == cpus


@needs_gcc
def test_failures_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (folder / "tiny.c").write_text("int main(void) { return nothing; }\n")
    with pytest.raises(QuellError, match="program of workload tiny does not build") as error:
        workload.prepare(workload.load(folder), 64 * MIB, cache, {})
    assert "nothing" in error.value.detail
    (folder / "tiny.c").write_text(PROGRAM)
    tiny = load(folder, "head -c {bytes} /dev/zero > {out}/data", "echo disk on fire >&2; exit 4")
    with pytest.raises(QuellError, match="data of workload tiny cannot be made") as error:
        workload.prepare(tiny, 64 * MIB, cache, {})
    assert "disk on fire" in error.value.detail
    assert not list(cache.data.glob("*data*")) and not list(cache.data.glob(".tmp*"))
    tiny = load(folder, '"{bytes}"', '"{unheard_of}"')
    fails(QuellError, "unheard_of", workload.prepare, tiny, 64 * MIB, cache, {})
