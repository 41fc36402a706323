"""STS-B: how alike are the two sentences, from 0 to 5? (Cer et al., 2017)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, hub, pearson, spearmanr

recipe = TextClassification(
    dataset=hub("nyu-mll/glue", "stsb"),
    folder=Folder(rename={"score": "label"}),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    regression=True,
    metrics=(pearson, spearmanr),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/pearson": 88.64, "validation/spearmanr": 88.48}},
    reference_source="transformers, examples/pytorch/text-classification/README.md, dev set",
)
