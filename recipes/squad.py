"""SQuAD 1.1: which span of a Wikipedia paragraph answers the question? (Rajpurkar et al., 2016)"""

from bertkit.tasks import Folder, QuestionAnswering, TrainConfig, hub

recipe = QuestionAnswering(
    dataset=hub("rajpurkar/squad"),
    folder=Folder(files={"train": "train-v1.1*.json*", "validation": "dev-v1.1*.json*"}),
    matching="words",
    unanswerable=False,
    training=TrainConfig(learning_rate=5e-5, num_epochs=3, batch_size=32, max_length=384),
    reference={
        "bert-base-uncased": {"validation/f1": 88.5, "validation/exact_match": 80.8},
        "bert-large-uncased": {"validation/f1": 90.9, "validation/exact_match": 84.1},
    },
    reference_source="Devlin et al. (2019), table 2, dev set",
)
