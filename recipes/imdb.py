"""IMDb: is the film review positive or negative? Most are longer than a sequence. (Maas et al., 2011)"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

# It has no dev set. A twentieth of the training rows chooses the best step, and the test set scores it.
recipe = TextClassification(
    dataset=hub("stanfordnlp/imdb"),
    text="text",
    label="label",
    labels=("neg", "pos"),
    metrics=(accuracy,),
    held_out="5%",
    eval_splits=("validation", "test"),
    truncate="head+tail",  # Sun et al. (2019), table 2: better than either alone
    training=TrainConfig(learning_rate=2e-5, num_epochs=4, batch_size=24, max_length=512),
)
