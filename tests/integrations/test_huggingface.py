"""DomainTrainer: the gradient is that of `backward`; everything else is Hugging Face's own Trainer."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import pogm
from pogm import ERM, POGM, Reptile
from pogm._system.errors import UsageError

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
        reason="needs pip install 'pogm[huggingface]'",
    ),
    pytest.mark.filterwarnings("ignore"),  # transformers and accelerate call deprecated functions
]
EXAMPLE = Path(__file__).parents[2] / "examples/huggingface_trainer.py"


def bert(dropout=0.0):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8}
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig(**sizes, **dropouts, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.3)
    return BertForSequenceClassification(config)


def samples(domains):
    """Return one sample per domain number; the text is a column that Trainer removes."""
    tokens = torch.randint(32, (len(domains), 8), generator=torch.Generator().manual_seed(0))
    return [
        {"input_ids": row, "labels": int(row[0]) % 2, "domain": domain, "text": "..."}
        for row, domain in zip(tokens, domains, strict=True)
    ]


def make_trainer(folder, dataset, method=None, model=None, **options):
    """Return a DomainTrainer, or the Trainer of Hugging Face without a method."""
    from transformers import Trainer, TrainingArguments

    from pogm.integrations.huggingface import DomainTrainer

    settings = {
        "per_device_train_batch_size": 12,
        "max_steps": 1,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
    }
    fixed = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 1}
    arguments = TrainingArguments(folder, **fixed, **settings | options)
    model = model or bert()
    if method is None:
        return Trainer(model, arguments, train_dataset=dataset, eval_dataset=dataset)
    return DomainTrainer(model, arguments, train_dataset=dataset, eval_dataset=dataset, method=method)


def flat(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_step_has_the_gradient_of_backward(tmp_path):
    """One step of SGD on domains of different size, with the loss of each domain computed by hand."""
    dataset = samples([0] * 6 + [3] * 4 + [7] * 2)
    trainer = make_trainer(tmp_path, dataset, POGM(kappa=0.5), optim="sgd", max_grad_norm=0.0)
    trainer.train()

    model = bert()
    tokens, labels = (
        torch.stack([row["input_ids"] for row in dataset]),
        torch.tensor([row["labels"] for row in dataset]),
    )
    parts = [F.cross_entropy(model(tokens[rows]).logits, labels[rows]) for rows in torch.arange(12).split([6, 4, 2])]
    pogm.backward(parts, model.parameters(), POGM(kappa=0.5))
    gradient = torch.cat(
        [torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten() for w in model.parameters()]
    )
    assert (flat(trainer.model) - (flat(model) - 0.1 * gradient)).norm() < 1e-4 * (0.1 * gradient).norm()
    assert losses(trainer) == pytest.approx([float(torch.stack(parts).mean())])


def test_mean_of_gradients_equals_trainer(tmp_path):
    """With equal domains, the mean gradient (Reptile) is that of Trainer: with clipping, AdamW, a schedule and logs."""
    dataset = samples([0, 1, 2] * 4)
    settings = {"max_steps": 5, "learning_rate": 0.01, "lr_scheduler_type": "linear"}
    settings |= {"max_grad_norm": 0.1, "adam_epsilon": 1e-3}  # a small one increases rounding errors
    plain = make_trainer(tmp_path, dataset, **settings)
    domain = make_trainer(tmp_path, dataset, Reptile(), **settings)
    plain.train()
    domain.train()
    change = flat(plain.model) - flat(bert())
    assert (flat(plain.model) - flat(domain.model)).norm() < 1e-3 * change.norm()
    assert losses(domain) == pytest.approx(losses(plain), abs=1e-5)
    assert losses(domain)[-1] < losses(domain)[0]


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_resumed_training_is_bit_identical(tmp_path, options):
    settings = {"max_steps": 4, "save_steps": 2, "learning_rate": 0.01, "per_device_train_batch_size": 6, **options}
    dataset = samples([0, 1, 1, 2] * 6)
    full = make_trainer(tmp_path, dataset, POGM(), bert(dropout=0.1), **settings)
    full.train()
    resumed = make_trainer(tmp_path, dataset, POGM(), bert(dropout=0.1), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for left, right in zip(full.model.parameters(), resumed.model.parameters(), strict=True):
        assert left.dtype == torch.float32
        assert torch.equal(left, right)
    assert losses(resumed) == losses(full)


def test_bf16_changes_the_computation_and_not_the_result(tmp_path):
    dataset = samples([0, 1, 2] * 4)
    settings = {"max_steps": 2, "learning_rate": 0.01}
    exact, mixed = (make_trainer(tmp_path, dataset, POGM(), bf16=bf16, **settings) for bf16 in (False, True))
    exact.train()
    mixed.train()
    assert losses(exact) != losses(mixed)
    assert losses(mixed) == pytest.approx(losses(exact), rel=0.05)


@pytest.mark.parametrize("remove", [True, False])
def test_evaluation_equals_that_of_trainer(tmp_path, remove):
    """The evaluation dataset has a column of domains, too."""
    dataset = [{name: value for name, value in row.items() if name != "text"} for row in samples([0, 1, 2] * 4)]
    plain = make_trainer(tmp_path, dataset).evaluate()
    domain = make_trainer(tmp_path, dataset, POGM(), remove_unused_columns=remove).evaluate()
    assert plain["eval_loss"] == domain["eval_loss"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"fp16": True}, "found fp16. Use bf16."),
        ({"torch_compile": True}, "found torch_compile. Leave it out."),
        ({"optim": "lomo"}, "found the optimizer lomo. Choose another one."),
        ({"gradient_accumulation_steps": 2}, "found gradient_accumulation_steps=2. The direction of several"),
    ],
    ids=str,
)
def test_unsupported_arguments_are_refused(tmp_path, options, found):
    with pytest.raises(UsageError, match=f"Expected arguments that DomainTrainer supports; {found}"):
        make_trainer(tmp_path, samples([0, 1]), POGM(), **options)


def test_several_gpus_are_refused(tmp_path):
    from transformers import TrainingArguments

    from pogm.integrations.huggingface import DomainTrainer

    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to=[])
    arguments._n_gpu = 2  # as on a machine with two GPUs
    with pytest.raises(UsageError, match=r"found several GPUs or processes. Use one GPU"):
        DomainTrainer(bert(), arguments, train_dataset=samples([0, 1]), method=POGM())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"domain": None}, "found the columns input_ids, labels. Add the column"),
        ({"domain": 0.5}, r"found torch.float32 \[4\]. Add the column"),
        ({"domain": [0, 1]}, r"found torch.int64 \[4, 2\]. Add the column"),
    ],
    ids=str,
)
def test_wrong_domains_are_refused(tmp_path, change, found):
    dataset = [
        {name: value for name, value in {**row, **change}.items() if value is not None} for row in samples([0] * 4)
    ]
    with pytest.raises(UsageError, match=f"Expected one integer per sample in the column 'domain' .*; {found}"):
        make_trainer(tmp_path, dataset, POGM()).train()


def test_inputs_without_rows_and_other_methods_are_refused(tmp_path):
    trainer = make_trainer(tmp_path, samples([0, 1]), POGM())
    inputs = {"input_ids": torch.zeros(2, 8, dtype=torch.long), "domain": torch.tensor([0, 1])}
    with pytest.raises(UsageError, match=r"found torch.float32 \[5, 3\] in the column 'pixel_values'"):
        trainer.training_step(trainer.model, {**inputs, "pixel_values": torch.zeros(5, 3)})
    with pytest.raises(UsageError, match=r"Expected a method that combines gradients .*; found ERM"):
        make_trainer(tmp_path, samples([0, 1]), ERM()).train()


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "pogm.integrations.huggingface", raising=False)
    with pytest.raises(ImportError, match=r"found none. Install it: pip install 'pogm\[huggingface\]'"):
        importlib.import_module("pogm.integrations.huggingface")


def test_example_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert found["result"]["eval_accuracy"] > 0.8
