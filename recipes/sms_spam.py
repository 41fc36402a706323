"""SMS Spam: is the text message unwanted? (Almeida et al., 2011; UCI's file as it is distributed)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, f1, hub

# There is one file and no split: every tenth message, by its text, is held out.
recipe = TextClassification(
    dataset=hub("ucirvine/sms_spam"),
    folder=Folder(files={"train": "SMSSpamCollection*"}, headers={"train": ("label", "sms")}),
    text="sms",
    label="label",
    labels=("ham", "spam"),
    metrics=(f1, accuracy),
    held_out="10%",
    training=TrainConfig(learning_rate=5e-5, num_epochs=2, batch_size=32, max_length=128),
)
