"""Resume NER: names, titles, schools and more in Chinese curricula vitae, character by character (Zhang and Yang, 2018)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig

# --data: the folder of train.char.bmes, dev.char.bmes and test.char.bmes
recipe = TokenClassification(
    folder=Folder(files={"train": "train*.bmes*", "validation": "dev*.bmes*", "test": "test*.bmes*"}),
    training=TrainConfig(learning_rate=5e-5, num_epochs=5, batch_size=32, max_length=256),
)
