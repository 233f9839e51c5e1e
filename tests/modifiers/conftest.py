"""Settings of the tests of modifiers."""

from functools import partial

import pytest

from pogm import models
from pogm.models import mnist_cnn


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network for small images an eighth as wide."""
    monkeypatch.setitem(models._builders(), "mnist_cnn", partial(mnist_cnn.build, width=8))


@pytest.fixture(autouse=True)
def narrow_on_the_cpu(request: pytest.FixtureRequest) -> None:
    """Do so in all tests that do not need a GPU."""
    if request.node.get_closest_marker("gpu") is None:
        request.getfixturevalue("narrow")
