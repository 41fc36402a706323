"""CMRC 2018: which span of a Chinese Wikipedia paragraph answers the question? (Cui et al., 2019)"""

from bertkit.tasks import Folder, QuestionAnswering, TrainConfig, hub

recipe = QuestionAnswering(
    dataset=hub("hfl/cmrc2018"),
    folder=Folder(files={"train": "cmrc2018_train*.json*", "validation": "cmrc2018_dev*.json*"}),
    matching="characters",
    unanswerable=False,
    max_answer_length=50,
    training=TrainConfig(learning_rate=3e-5, num_epochs=2, batch_size=32, max_length=384),
    reference={"bert-base-chinese": {"validation/f1": 84.0, "validation/exact_match": 64.4}},
    reference_source="the authors of Chinese-BERT-wwm (Cui et al., 2021), means of ten runs, dev set",
)
