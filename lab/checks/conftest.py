# SPDX-License-Identifier: GPL-2.0-only
"""Options, fixtures and reports of all checks; see cases.py for tests with many results."""

import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from checks import benches, check_torture, ktap
from checks.cases import LINUX, Case, Results, text_of
from quell import build, prereq, source
from quell.errors import QuellError
from quell.paths import Cache

_RESULTS = pytest.StashKey[Results]()
# Errors that a test of a file has failed with.
_errors: list[tuple[Path, BaseException]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quell")
    group.addoption("--full", action="store_true", help="the long form of the checks")
    group.addoption("--build", metavar="NAME", action="append", default=[], help="only this configuration of builds")
    group.addoption("--seed", type=int, metavar="N", help="the first seed of fuzz (random without it)")
    group.addoption("--ktap", type=Path, metavar="FILE", help="write all results as KTAP")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("ktap"):
        config.pluginmanager.register(ktap.Writer(file))


def _part(path: Path) -> str:
    """The name of a part, and of its marker."""
    return path.stem.removeprefix("check_")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    parent.config.addinivalue_line("markers", f"{_part(module_path)}: a part of ./quell test")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(_part(item.path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked ``full`` without --full."""
    if config.getoption("full"):
        return
    gone = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)


# --- fixtures -------------------------------------------------------------------


@pytest.fixture(scope="session")
def cache() -> Iterator[Cache]:
    cache = Cache()
    with cache.in_use():
        yield cache


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the long form runs."""
    return bool(request.config.getoption("full"))


@pytest.fixture(scope="session")
def scratch(cache: Cache) -> Iterator[Path]:
    """A folder that guests see, too."""
    with cache.scratch("checks") as temp:
        yield temp


@pytest.fixture
def folder(cache: Cache) -> Iterator[Path]:
    """Such a folder, of one test."""
    with cache.scratch("check") as temp:
        yield temp


@pytest.fixture(scope="session")
def programs(scratch: Path) -> dict[str, Path]:
    """Quell's selftests by name, compiled."""
    return benches.compile_selftests(scratch)


@pytest.fixture(scope="session")
def disk(scratch: Path) -> Path:
    """An empty ext4."""
    return benches.empty_disk(scratch)


@pytest.fixture(scope="module", params=LINUX)
def origin(request: pytest.FixtureRequest, cache: Cache) -> source.Source:
    """Debian's source of a version of Linux."""
    return source.debian_source(cache, request.param)


@pytest.fixture(scope="module")
def debug_bench(origin: source.Source, cache: Cache, programs: dict[str, Path], disk: Path) -> check_torture.Bench:
    """The debug kernel."""
    prereq.ensure((*prereq.VM, *prereq.XFS))
    image = build.build_kernels(origin, ("debug",), cache)["debug"].image
    return check_torture.Bench(image, programs["luf_torture"], disk, cache)


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Results:
    """Reports results that are more than one; a test without any has failed."""
    item = request.node

    def report(case: Case) -> None:
        # Brackets and colons have a meaning in the address of a test.
        name = f"{item.name}::{case.name.replace('::', ': ')}".replace("[", "(").replace("]", ")")
        address = f"{item.nodeid.partition('::')[0]}::{name}"
        now = time.time()
        for when, outcome in (("call", case.status), ("teardown", "passed")):
            why = {"failed": case.why, "skipped": (str(item.path), 0, case.why)}.get(outcome)
            item.ihook.pytest_runtest_logreport(
                report=pytest.TestReport(
                    address, (*item.location[:2], name), {}, outcome, why, when,  # type: ignore[arg-type]
                    duration=case.seconds if when == "call" else 0, start=now, stop=now,
                )
            )  # fmt: skip

    item.stash[_RESULTS] = Results(report)
    return item.stash[_RESULTS]  # type: ignore[no-any-return]


# --- reports --------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Errors of the lab are sentences; one of a shared fixture is one failure."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, QuellError):
        report.longrepr = text_of(error)
        if (item.path, error) in _errors:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"as above: {error.message}")
        _errors.append((item.path, error))
    results = item.stash.get(_RESULTS, None)
    if report.when == "call" and report.passed and results and not results.cases:
        report.outcome, report.longrepr = "failed", "nothing was tested"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test; its own report is left out if it passed with results of its own."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    results = item.stash.get(_RESULTS, None)
    for report in reports:
        if not (results and results.cases and report.passed):
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
