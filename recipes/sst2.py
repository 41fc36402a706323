"""SST-2: is the phrase from a film review positive or negative? (Socher et al., 2013)"""

from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "sst2"),
    text="sentence",
    label="label",
    labels=("negative", "positive"),
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-uncased": {"validation/accuracy": 92.7}},
    reference_source="Devlin et al. (2019), table 5, dev set",
)
