"""A sample of the malformed inputs of scripts/fuzz.py, and that the fuzzer sees what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import fuzz, fuzzed_files

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "models"
    folder.mkdir()
    fuzz.make_models(folder)
    return folder


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_traceback_and_no_hang(models: Path, first: int) -> None:
    assert fuzz.faults(range(first, first + 100), models) == []


def test_an_input_follows_from_its_number(tmp_path: Path) -> None:
    for name in fuzzed_files.FORMATS:
        assert fuzzed_files.changed(fuzzed_files.good("csv", 3), fuzz.random.Random(name)) == fuzzed_files.changed(
            fuzzed_files.good("csv", 3), fuzz.random.Random(name)
        )


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ValueError("broken"), "traceback: error: ValueError: broken"),
        (SystemExit(3), "traceback: SystemExit(3)"),
        (None, "hang"),
    ],
)
def test_the_fuzzer_sees_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, fault: str
) -> None:
    def broken() -> None:
        while error is None:
            pass
        raise error

    monkeypatch.setattr("bertkit.tasks.catalog.list_recipes", broken)
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    assert fuzz.fault_of(fuzz.Case(["recipes"], {}), tmp_path) == fault
