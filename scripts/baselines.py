"""What a score on a text classification task is worth: two baselines that know nothing of language, on the same split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bertkit.tasks import Prediction, Recipe, Task
from bertkit.tasks.splits import read_splits

MAJORITY = "majority class"
BAG_OF_WORDS = "bag-of-words logistic regression"


def majority(labels: Sequence[str]) -> str:
    """The most frequent label; of equally frequent ones the first by name."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def bag_of_words(train_texts: Sequence[str], train_labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Labels for `texts` by logistic regression on word counts, scikit-learn's defaults, fitted on the training rows."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    fitted = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000)).fit(train_texts, train_labels)
    return [str(label) for label in fitted.predict(texts)]


def baseline_scores(recipe: Recipe, split: str) -> dict[str, dict[str, float | None]]:
    """Both baselines of a one-text recipe, fitted on its training split: {name: {"split/metric": value}}, by its metrics."""
    rows = read_splits(recipe.resolved(), [recipe.train_split, split]).rows
    task = Task.fit(recipe.resolved(), rows[recipe.train_split])
    train, held_out = (task.examples(rows[name], labelled=True) for name in (recipe.train_split, split))
    texts, labels = train.columns["text"], train.columns["label"]
    predictions = {
        MAJORITY: [majority(labels)] * len(held_out),
        BAG_OF_WORDS: bag_of_words(texts, labels, held_out.columns["text"]),
    }
    return {
        name: {
            f"{split}/{metric}": value
            for metric, value in task.score([Prediction(label) for label in predicted], task.truth(held_out)).items()
        }
        for name, predicted in predictions.items()
    }
