"""ChnSentiCorp: is the Chinese review of a hotel, book or device positive or negative? (Tan and Zhang, 2008)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("lansinuote/ChnSentiCorp"),
    folder=Folder(rename={"text_a": "text"}),
    text="text",
    label="label",
    labels=("negative", "positive"),
    metrics=(accuracy,),
    eval_splits=("validation", "test"),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=256),
)
