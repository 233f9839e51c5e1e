"""Settings of the tests of modifiers."""

from functools import partial

import pytest

from pogm import models
from pogm.models import mnist_cnn


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network for small images an eighth as wide."""
    monkeypatch.setitem(models._builders(), "mnist_cnn", partial(mnist_cnn.build, width=8))
