"""Help desk, pairs: do two tickets want the same thing? Synthetic data that ships with bertkit"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, embedded

recipe = TextClassification(
    dataset=embedded("helpdesk/pairs"),
    text="text",
    text_pair="text_pair",
    label="label",
    labels=("different", "same"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-4, num_epochs=3, batch_size=32, max_length=96),
)
