"""QQP: do the two questions ask the same? (Iyer et al., 2017)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, f1, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "qqp"),
    folder=Folder(rename={"is_duplicate": "label"}),
    text="question1",
    text_pair="question2",
    label="label",
    labels=("not_duplicate", "duplicate"),
    ragged=0.001,  # GLUE's train.tsv breaks a few questions over two lines (nyu-mll/GLUE-baselines, issue 5)
    empty_texts=True,  # some of Quora's pairs lack a question
    metrics=(accuracy, f1),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/accuracy": 90.71, "validation/f1": 87.49}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
