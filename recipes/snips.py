"""SNIPS: what is the voice assistant asked to do, and which words fill its slots? (Coucke et al., 2018; Goo et al., 2018)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig

# --data: the folder with train, valid and test, each of seq.in, seq.out and label; --intent learns the intent too
recipe = TokenClassification(
    folder=Folder(files={"train": "train", "validation": "valid", "test": "test"}),
    training=TrainConfig(learning_rate=5e-5, num_epochs=5, batch_size=32, max_length=64),
)
