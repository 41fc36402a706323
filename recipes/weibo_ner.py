"""Weibo NER: names and mentions in Chinese social media, character by character (Peng and Dredze, 2015)"""

import re
from dataclasses import replace

from bertkit.tasks import Folder, TokenClassification, TrainConfig


def prepare(rows, split):
    """Strip the digits that mark a character's place in its word, as in `son1`; predictions show the original tokens."""
    words = rows.columns["tokens"]
    stripped = [[re.sub("(?<=.)[0-9]+$", "", word) for word in sentence] for sentence in words]
    return replace(rows, columns={**rows.columns, "tokens": stripped, "given": words})


# --data: the folder of weiboNER_2nd_conll.train, .dev and .test
recipe = TokenClassification(
    folder=Folder(files={"train": "*conll.train*", "validation": "*conll.dev*", "test": "*conll.test*"}),
    prepare=prepare,
    training=TrainConfig(learning_rate=5e-5, num_epochs=5, batch_size=32, max_length=256),
)
