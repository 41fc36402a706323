"""Help desk, replies: which of four replies answers the ticket? Synthetic data that ships with bertkit"""

from bertkit.tasks import MultipleChoice, TrainConfig, accuracy, embedded

recipe = MultipleChoice(
    dataset=embedded("helpdesk/replies"),
    text="text",
    choices=("reply0", "reply1", "reply2", "reply3"),
    label="label",
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=1e-4, num_epochs=3, batch_size=16, max_length=128),
)
