"""CoNLL-2003: which words name a person, an organization, a place or something else? (Tjong Kim Sang and De Meulder, 2003)"""

from bertkit.tasks import TokenClassification, TrainConfig, hub

recipe = TokenClassification(
    dataset=hub("lhoestq/conll2003"),
    tokens="tokens",
    tags="ner_tags",
    labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    scheme="iob2",
    training=TrainConfig(learning_rate=5e-5, num_epochs=3, batch_size=32, max_length=128),
    reference={"bert-base-cased": {"validation/f1": 96.4, "test/f1": 92.4}},
    reference_source="Devlin et al. (2019), table 7, with document context",
)
