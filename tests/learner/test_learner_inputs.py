"""Learner: forms of input, domains of different size, missing domains, and bad input."""

from collections import Counter

import numpy
import pytest
import torch
import torch.nn.functional as F
from support import INPUTS, B, C, K
from torch import nn

from pogm import ERM, LPFT, MLDG, POGM, Batch, Fish, Fishr, GroupDRO, Learner, Mixup
from pogm._system.errors import UsageError
from pogm.core import random
from pogm.learner.inputs import Samples, stack_domains

NAMES = ["Basel", "Bern", "Chur"]


def mlp(outputs=C, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, outputs))


def pairs(seed=0, sizes=(B, B, B)):
    torch.manual_seed(seed)
    return [(torch.randn(size, INPUTS) + k, torch.randint(C, (size,))) for k, size in enumerate(sizes)]


def weights(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def trained(feed, algorithm=None, steps=3, **options):
    """Return the weights after some steps; ``feed(learner, data)`` calls ``learner.step``."""
    module = mlp()
    learner = Learner(module, algorithm or POGM(), **options)
    for seed in range(steps):
        feed(learner, pairs(seed))
    return weights(module)


def pooled(data):
    x, y = (torch.cat(part) for part in zip(*data, strict=True))
    return x, y, [name for name, (_, y) in zip(NAMES, data, strict=True) for _ in y]


def test_every_form_of_input_gives_the_same_weights():
    def labelled(learner, data):
        x, y, names = pooled(data)
        learner.step((x, y), domains=names)

    def shuffled_numbers(learner, data):
        x, y, names = pooled(data)
        learner.step((x, y, {"site": names}), domains=torch.tensor([NAMES.index(name) for name in names]))

    def arrays(learner, data):
        learner.step([(x.double().numpy()[::-1][::-1], y.numpy().astype("int16"), ["meta"] * len(y)) for x, y in data])

    expected = trained(lambda learner, data: learner.step(data))
    for feed in (
        lambda learner, data: learner.step(Batch(*(torch.stack(part) for part in zip(*data, strict=True)))),
        lambda learner, data: learner.step(dict(zip(NAMES, data, strict=True))),
        lambda learner, data: learner.step([(x, y.to(torch.uint8), "meta") for x, y in data]),
        lambda learner, data: learner.step([(x.tolist(), y.tolist()) for x, y in data]),
        labelled,
        shuffled_numbers,
        arrays,
    ):
        torch.testing.assert_close(trained(feed), expected, rtol=0, atol=0)


class Output(dict):
    """Output of a Hugging Face model: attributes instead of a tensor."""

    logits = property(lambda self: self["logits"])


class Encoder(nn.Module):
    """Model that takes token ids and a mask by name, and returns an object."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 6)
        self.classifier = nn.Linear(6, C)

    def forward(self, input_ids, attention_mask):
        z = self.embedding(input_ids) * attention_mask[..., None]
        return Output(logits=self.classifier(z.sum(1) / attention_mask.sum(1, keepdim=True)))


def tokens(seed=0):
    torch.manual_seed(seed)
    mask = torch.ones(B, 5, dtype=torch.long)
    mask[:, 3:] = torch.randint(2, (B, 2))
    ids = torch.randint(10, (B, 5))
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % C}


@pytest.mark.parametrize(
    "algorithm", [POGM(), Fish(), MLDG(), GroupDRO(), Fishr(penalty=0.1)], ids=lambda a: type(a).__name__
)
def test_dictionaries_and_output_objects_train_through_forward(algorithm):
    module = Encoder()
    learner = Learner(module, algorithm, head="classifier", forward=lambda m, x: m(**x).logits, lr=0.05)
    data = [tokens(seed) for seed in range(K)]
    losses = [learner.step(data)["loss"].item() for _ in range(60)]
    assert losses[-1] < losses[0] / 2
    found = module(data[0]["input_ids"], data[0]["attention_mask"]).logits.argmax(1)
    assert (found == data[0]["labels"]).float().mean() > 0.8


def test_dictionaries_equal_a_training_loop_with_torch():
    def by_ids(module, x):
        return module(x["input_id"], x["attention_mask"]).logits

    module, other = Encoder(), Encoder()
    learner = Learner(module, ERM(), forward=by_ids, lr=0.01, target="label")
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    for step in range(3):
        data = [tokens(10 * step + k) for k in range(K)]
        learner.step([{name.removesuffix("s"): value for name, value in one.items()} for one in data])
        optimizer.zero_grad()
        risks = [F.cross_entropy(other(d["input_ids"], d["attention_mask"]).logits, d["labels"]) for d in data]
        torch.stack(risks).mean().backward()
        optimizer.step()
    torch.testing.assert_close(weights(module), weights(other))


def test_smaller_domains_are_filled_with_their_own_samples():
    domains = {k: Samples(torch.arange(n) + 100 * k, torch.arange(n)) for k, n in enumerate((10, 4, 1))}
    batch = stack_domains(domains, random.key(0))
    assert batch.x.shape == (3, 10)
    assert (batch.x - 100 * torch.arange(3)[:, None]).equal(batch.y), "inputs and targets stay together"
    assert batch.y[0].equal(torch.arange(10))
    assert sorted(Counter(batch.y[1].tolist()).values()) == [2, 2, 3, 3]
    assert batch.y[2].eq(0).all()
    extra = torch.stack([stack_domains(domains, random.key(seed)).y[1] for seed in range(300)])
    counts = torch.bincount(extra.flatten(), minlength=4) / 300
    torch.testing.assert_close(counts, torch.full((4,), 2.5), atol=0.2, rtol=0)


def test_domains_of_different_size_equal_the_mean_of_their_risks():
    """Sizes that divide the largest one: no sample is drawn at random."""
    module, other = mlp(), mlp()
    learner = Learner(module, ERM(), lr=0.01)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    for seed in range(4):
        data = pairs(seed, (8, 4, 1))
        learner.step(data)
        optimizer.zero_grad()
        torch.stack([F.cross_entropy(other(x), y) for x, y in data]).mean().backward()
        optimizer.step()
    torch.testing.assert_close(weights(module), weights(other))


def test_last_minibatch_of_a_missing_domain_is_used_again():
    def complete(learner, data):
        first = pairs(0)
        learner.step({"Basel": data[0], "Bern": first[1], "Chur": data[2]})

    def missing(learner, data):
        x, y, names = pooled(data)
        kept = [i for i, name in enumerate(names) if name != "Bern" or learner.state is None]
        learner.step((x[kept], y[kept]), domains=[names[i] for i in kept])

    def none(learner, data):
        learner.step([data[0], data[1] if learner.state is None else None, data[2]])

    expected = trained(complete)
    torch.testing.assert_close(trained(missing), expected, rtol=0, atol=0)
    torch.testing.assert_close(trained(none), expected, rtol=0, atol=0)


def test_learner_waits_for_the_first_minibatch_of_every_domain():
    module = mlp()
    learner, before = Learner(module, POGM(), domains=NAMES), weights(module)
    data = dict(zip(NAMES, pairs(), strict=True))
    assert learner.step({"Basel": data["Basel"]}) is None
    assert learner.step({"Chur": data["Chur"]}) is None
    assert weights(module).equal(before)
    assert learner.step({"Bern": data["Bern"]}) is not None
    assert not weights(module).equal(before)


NAN = torch.full((B, INPUTS), torch.nan)
BAD = {
    "one pair": (pairs()[0], "x, y.*for domain 0; found Tensor.*domains=labels"),
    "length": ([(torch.zeros(B, INPUTS),)] * K, "for domain 0; found tuple of length 1"),
    "type": (3, "one minibatch per domain, .*found int"),
    "none": ([None, None], "at least one domain; found none"),
    "text": ([(["a"] * B, torch.zeros(B))] * K, "array of numbers as the inputs of domain 0; found list"),
    "sizes": ([(torch.zeros(B, INPUTS), torch.zeros(3))] * K, r"inputs \[8, 6\] and targets \[3\]"),
    "shapes": ([(torch.zeros(B, 6), torch.zeros(B)), (torch.zeros(B, 5), torch.zeros(B))], r"\[6\].*domain 0.*\[5\]"),
    "key": ([{"x": torch.zeros(B, INPUTS), "label": torch.zeros(B)}] * K, "key 'labels' .*found the keys 'x', 'label'"),
    "one dictionary": ({"x": torch.zeros(B), "labels": torch.zeros(B)}, "one dictionary with the key 'labels'"),
    "numbers": ([(torch.zeros(B, INPUTS), torch.zeros(B))] * K, r"found float32 targets of shape \[8\].*'mse'"),
    "labels": ([(torch.zeros(B, INPUTS), torch.ones(B, C))] * K, "sums from 4 to 4.*'bce'"),
    "classes": ([(torch.zeros(B, INPUTS), torch.full((B,), 9))] * K, "from 0 to 3 .*found indices from 9 to 9"),
    "nan": ([*pairs()[:2], (NAN, pairs()[2][1])], "finite inputs; found NaN or infinity in the inputs of domain 2"),
    "batch": (Batch(torch.zeros(K, B, INPUTS), torch.zeros(K, 3)), r"found \[3, 8, 6\] and \[3, 3\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    batches, message = BAD[name]
    with pytest.raises(UsageError, match=f"Expected .*{message}"):
        Learner(mlp(), POGM()).step(batches)


def test_one_output_with_cross_entropy_is_refused():
    """The cross-entropy of one class is always 0."""
    data = [(torch.zeros(B, INPUTS), torch.zeros(B, 1))] * K
    with pytest.raises(UsageError, match=r"two or more classes .*found outputs of shape \[8, 1\].*loss='mse'"):
        Learner(mlp(1), ERM()).step(data)


def test_later_minibatches_are_checked_too():
    learner = Learner(mlp(), POGM(), domains=NAMES)
    learner.step(dict(zip(NAMES, pairs(), strict=True)))
    with pytest.raises(UsageError, match="Basel', 'Bern', 'Chur'; found 'Genf'"):
        learner.step({"Genf": pairs()[0]})
    with pytest.raises(UsageError, match=r"finite inputs; .* of domain 'Bern'"):
        learner.step({"Bern": (NAN, pairs()[0][1])})
    with pytest.raises(UsageError, match=r"found float32 targets of shape \[8\]"):
        learner.step({name: (x, y.float()) for name, (x, y) in zip(NAMES, pairs(), strict=True)})
    with pytest.raises(UsageError, match=rf"class indices from 0 to {C - 1} .*found indices from 0 to {C}\."):
        learner.step({"Bern": (pairs()[0][0], torch.arange(B).clamp(max=C))})
    with pytest.raises(UsageError, match="for each of 8 samples; found 2 labels"):
        learner.step(pairs()[0], domains=["Basel", "Bern"])
    assert learner.step({"Basel": pairs(1)[0]})["loss"].isfinite()  # with the last accepted minibatch of Bern


def test_first_minibatch_that_is_refused_has_no_effect():
    learner = Learner(mlp(), POGM())
    with pytest.raises(UsageError, match="finite inputs"):
        learner.step({"Genf": (NAN, pairs()[0][1]), "Bern": pairs()[1]})
    assert learner.step(dict(zip(NAMES, pairs(), strict=True)))["loss"].isfinite()

    without_head = Learner(mlp(), POGM(), modifiers=[LPFT()])
    for _ in range(2):
        with pytest.raises(UsageError, match="a network with a head, because LPFT trains it first"):
            without_head.step(pairs())


def test_targets_of_later_minibatches_must_be_finite():
    module = mlp(1)
    learner = Learner(module, ERM(), loss="mse")
    learner.step([(x, y.float()) for x, y in pairs()])
    before = weights(module)
    with pytest.raises(UsageError, match="finite targets for the loss mse; found NaN or infinity"):
        learner.step([(x, y * torch.nan) for x, y in pairs()])
    assert torch.equal(weights(module), before)


def test_lazy_layers_are_refused():
    with pytest.raises(UsageError, match=r"lazy layers with 0.weight, 0.bias.*Call the module once"):
        Learner(nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(C)), POGM(), head="1")


def test_weights_that_are_not_finite_are_named():
    module = mlp()
    nn.init.constant_(module[2].bias, torch.nan)
    with pytest.raises(UsageError, match="finite outputs of the module; found NaN or infinity for finite inputs"):
        Learner(module, POGM(), head="2").step(pairs())


def test_modules_without_weights_and_other_outputs_are_refused():
    with pytest.raises(UsageError, match="weights to train; found Identity without any"):
        Learner(nn.Identity(), ERM()).step(pairs())
    with pytest.raises(UsageError, match="requires_grad is False for all of them"):
        Learner(mlp().requires_grad_(False), ERM()).step(pairs())
    data = [tokens(k) for k in range(K)]
    with pytest.raises(UsageError, match=r"returns a tensor; found Output.*forward=lambda module, x"):
        Learner(Encoder(), ERM(), forward=lambda m, x: m(**x)).step(data)


def test_modifiers_of_inputs_refuse_token_ids():
    with pytest.raises(UsageError, match="one tensor of floats for Mixup; found dict"):
        Learner(Encoder(), ERM(), modifiers=[Mixup()], forward=lambda m, x: m(**x).logits).step([tokens()] * K)


def test_change_of_the_trained_weights_is_refused():
    module = mlp()
    learner = Learner(module, ERM())
    learner.step(pairs())
    module[0].requires_grad_(False)
    with pytest.raises(UsageError, match=r"found a change of features\.0\.bias, features\.0\.weight"):
        learner.step(pairs())


def test_read_only_arrays_are_accepted():
    x = numpy.zeros((B, INPUTS), dtype="float32")
    x.flags.writeable = False
    assert Learner(mlp(), ERM()).step([(x, numpy.zeros(B, dtype="int32"))] * K) is not None


def test_integer_parameters_are_allowed_and_stay():
    class Permuted(nn.Module):
        def __init__(self):
            super().__init__()
            self.order = nn.Parameter(torch.arange(C).flip(0), requires_grad=False)
            self.layers = mlp()

        def forward(self, x):
            return self.layers(x)[:, self.order]

    module = Permuted()
    before = weights(module.layers)
    assert Learner(module, POGM()).step([(x.double(), y) for x, y in pairs()]) is not None
    assert module.order.tolist() == list(range(C))[::-1]
    assert not torch.equal(weights(module.layers), before)


class Recurrent(nn.Module):
    """An LSTM, which has a list of its weights besides its parameters."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, C)

    def forward(self, x):
        return self.head(self.lstm(x.unflatten(1, (-1, 2)))[0][:, -1])


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))[:, :C]


@pytest.mark.parametrize("make", [Recurrent, Tied])
def test_recurrent_and_tied_layers_equal_a_training_loop_with_torch(make):
    torch.manual_seed(0)
    module, reference = make(), make()
    reference.load_state_dict(module.state_dict())
    learner, optimizer = Learner(module, ERM(), lr=0.01), torch.optim.Adam(reference.parameters(), lr=0.01)
    for seed in range(3):
        data = pairs(seed)
        learner.step(data)
        optimizer.zero_grad()
        sum(F.cross_entropy(reference(x), y) for x, y in data).div(K).backward()
        optimizer.step()
    torch.testing.assert_close(weights(module), weights(reference))
