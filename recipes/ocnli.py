"""OCNLI: does the Chinese premise entail the hypothesis, contradict it, or neither? (Hu et al., 2020)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("clue/clue", "ocnli"),
    folder=Folder(files={"train": "train*.json*", "validation": "dev.json*", "test": "test.json*"}),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=("entailment", "neutral", "contradiction"),
    no_label="-",  # the annotators did not agree
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
)
