"""What holds for the whole run: a skip fails where everything must run, and a table says what ran."""

import multiprocessing
import os
import tempfile
from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """A temporary folder of this test's own, for the launcher too, with a name that needs care."""
    from ddp_src import _folder, warm_up

    warm_up()  # whose socket outlives this folder
    folder = tmp_path / "临时 folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(_folder, "_root", None)
    this = multiprocessing.current_process()
    monkeypatch.setattr(this, "_config", this._config.copy())
    return folder


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true a machine is set up for every test, so a skip there hides a missing install step."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with CI=true nothing but a gpu test may be skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if not item.get_closest_marker("gpu"):
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    _fail_if_skipped(report)
    return report


def _part(nodeid: str) -> str:
    """A notebook is a row of the table by itself; tests are one row per folder."""
    path = PurePosixPath(nodeid.split("::")[0])
    return str(path if path.suffix == ".ipynb" else path.parent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport | pytest.CollectReport):
                part = _part(report.nodeid)
                counts[part]["failed" if outcome == "error" else outcome] += 1
                seconds[part] += getattr(report, "duration", 0)
    columns = ("passed", "failed", "skipped")
    terminalreporter.section("what ran")
    terminalreporter.line(f"{'':44}" + "".join(f"{column:>9}" for column in columns) + f"{'seconds':>9}")
    for part in sorted(counts):
        cells = "".join(f"{counts[part][column]:9}" for column in columns)
        terminalreporter.line(f"{part:44}{cells}{seconds[part]:9.1f}")
