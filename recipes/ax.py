"""AX: GLUE's diagnostic set, on which an MNLI model is evaluated (Wang et al., 2019)"""

# There is nothing to train on:  bertkit eval runs/mnli --recipe ax --data FOLDER
from bertkit.tasks import Folder, TextClassification, TrainConfig, hub, matthews_correlation

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "ax"),
    folder=Folder(
        files={"test": "diagnostic*.tsv*"},
        rename={
            "Premise": "premise",
            "Hypothesis": "hypothesis",
            "Label": "label",
            "sentence1": "premise",
            "sentence2": "hypothesis",
        },
    ),
    text="premise",
    text_pair="hypothesis",
    label="label",
    labels=("entailment", "neutral", "contradiction"),
    metrics=(matthews_correlation,),
    eval_splits=("test",),
    training=TrainConfig(max_length=128),
)
