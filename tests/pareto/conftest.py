"""Every test of the solver runs twice: with the quick way for single problems, and without it."""

import pytest

from pogm.pareto import active_set


@pytest.fixture(params=["quick", "general"], scope="module", autouse=True)
def solver(request):
    """The way a single problem on the CPU is solved."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "general":
            patch.setattr(active_set, "is_applicable", lambda *arguments: False)
        yield request.param
