"""QQP: do the two questions ask the same? (Iyer et al., 2017)"""

from bertkit.tasks import DataError, Folder, TextClassification, TrainConfig, accuracy, f1, hub


def prepare(rows, split):
    """Without the few rows that GLUE's train.tsv breaks over two lines (nyu-mll/GLUE-baselines, issue 5)."""
    broken = [all(value is None for value in row) for row in zip(*rows.columns.values())]
    if sum(broken) > 0.001 * len(rows):
        raise DataError(f"{sum(broken)} of {len(rows)} rows are broken; expected a few", where=rows.where(broken.index(True)))
    return rows.select([row for row, is_broken in enumerate(broken) if not is_broken])


recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "qqp"),
    folder=Folder(rename={"is_duplicate": "label"}),
    text="question1",
    text_pair="question2",
    label="label",
    labels=("not_duplicate", "duplicate"),
    prepare=prepare,
    metrics=(accuracy, f1),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/accuracy": 90.71, "validation/f1": 87.49}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
