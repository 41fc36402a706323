"""MSRA NER: persons, organizations and places in Chinese news, character by character (Levow, 2006)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig

# --data: the folder of train.tsv, dev.tsv and test.tsv, each with characters and tags separated by spaces
recipe = TokenClassification(
    folder=Folder(rename={"text_a": "tokens", "label": "tags"}),
    training=TrainConfig(learning_rate=5e-5, num_epochs=3, batch_size=32, max_length=256),
)
