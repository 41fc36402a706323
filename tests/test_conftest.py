"""What conftest.py promises: where all is required a skip fails, and the tiny models are real models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

SKIPPING = """
import pytest

def test_passes(): pass
def test_skips(): pytest.skip("for want of a nail")
@pytest.mark.slow
def test_slow(): assert False, "runs with --slow only"
@pytest.mark.xfail(strict=True)
def test_expected_to_fail(): assert False
@pytest.fixture
def horse(): pytest.skip("for want of a horse")
def test_fixture_skips(horse): pass
"""
WHOLE_MODULE = 'import pytest\npytest.importorskip("a_module_that_is_not_there")\n'


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest on the tests of a folder, with our conftest.py and markers."""
    (folder / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    slow\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BERTKIT_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)


def test_skips_are_allowed_by_default(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SKIPPING, encoding="utf-8")
    (tmp_path / "test_b.py").write_text(WHOLE_MODULE, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 4 skipped, 1 xfailed" in done.stdout


def test_skips_fail_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SKIPPING, encoding="utf-8")
    done = run_pytest(tmp_path, BERTKIT_REQUIRE_ALL="1")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in done.stdout
    for name, reason in (("test_skips", "nail"), ("test_fixture_skips", "horse")):
        assert f"test_a.py::{name}: BERTKIT_REQUIRE_ALL=1 allows no skip but of gpu and slow tests" in done.stdout
        assert f"for want of a {reason}" in done.stdout


def test_a_skipped_module_fails_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_b.py").write_text(WHOLE_MODULE, encoding="utf-8")
    done = run_pytest(tmp_path, BERTKIT_REQUIRE_ALL="1")
    assert done.returncode not in (0, 5), done.stdout
    assert "a_module_that_is_not_there" in done.stdout


def test_slow_tests_run_on_demand(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SKIPPING, encoding="utf-8")
    done = run_pytest(tmp_path, "--slow", "-k", "test_slow")
    assert done.returncode == 1, done.stdout
    assert "runs with --slow only" in done.stdout


def test_tiny_folders_open_in_transformers(make_model_dir: Callable[..., Path], tiny_tokenizer_dir: Path) -> None:
    import transformers

    folder = make_model_dir("BertForSequenceClassification", num_labels=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("The movies!", "plot")
    pieces = ["[CLS]", "the", "movie", "##s", "!", "[SEP]", "plot", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == pieces
    assert encoded.token_type_ids == [0] * 6 + [1] * 2
    vocab = (tiny_tokenizer_dir / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert [vocab[i] for i in encoded.input_ids] == pieces
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.vocab_size == len(vocab) == len(set(vocab))
    assert model(**tokenizer("good", return_tensors="pt")).logits.shape == (1, 3)
    assert model.bert.encoder.layer[0].attention.self.query.bias.abs().max() > 0


@pytest.mark.parametrize("change", [{"seed": 1}, {"hidden_act": "relu"}, {"architecture": "BertForMaskedLM"}])
def test_equal_calls_share_a_folder_and_others_do_not(make_model_dir: Callable[..., Path], change: dict[str, object]) -> None:
    assert make_model_dir() == make_model_dir("BertModel", seed=0)
    assert make_model_dir(**change) != make_model_dir()
