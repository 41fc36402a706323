"""Help desk, pairs: does the reply answer the ticket? Synthetic data that ships with bertkit"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, embedded

recipe = TextClassification(
    dataset=embedded("helpdesk/pairs"),
    text="text",
    text_pair="text_pair",
    label="label",
    labels=("other", "fits"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=1e-4, num_epochs=4, batch_size=16, max_length=96),
)
