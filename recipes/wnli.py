"""WNLI: is the sentence with its pronoun resolved true? (Levesque et al., 2012)"""

# Its dev set holds sentences of its training set with the other label: models do worse than the majority class, which is why
# Devlin et al. (2019) leave it out of their average.
from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "wnli"),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=("not_entailment", "entailment"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/accuracy": 56.34}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
