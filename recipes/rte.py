"""RTE: does the first text entail the second? (Dagan et al., 2005, and its successors)"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "rte"),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=("entailment", "not_entailment"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/accuracy": 65.70}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
