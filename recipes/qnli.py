"""QNLI: does the sentence hold the answer to the question? (Wang et al., 2019, of SQuAD)"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "qnli"),
    text="question",
    text_pair="sentence",
    label="label",
    labels=("entailment", "not_entailment"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-uncased": {"validation/accuracy": 88.4}, "bert-base-cased": {"validation/accuracy": 90.66}},
    reference_source="uncased: Devlin et al. (2019), table 5; cased: transformers' text-classification examples; dev sets",
)
