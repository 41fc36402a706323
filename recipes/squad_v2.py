"""SQuAD 2.0: which span of a Wikipedia paragraph answers the question, if any does? (Rajpurkar et al., 2018)"""

from bertkit.tasks import Folder, QuestionAnswering, TrainConfig, hub

recipe = QuestionAnswering(
    dataset=hub("rajpurkar/squad_v2"),
    folder=Folder(files={"train": "train-v2.0*.json*", "validation": "dev-v2.0*.json*"}),
    matching="words",
    unanswerable=True,
    training=TrainConfig(learning_rate=5e-5, num_epochs=2, batch_size=48, max_length=384),
    reference={"bert-large-uncased": {"validation/best_f1": 81.9}},
    reference_source="Devlin et al. (2019), table 3, dev set",
)
