"""SWAG: which of four endings goes on from the sentence? (Zellers et al., 2018)"""

from bertkit.tasks import MultipleChoice, TrainConfig, accuracy, hub

# --data: the folder of the official train.csv, val.csv and test.csv
recipe = MultipleChoice(
    dataset=hub("allenai/swag", "regular"),
    text="sent1",
    question="sent2",
    choices=("ending0", "ending1", "ending2", "ending3"),
    label="label",
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=16, max_length=128),
    reference={"bert-base-uncased": {"validation/accuracy": 81.6}},
    reference_source="Devlin et al. (2019), table 4, dev set",
)
