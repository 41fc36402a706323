"""MNLI: does the premise entail the hypothesis, contradict it, or neither? (Williams et al., 2018)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "mnli"),
    folder=Folder(rename={"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"}),
    text="premise",
    text_pair="hypothesis",
    label="label",
    labels=("entailment", "neutral", "contradiction"),
    metrics=(accuracy,),
    eval_splits=("validation_matched", "validation_mismatched"),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={
        "bert-base-uncased": {"validation_matched/accuracy": 84.4},
        "bert-base-cased": {"validation_matched/accuracy": 83.91, "validation_mismatched/accuracy": 84.10},
    },
    reference_source="uncased: Devlin et al. (2019), table 5; cased: transformers' text-classification examples; dev sets",
)
