"""POGM with the Trainer of Hugging Face: only the name of the class, the argument `method` and a column are new.

The texts are random tokens from three shops, and the label says if there are more good than bad words. Every shop has
a tag that often agrees with the label; the new shop, on which the model is evaluated, has it the other way round. The
model is a small BERT with random weights. Run it with ``pip install 'pogm[huggingface]'``.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

from pogm import POGM
from pogm.integrations.huggingface import DomainTrainer

GOOD, BAD, TAG, START = 0, 8, 16, 18  # first token of each kind: 8 good words, 8 bad words, 2 tags, 1 start


def texts(domain, agreement, count=400):
    """Return texts of 8 words and a tag, which is that of the label with the given probability."""
    rows = []
    for _ in range(count):
        label = int(torch.rand(()) < 0.5)
        is_good = (torch.rand(8) < 0.85) == bool(label)
        words = torch.randint(8, (8,)) + torch.where(is_good, GOOD, BAD)
        tag = TAG + (label if torch.rand(()) < agreement else 1 - label)
        tokens = torch.cat([torch.tensor([START, tag]), words])
        rows.append({"input_ids": tokens, "labels": label, "domain": domain})
    return rows


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


if __name__ == "__main__":
    set_seed(0)
    sizes = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    model = BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2))
    trainer = DomainTrainer(
        model,
        TrainingArguments("shops", max_steps=100, per_device_train_batch_size=48, learning_rate=5e-3, report_to=[]),
        train_dataset=texts(0, 0.6) + texts(1, 0.7) + texts(2, 0.8),
        eval_dataset=texts(3, 0.2),
        compute_metrics=accuracy,
        method=POGM(),  # gradients of the domains in the column "domain"
    )
    trainer.train()
    result = trainer.evaluate()
    print(f"accuracy on texts of a new shop: {result['eval_accuracy']:.2f}")
