"""CODAH: which of four endings, written to mislead models, goes on from the prompt? (Chen et al., 2019)"""

from bertkit.tasks import MultipleChoice, TrainConfig, accuracy

# --train full_data.tsv --validation 1/5: the authors cross-validate over five folds, without a split of their own
recipe = MultipleChoice(
    columns=("category", "prompt", "ending0", "ending1", "ending2", "ending3", "label"),
    text="prompt",
    choices=("ending0", "ending1", "ending2", "ending3"),
    label="label",
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=16, max_length=96),
)
