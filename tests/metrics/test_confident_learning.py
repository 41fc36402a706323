"""Confident learning: the same errors, in the same order, as cleanlab finds; and a case worked by hand."""

from __future__ import annotations

from itertools import pairwise

import cleanlab.count
import cleanlab.filter
import cleanlab.multilabel_classification.filter
import cleanlab.multilabel_classification.rank
import cleanlab.rank
import cleanlab.token_classification.filter
import cleanlab.token_classification.rank
import numpy as np
import pytest

from bertkit.metrics.confident_learning import ConfidentLearning, Judged, Verdicts


def noisy(rows: int, classes: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N,) given labels of which a share is wrong, (N, C) probabilities of a fair model, and (N,) which are wrong.

    The classes are of unequal size, and the model is surer of some than of others.
    """
    rng = np.random.default_rng(seed)
    true = rng.choice(classes, rows, p=(share := 1 / np.arange(1, classes + 1)) / share.sum())
    logits = rng.normal(size=(rows, classes))
    logits[np.arange(rows), true] += rng.uniform(0.5, 4, classes)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wrong = rng.random(rows) < noise
    given = np.where(wrong, (true + rng.integers(1, classes, rows)) % classes, true)
    return given, probabilities, wrong


@pytest.mark.parametrize(("rows", "classes", "noise"), [(400, 2, 0.1), (900, 3, 0.05), (2000, 9, 0.2), (60, 5, 0.5)])
@pytest.mark.parametrize("seed", range(5))
def test_classes_as_cleanlab_judges_them(rows: int, classes: int, noise: float, seed: int) -> None:
    given, probabilities, wrong = noisy(rows, classes, noise, seed)
    found = ConfidentLearning(given, probabilities)
    how = {"filter_by": "confident_learning", "n_jobs": 1}
    expected = cleanlab.filter.find_label_issues(given, probabilities, return_indices_ranked_by="normalized_margin", **how)
    assert 0 < len(expected) < rows
    assert np.flatnonzero(found.are_errors).tolist() == sorted(expected)
    names = tuple(map(str, range(classes)))
    judged = Judged.of(names, [[names[label]] for label in given], probabilities)
    ranked = Verdicts.of(judged, ConfidentLearning.of(judged)).ranked()
    assert ranked.rows[: len(expected)].tolist() == expected.tolist()
    assert sorted(ranked.rows.tolist()) == list(range(rows))
    margins = cleanlab.rank.get_label_quality_scores(given, probabilities, method="normalized_margin")
    np.testing.assert_allclose(found.scores, margins, atol=1e-12)
    np.testing.assert_allclose(found.thresholds, cleanlab.count.get_confident_thresholds(given, probabilities), atol=1e-12)
    joint = found.joint.copy()
    np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))  # as cleanlab does
    assert joint.tolist() == cleanlab.count.compute_confident_joint(given, probabilities, calibrate=False).tolist()
    calibrated = cleanlab.count.compute_confident_joint(given, probabilities)  # in whole rows
    assert found.expected_errors == pytest.approx(rows - np.trace(calibrated), abs=classes)
    assert (found.are_errors & wrong).sum() / found.are_errors.sum() > noise  # better than chance, by far


@pytest.mark.parametrize("seed", range(5))
def test_several_labels_as_cleanlab_judges_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(500, 4)) * 2 - np.array([0, 1, 2, 3])
    probabilities = 1 / (1 + np.exp(-logits))
    given = (rng.random((500, 4)) < probabilities) ^ (rng.random((500, 4)) < 0.05)
    names = [np.flatnonzero(row).tolist() for row in given]
    of_labels = [ConfidentLearning(given[:, k] * 1, np.stack([1 - p, p], axis=1)) for k, p in enumerate(probabilities.T)]
    expected = cleanlab.multilabel_classification.filter.find_multilabel_issues_per_class(
        names, probabilities, filter_by="confident_learning", n_jobs=1
    )
    assert np.stack([each.are_errors for each in of_labels], axis=1).tolist() == expected.tolist()
    scores = cleanlab.multilabel_classification.rank.get_label_quality_scores_per_class(
        names, probabilities, method="normalized_margin"
    )
    np.testing.assert_allclose(np.stack([each.scores for each in of_labels], axis=1), scores, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_tags_as_cleanlab_judges_them(seed: int) -> None:
    given, probabilities, _ = noisy(1500, 5, 0.05, seed)
    bounds = np.unique(np.r_[0, np.random.default_rng(seed).integers(1, 1500, 200), 1500])
    sentences = [*pairwise(bounds)]
    tags, matrices = ([values[a:b] for a, b in sentences] for values in (given, probabilities))
    expected = cleanlab.token_classification.filter.find_label_issues(
        [row.tolist() for row in tags],
        matrices,
        filter_by="confident_learning",
        return_indices_ranked_by="normalized_margin",
        n_jobs=1,
    )
    parts = [  # a model for each sentence that names the labels in an order of its own
        Judged(
            tuple("abcde"[at] for at in order),
            np.full(len(row), number),
            np.arange(len(row)),
            ["abcde"[tag] for tag in row],
            matrix[:, order],
        )
        for number, (row, matrix) in enumerate(zip(tags, matrices))
        for order in [np.random.default_rng(number).permutation(5)]
    ]
    judged = Judged.join(parts)
    found = ConfidentLearning.of(judged)
    ranked = Verdicts.of(judged, found).ranked()
    assert [*zip(ranked.rows, ranked.places)][: found.are_errors.sum()] == expected
    sentences_in_order = [*dict.fromkeys(row for row, _ in expected)]
    assert ranked.worst().rows[: len(sentences_in_order)].tolist() == sentences_in_order
    assert sorted(ranked.worst().rows.tolist()) == list(range(len(tags)))
    worst, _ = cleanlab.token_classification.rank.get_label_quality_scores(
        [row.tolist() for row in tags], matrices, token_score_method="normalized_margin"
    )
    np.testing.assert_allclose([found.scores[judged.rows == row].min() for row in range(len(tags))], worst, atol=1e-12)


def test_a_case_worked_by_hand() -> None:
    # mean probability of the given label: of 0 (0.9 + 0.8 + 0.1) / 3 = 0.6, of 1 (0.7 + 0.3) / 2 = 0.5
    given = np.array([0, 0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.7, 0.3]])
    found = ConfidentLearning(given, probabilities)
    assert found.thresholds == pytest.approx([0.6, 0.5])
    assert found.joint.tolist() == [[2, 1], [1, 1]]
    assert found.suggested.tolist() == [0, 0, 1, 1, 0]
    assert found.are_errors.tolist() == [False, False, True, False, True]
    assert found.scores == pytest.approx([0.9, 0.8, 0.1, 0.7, 0.3])
    assert found.expected_errors == pytest.approx(3 * 1 / 3 + 2 * 1 / 2)
    assert found.hits == (3, 3)
    judged = Judged.of(("x", "y"), [[name] for name in "xxxyy"], probabilities)
    ranked = Verdicts.of(judged, ConfidentLearning.of(judged)).ranked()
    assert ranked.rows.tolist() == [2, 4, 3, 1, 0]
    assert ranked.given.tolist() == ["x", "y", "y", "x", "x"]
    assert ranked.suggested.tolist() == ["y", "x", "y", "x", "x"]
    assert ranked.of_given.tolist() == [0.1, 0.3, 0.7, 0.8, 0.9]
    assert ranked.of_suggested.tolist() == [0.9, 0.7, 0.7, 0.8, 0.9]


def test_a_confident_label_that_is_less_probable_than_the_given_one_is_no_error() -> None:
    given = np.array([0, 0, 0, 1, 1])
    probabilities = np.array([[1.0, 0.0], [0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.6, 0.4]])  # thresholds 0.83 and 0.3
    found = ConfidentLearning(given, probabilities)
    assert found.suggested[2] == 1
    assert not found.are_errors[2]


def test_errors_come_before_lower_scores_that_are_none() -> None:
    scores = np.array([0.0, 0.4, 0.9, 0.3])
    names = np.array([*"aaaa"], dtype=object)
    verdicts = Verdicts(np.array([7, 8, 8, 7]), np.arange(4), names, names, np.array([0, 1, 0, 1]) > 0, scores, scores, scores)
    assert verdicts.ranked().places.tolist() == [3, 1, 0, 2]
    assert verdicts.ranked().worst().places.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("given", "probabilities", "errors"),
    [
        ([0, 0, 0], [[1.0], [1.0], [1.0]], 0),  # one class alone
        ([0, 0, 1], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], 1),  # no row is confident of class 1, and none is uncertain
        ([0, 1, 0, 1], [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], 1),
        ([0, 0, 1, 1], [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], 0),  # a model that knows nothing
        ([0, 0, 2], [[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.8, 0.2, 0.0]], 1),  # class 1 is never given
    ],
)
def test_ends_of_the_scale(given: list[int], probabilities: list[list[float]], errors: int) -> None:
    found = ConfidentLearning(np.array(given), np.array(probabilities))
    assert found.are_errors.sum() == errors
    assert ((found.scores >= 0) & (found.scores <= 1)).all()
    assert 0 <= found.expected_errors <= len(given)
    if len(probabilities[0]) > 1:
        expected = cleanlab.filter.find_label_issues(
            np.array(given), np.array(probabilities), filter_by="confident_learning", n_jobs=1
        )
        assert found.are_errors.tolist() == expected.tolist()


def test_a_label_that_a_model_does_not_know_has_the_probability_0() -> None:
    parts = [
        Judged(("a", "b"), np.array([0]), np.array([0]), ["c"], np.array([[0.25, 0.75]])),
        Judged(("b", "c"), np.array([1]), np.array([0]), ["c"], np.array([[0.5, 0.5]])),
    ]
    judged = Judged.join(parts)
    assert judged.names == ("a", "b", "c")
    assert judged.probabilities.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]]
    assert judged.rows.tolist() == [0, 1]
