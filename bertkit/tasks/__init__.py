"""The task families, and everything a recipe file needs: `from bertkit.tasks import TextClassification, TrainConfig, hub`."""

from bertkit.config import TrainConfig
from bertkit.errors import DataError
from bertkit.metrics.classification import accuracy, f1, macro_f1, matthews_correlation, mean_squared_error, pearson, spearmanr
from bertkit.tasks.multiple_choice.task import MultipleChoice, MultipleChoiceTask
from bertkit.tasks.presentation import Prediction
from bertkit.tasks.question_answering.task import QuestionAnswering, QuestionAnsweringTask
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.sources import Embedded, Folder, Hub, embedded, hub
from bertkit.tasks.task import Task
from bertkit.tasks.text_classification.task import TextClassification, TextClassificationTask
from bertkit.tasks.token_classification.task import TokenClassification, TokenClassificationTask

FAMILIES: dict[str, type[Recipe]] = {
    family.family: family for family in (TextClassification, TokenClassification, QuestionAnswering, MultipleChoice)
}

__all__ = [
    "FAMILIES",
    "DataError",
    "Embedded",
    "Folder",
    "Hub",
    "MultipleChoice",
    "MultipleChoiceTask",
    "Prediction",
    "QuestionAnswering",
    "QuestionAnsweringTask",
    "Recipe",
    "Task",
    "TextClassification",
    "TextClassificationTask",
    "TokenClassification",
    "TokenClassificationTask",
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
