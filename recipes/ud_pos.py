"""UD POS: which part of speech is each word? English EWT or any other treebank (Nivre et al., 2020)"""

from bertkit.tasks import Folder, TokenClassification, TrainConfig, hub

recipe = TokenClassification(
    dataset=hub("commul/universal_dependencies", "en_ewt"),
    folder=Folder(
        files={split: f"*-ud-{name}.conllu*" for split, name in (("train", "train"), ("validation", "dev"), ("test", "test"))}
    ),
    tokens="tokens",
    tags="upos",
    training=TrainConfig(learning_rate=5e-5, num_epochs=3, batch_size=32, max_length=128),
)
