"""bertkit pre-trains and fine-tunes BERT, and reads and writes Hugging Face model folders.

Public names are imported on first use, so that `import bertkit` is fast.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

# public name -> the module that defines it; none may equal a submodule's name
_MODULE_OF: dict[str, str] = {
    "BertConfig": "bertkit.model.config",
    "BertForMultipleChoice": "bertkit.model.heads",
    "BertForQuestionAnswering": "bertkit.model.heads",
    "BertForSequenceClassification": "bertkit.model.heads",
    "BertForTokenClassification": "bertkit.model.heads",
    "BertModel": "bertkit.model.bert",
    "Prediction": "bertkit.tasks.presentation",
    "Predictor": "bertkit.runs.inference.predictor",
    "TextClassification": "bertkit.tasks.text_classification.recipe",
    "Tokenizer": "bertkit.text.tokenizer",
    "TrainConfig": "bertkit.config",
    "UserError": "bertkit.errors",
    "load": "bertkit.runs.inference.loading",
    "load_recipe": "bertkit.tasks.catalog",
    "load_weights": "bertkit.model.directory",
    "read_config": "bertkit.model.directory",
    "save_model": "bertkit.model.directory",
}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
