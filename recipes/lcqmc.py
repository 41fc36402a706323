"""LCQMC: do the two Chinese questions mean the same? (Liu et al., 2018)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy

_NAMES = ("question1", "question2", "label")

# --data FOLDER with train.txt, dev.txt and test.txt: question, question, 0 or 1, separated by tabs
recipe = TextClassification(
    folder=Folder(
        files={split: f"{name}.txt*" for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))},
        headers=dict.fromkeys(("train", "validation", "test"), _NAMES),
    ),
    text="question1",
    text_pair="question2",
    label="label",
    labels=("different", "same"),
    metrics=(accuracy,),
    eval_splits=("validation", "test"),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=64, max_length=128),
)
