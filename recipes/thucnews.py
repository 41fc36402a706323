"""THUCNews titles: which of ten sections is the Chinese headline from? (Sun et al., 2016)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy

# --data FOLDER with train.txt, dev.txt and test.txt: title, tab, number of the class
recipe = TextClassification(
    folder=Folder(
        files={split: f"{name}.txt*" for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))},
        headers=dict.fromkeys(("train", "validation", "test"), ("text", "label")),
    ),
    text="text",
    label="label",
    labels="finance realty stocks education science society politics sports game entertainment".split(),
    metrics=(accuracy,),
    eval_splits=("validation", "test"),
    training=TrainConfig(learning_rate=5e-5, num_epochs=3, batch_size=128, max_length=32),
)
