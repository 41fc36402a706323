"""Help desk, mentions: which words of a ticket name a product, person, order, date or price? Synthetic, ships with bertkit"""

from bertkit.tasks import TokenClassification, TrainConfig, embedded

recipe = TokenClassification(
    dataset=embedded("helpdesk/mentions"),
    training=TrainConfig(learning_rate=2e-4, num_epochs=4, batch_size=16, max_length=96),
)
