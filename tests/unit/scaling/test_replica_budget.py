"""What pools get of a common budget."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.scaling.budget import Claim, ReplicaBudget, share_out

claims = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.builds(Claim, st.integers(0, 20), st.integers(0, 20), st.integers(1, 8), st.floats(0, 10)),
    min_size=1,
)
budgets = st.builds(
    ReplicaBudget,
    gpus=st.none() | st.integers(0, 100),
    cost_per_hour=st.none() | st.floats(0, 200, allow_nan=False),
)


def test_what_is_left_goes_to_the_pool_that_lacks_most() -> None:
    wants = {"chat": Claim(4, 8, 1, 0.0), "code": Claim(1, 4, 1, 0.0)}
    assert share_out(wants, ReplicaBudget(gpus=8)) == {"chat": 5, "code": 3}


def test_money_binds_as_gpus_do_and_the_small_still_fits() -> None:
    wants = {"large": Claim(1, 4, 8, 40.0), "small": Claim(1, 4, 1, 5.0)}
    assert share_out(wants, ReplicaBudget(cost_per_hour=60.0)) == {"large": 1, "small": 4}


@given(claims, budgets)
def test_nobody_loses_gets_more_than_wanted_or_breaks_the_budget(
    wants: dict[str, Claim], budget: ReplicaBudget
) -> None:
    granted = share_out(wants, budget)
    for name, claim in wants.items():
        assert min(claim.asked, claim.wanted) <= granted[name] <= claim.wanted
    grown = any(granted[name] > claim.asked for name, claim in wants.items())
    if grown and budget.gpus is not None:
        assert sum(granted[name] * claim.gpus for name, claim in wants.items()) <= budget.gpus
    if grown and budget.cost_per_hour is not None:
        cost = sum(granted[name] * claim.cost_per_hour for name, claim in wants.items())
        assert cost <= budget.cost_per_hour + 1e-6
    if budget.gpus is None and budget.cost_per_hour is None:
        assert granted == {name: claim.wanted for name, claim in wants.items()}
