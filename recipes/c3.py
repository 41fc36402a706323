"""C3: which choice answers the question about a Chinese dialogue or text? (Sun et al., 2020)"""

from bertkit.tasks import Folder, MultipleChoice, TrainConfig, accuracy, hub

# --data: a folder with one file a split, as c3-d-train.json, c3-d-dev.json and c3-d-test.json
recipe = MultipleChoice(
    dataset=hub("clue/clue", "c3"),
    folder=Folder(files={"train": "*train*.json*", "validation": "*dev*.json*", "test": "*test*.json*"}),
    text="context",
    question="question",
    choices=("choice",),
    label="answer",
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=8, batch_size=24, max_length=512),
)
