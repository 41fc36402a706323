"""Help desk, pages: where on the shop's page is the answer, if it is there? Synthetic data that ships with bertkit"""

from bertkit.tasks import QuestionAnswering, TrainConfig, embedded

recipe = QuestionAnswering(
    dataset=embedded("helpdesk/pages"),
    doc_stride=64,
    training=TrainConfig(learning_rate=3e-4, num_epochs=3, batch_size=16, max_length=192),
)
