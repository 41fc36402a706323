"""CoLA: is the sentence acceptable English? (Warstadt et al., 2019)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, hub, matthews_correlation

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "cola"),
    folder=Folder(headers=dict.fromkeys(("train", "validation"), ("source", "label", "mark", "sentence"))),
    text="sentence",
    label="label",
    labels=("unacceptable", "acceptable"),
    metrics=(matthews_correlation,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/matthews_correlation": 56.53}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
