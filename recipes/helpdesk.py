"""Help desk: which team should answer the ticket? Synthetic data that ships with bertkit"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, embedded, macro_f1

recipe = TextClassification(
    dataset=embedded("helpdesk/tickets"),
    text="text",
    label="team",
    metrics=(accuracy, macro_f1),
    training=TrainConfig(learning_rate=2e-4, num_epochs=4, batch_size=32, max_length=64),
)
