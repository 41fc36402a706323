"""The task families, and all that a recipe file needs: `from bertkit.tasks import TextClassification, TrainConfig, hub`."""

from bertkit.config import TrainConfig
from bertkit.metrics.classification import accuracy, f1, macro_f1, matthews_correlation, mean_squared_error, pearson, spearmanr
from bertkit.tasks.multiple_choice import MultipleChoice
from bertkit.tasks.question_answering.task import QuestionAnswering
from bertkit.tasks.sources import Embedded, Folder, Hub, embedded, hub
from bertkit.tasks.text_classification.task import TextClassification
from bertkit.tasks.token_classification.task import TokenClassification

FAMILIES = {family.family: family for family in (TextClassification, TokenClassification, QuestionAnswering, MultipleChoice)}

__all__ = [
    "FAMILIES",
    "Embedded",
    "Folder",
    "Hub",
    "MultipleChoice",
    "QuestionAnswering",
    "TextClassification",
    "TokenClassification",
    "TrainConfig",
    "accuracy",
    "embedded",
    "f1",
    "hub",
    "macro_f1",
    "matthews_correlation",
    "mean_squared_error",
    "pearson",
    "spearmanr",
]
