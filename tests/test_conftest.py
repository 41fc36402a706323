"""The promises of conftest.py: if all tests are required, a skip fails; and the tiny models are real models."""

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


@pytest.mark.parametrize(
    ("options", "required", "code", "counts"),
    [
        ((), "0", 0, "1 passed, 4 skipped, 1 xfailed"),
        (("--continue-on-collection-errors",), "1", 1, "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors"),
        (("--slow", "-k", "slow"), "0", 1, "1 failed, 1 skipped, 4 deselected"),
    ],
)
def test_skips(options: tuple[str, ...], required: str, code: int, counts: str, tmp_path: Path) -> None:
    """pytest on two files, with our conftest.py and markers."""
    (tmp_path / "test_a.py").write_text(SKIPPING, encoding="utf-8")
    (tmp_path / "test_b.py").write_text(WHOLE_MODULE, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    all_draws\n    gpu\n    slow\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BERTKIT_", "PYTEST_"))}
    environment = clean | {"BERTKIT_REQUIRE_ALL": required, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert counts in done.stdout
    for name, reason in (("test_skips", "nail"), ("test_fixture_skips", "horse"), ("test_b.py", "a_module_that_is_not_there")):
        assert (f"{name}: BERTKIT_REQUIRE_ALL=1 allows no skip" in done.stdout) == (required == "1")
        assert (reason in done.stdout) == ("--slow" not in options or name == "test_b.py")
    assert ("runs with --slow only" in done.stdout) == ("--slow" in options)


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
