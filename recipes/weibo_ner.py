"""Weibo NER: names and mentions in Chinese social media, character by character (Peng and Dredze, 2015)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig

# --data: the folder of weiboNER_2nd_conll.train, .dev and .test
recipe = TokenClassification(
    folder=Folder(files={"train": "*conll.train*", "validation": "*conll.dev*", "test": "*conll.test*"}),
    strip="(?<=.)[0-9]+$",  # each character carries its place in its word
    training=TrainConfig(learning_rate=5e-5, num_epochs=5, batch_size=32, max_length=256),
)
