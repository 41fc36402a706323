"""MRPC: do the two sentences say the same? (Dolan and Brockett, 2005)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, f1, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "mrpc"),
    folder=Folder(rename={"Quality": "label", "#1 String": "sentence1", "#2 String": "sentence2"}),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=("not_equivalent", "equivalent"),
    metrics=(accuracy, f1),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-uncased": {"validation/accuracy": 86.7}},
    reference_source="Devlin et al. (2019), table 5, dev set",
)
