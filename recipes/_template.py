"""NAME: the question that the task asks, in one line (Authors, year)"""

# Copy this file, fill it in, and train:  bertkit finetune ./my_task.py --model bert-base-uncased --output-dir runs/my_task
from bertkit.tasks import TextClassification, TrainConfig, accuracy, hub

recipe = TextClassification(
    dataset=hub("owner/dataset", "configuration"),  # or a function: split -> rows as dicts; --data and --train replace it
    text="sentence1",  # columns of the data
    text_pair="sentence2",  # leave out for single sentences
    label="label",
    labels=("no", "yes"),  # in the order of their numbers; leave out to take them from the training data
    metrics=(accuracy,),  # the first one decides which step is best
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
)
