"""Every test of the solver runs twice: with and without the active-set solver for single problems."""

import pytest

from pogm.pareto import active_set


@pytest.fixture(params=["active_set", "general"], scope="module", autouse=True)
def solver(request):
    """Solve single problems on the CPU with the active-set solver, or with the general solvers."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "general":
            patch.setattr(active_set, "is_applicable", lambda *arguments: False)
        yield request.param
