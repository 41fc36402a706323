"""Help desk, pages: where on the shop's page is the answer, if it is there? Synthetic data that ships with bertkit"""

from bertkit.tasks import QuestionAnswering, TrainConfig, embedded

recipe = QuestionAnswering(
    dataset=embedded("helpdesk/pages"),
    doc_stride=64,
    # A model of this size reads from few pages only where it takes many small steps, and none of them is blurred by dropout.
    training=TrainConfig(learning_rate=3e-4, num_epochs=2, batch_size=8, max_length=192, dropout=0),
)
