"""ATIS: what does a passenger ask about flights, and which words fill its slots? (Hemphill et al., 1990; Goo et al., 2018)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig

# --data: the folder with train, valid and test, each of seq.in, seq.out and label; --intent learns the intent too
recipe = TokenClassification(
    folder=Folder(files={"train": "train", "validation": "valid", "test": "test"}),
    training=TrainConfig(learning_rate=5e-5, num_epochs=10, batch_size=32, max_length=64),
)
