"""`controlplane top`: what stands where, within any width and height; what is said when nobody answers."""

import fleet_fakes as fakes
import msgspec
from click.testing import CliRunner, Result
from fleet_fakes import AT, FakeDaemon, fleet, replica
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from top_fakes import served, view

from controlplane.api import answers
from controlplane.commands.top import top
from controlplane.signals.decision import Hold, Orders, Override, Standing
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.snapshot import (
    Condition,
    Denominator,
    FleetSnapshot,
    Goodput,
    Latency,
    Load,
    Quantiles,
    ReplicaSnapshot,
    ReplicaState,
    Scale,
)
from controlplane.terminal.fleet_cells import COLUMNS, Row
from controlplane.terminal.pages import PAGES, screen
from controlplane.terminal.view import View

GONE = Unknown(Reason.SCRAPE_FAILED, AT - 42, "connection refused")
_ANY_HEIGHT = 10_000
SATURATED = Condition("saturated", AT - 190, "vllm-2 is saturated: its KV cache is 100% full and 31 wait")


def unreachable(name: str, pool: str = "chat") -> ReplicaSnapshot:
    return replica(
        name,
        pool,
        state=ReplicaState.UNREACHABLE,
        detail="connection refused",
        load=Load(*[GONE] * 10),
        latency=Latency(*[GONE] * 8),
        goodput=Goodput(60.0, Denominator.HTTP, unknown=Reason.STALE),
        last_scrape_at=AT - 42,
    )


def lines(seen: View, width: int = 80, height: int | None = None, trouble: str = "") -> list[str]:
    shown = screen(seen, width, height or _ANY_HEIGHT, PAGES[0], trouble=trouble)
    return [line.plain.rstrip() for line in shown]


def test_a_healthy_fleet_in_eighty_columns() -> None:
    assert lines(view(fleet(replica("vllm-0:8000"), replica("vllm-1:8000")))) == [
        "controlplane 0.1.0  http://127.0.0.1:9090  2/2 up  observe  tick 7, 0s ago",
        "",
        "POOL           GOODPUT         RUN WAIT        KV OUT/s TTFT95 TPOT95 PRE/s AGE",
        "chat 2/2       ██████▍▒ 80–96%  12    3 ██▍   62%   910  850ms 51.0ms     0",
        " ● vllm-0:8000 ██████▍▒ 80–96%  12    3 ██▍   62%   910  850ms 51.0ms     0  2s",
        " ● vllm-1:8000 ██████▍▒ 80–96%  12    3 ██▍   62%   910  850ms 51.0ms     0  2s",
        "",
        "goal: 95% of requests with TTFT up to 2.5s, TPOT up to 50ms",
    ]


def test_the_worst_stands_first_with_its_reason_below() -> None:
    seen = fleet(
        replica("vllm-0", goodput=fakes.goodput(97, 100)),
        replica("vllm-1", goodput=fakes.goodput(90, 98)),
        replica("vllm-2", conditions=(SATURATED,), goodput=fakes.goodput(99, 100)),
        replica("vllm-3", state=ReplicaState.ASLEEP, detail="every engine sleeps"),
        unreachable("vllm-4"),
    )
    shown = lines(view(seen), 120)
    names = [line.split()[1] for line in shown if line.startswith(" ") and "└" not in line]
    assert names == ["vllm-4", "vllm-3", "vllm-2", "vllm-1", "vllm-0"]
    assert shown[4].split()[:3] == ["○", "vllm-4", "unreachable"]
    assert shown[5] == "   └ connection refused"
    assert shown[7] == "   └ every engine sleeps"
    assert shown[9] == f"   └ saturated for 3m: {SATURATED.sentence}"


def test_the_worst_pool_stands_first() -> None:
    missed = Condition("objective-missed", AT - 60, "pool b misses its objective")
    seen = fleet(replica("r0", "a"), replica("r1", "b"), replica("r2", "c"))
    worse = msgspec.structs.replace(seen.pools["b"], conditions=(missed,))
    down = msgspec.structs.replace(seen.pools["c"], replicas_up=0)
    seen = msgspec.structs.replace(seen, pools={**seen.pools, "b": worse, "c": down})
    pools = [line.split()[0] for line in lines(view(seen)) if line[:2] in ("a ", "b ", "c ")]
    assert pools == ["b", "c", "a"]


def test_goodput_is_shown_as_what_is_proven() -> None:
    def cell(**changes: object) -> str:
        shown = fakes.goodput()
        one = replica(goodput=msgspec.structs.replace(shown, **changes))
        row = next(line for line in lines(view(fleet(one)), 140) if line.startswith(" ●"))
        return row.split("vllm-0:8000")[1].split("  ")[0].strip()

    interval = type(fakes.goodput().good_requests)
    assert cell(good_requests=interval(100.0, 100.0)) == "████████ 100%"
    assert cell(good_requests=interval(0.0, 0.0)) == "········ 0%"
    assert cell(good_requests=interval(12.0, 31.0)) == "▉▒▒····· 12–31%"
    assert cell(good_requests=interval(0.0, 100.0)) == "▒▒▒▒▒▒▒▒ 0–100%"
    assert cell(good_requests=interval(99.9, 100.0)) == "███████▉ >99–100%"
    assert cell(denominator=Denominator.FINISHED) == "██████▍▒ 80–96%*"
    assert cell(unknown=Reason.TOO_FEW) == "too few to say"
    assert cell(unknown=Reason.NO_TRAFFIC) == "no-traffic"


def test_a_finished_only_denominator_is_explained() -> None:
    seen = fleet()
    chat = msgspec.structs.replace(
        seen.pools["chat"],
        goodput=msgspec.structs.replace(fakes.goodput(), denominator=Denominator.FINISHED),
    )
    shown = lines(view(msgspec.structs.replace(seen, pools={"chat": chat})))
    assert "* of finished requests alone: refused and aborted ones are missing" in shown


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    row = next(line for line in lines(view(fleet(unreachable("vllm-4")))) if "vllm-4" in line)
    assert row.split() == ["○", "vllm-4", "unreachable", *["–"] * 7, "42s"]


def test_the_limit_is_bold_where_it_is_enforced_and_shows_what_is_in_force() -> None:
    how = fakes.status(limit_standings={"vllm-0:8000": Standing.ENFORCE})
    row = next(line for line in lines(view(fleet(), how=how), 140) if "vllm-0" in line)
    assert "137 (136)" in row
    for standing, style in ((Standing.ENFORCE, "bold"), (Standing.OBSERVE, "dim"), (None, "dim")):
        shown = answers.replica_of(
            replica(), fakes.status(limit_standings={} if standing is None else {"vllm-0:8000": standing}), AT
        )
        cell = next(column for column in COLUMNS if column.title == "LIMIT").cell(Row(shown, None, AT))
        assert cell.style == style


def test_hold_overrides_and_troubles_stand_on_top() -> None:
    override = Override("pool", "chat", "mode", "observe", "bob", "looking", AT)
    orders = Orders(Hold(AT - 600, "ann", "deploy"), (override,))
    how = fakes.status(troubles=("the journal cannot be written: disk full",))
    assert lines(view(fleet(), orders, how), trouble="no answer for 4 s")[1:5] == [
        " HOLD: nothing is acted on, for 10m (by ann: deploy)",
        "override: mode of pool chat is observe (by bob: looking)",
        "! the journal cannot be written: disk full",
        "! no answer for 4 s",
    ]


def test_more_columns_where_there_is_room() -> None:
    shown = [len(lines(view(fleet()), width)[2].split()) for width in range(62, 130)]
    assert shown == sorted(shown)
    assert lines(view(fleet()), 62)[2].split() == ["POOL", "GOODPUT", "RUN", "WAIT", "KV", "TTFT95", "TPOT95"]
    assert {"IN/s", "HIT", "QUEUE95", "FAILS"} <= set(lines(view(fleet()), 120)[2].split())


def test_a_sum_without_a_part_is_marked_as_a_lower_bound() -> None:
    part = fakes.known(9.0, Quality.LOWER_BOUND)
    seen = fleet()
    load = msgspec.structs.replace(
        seen.pools["chat"].load, waiting=part, kv_usage=fakes.known(0.5, part.quality)
    )
    chat = msgspec.structs.replace(seen.pools["chat"], load=load)
    row = next(
        line
        for line in lines(view(msgspec.structs.replace(seen, pools={"chat": chat})))
        if line.startswith("chat")
    )
    assert "≥9" in row.split()
    assert "≥50%" in row.split()


def scaled(replicas: int, ready: int) -> list[str]:
    seen = fleet()
    scale = Scale("work", replicas, ready, 1, fakes.known(4.6), "need", "work grows by a third", AT)
    chat = msgspec.structs.replace(seen.pools["chat"], scale=scale)
    return lines(view(msgspec.structs.replace(seen, pools={"chat": chat})), 120)


def test_a_pool_that_should_have_another_count_says_why() -> None:
    assert "└ 5 replicas wanted, 3 ready and 1 loading: work grows by a third" in scaled(5, 3)
    assert not [line for line in scaled(3, 3) if "wanted" in line]


def test_a_quantile_beyond_the_buckets_is_shown_as_no_more_than_that() -> None:
    queue = Quantiles(50.0, 0.001, 0.15, 0.27, 0.285, 0.297, lowest=0.3, highest=60.0)
    ttft = Quantiles(50.0, 90.0, 60.0, 60.0, 60.0, 60.0, lowest=0.001, highest=60.0)
    latency = msgspec.structs.replace(fakes.latency(), queue_time=Known(queue, AT), ttft=Known(ttft, AT))
    row = next(line for line in lines(view(fleet(replica(latency=latency))), 140) if line.startswith(" ●"))
    assert "<300ms" in row.split()
    assert ">60.0s" in row.split()


def test_failed_scrapes_of_a_flapping_replica_are_shown() -> None:
    how = fakes.status(scrape_failures={"vllm-0:8000": 17})
    shown = lines(view(fleet(), how=how), 140)
    assert shown[4].split()[-2:] == ["17", "2s"]


def test_a_short_screen_keeps_every_pool_and_the_worst_replicas() -> None:
    many = [replica(f"vllm-{i}", "code", goodput=fakes.goodput(90 + i % 10, 100)) for i in range(40)]
    seen = view(fleet(*many, unreachable("vllm-x", "chat"), replica("vllm-y", "chat")))
    shown = lines(seen, 80, 16)
    assert len(shown) <= 16
    assert [line.split()[0] for line in shown if "/" in line[:14]] == ["chat", "code"]
    assert any("vllm-x" in line for line in shown)
    hidden = next(line for line in shown if "more, none worse" in line)
    visible = sum(line.startswith(" ● vllm-") and "vllm-y" not in line for line in shown)
    assert int(hidden.split()[1]) == 40 - visible
    assert "none worse" not in "\n".join(lines(seen, 80, None))


def test_names_lose_what_they_share_and_never_a_part_of_an_address() -> None:
    for names, short in (
        (["vllm-0.chat.svc.cluster.local:8000", "vllm-1.chat.svc.cluster.local:8000"], ["vllm-0", "vllm-1"]),
        (["10.140.210.17:18000", "10.140.211.17:18000"], ["10.140.210.17:18000", "10.140.211.17:18000"]),
    ):
        shown = lines(view(fleet(*[replica(name) for name in names])), 80)
        rows = [line.split()[1] for line in shown if line.startswith(" ●")]
        assert rows == short
    both = ["gpu-node-17.rack-b.example.com:8000", "gpu-node-18.rack-b.example.net:8000"]
    shown = lines(view(fleet(*[replica(name) for name in both])), 80)
    rows = [line.split()[1] for line in shown if line.startswith(" ●")]
    assert len(set(rows)) == 2
    assert min(map(len, rows)) > 20
    alone = lines(view(fleet(replica("engine.chat.svc.cluster.local:8000"))), 80)
    assert [line.split()[1] for line in alone if line.startswith(" ●")] == ["engine…luster.local:8000"]


def test_no_pools_yet_is_said() -> None:
    empty = FleetSnapshot(AT, 1, {}, {}, Orders(), ())
    assert lines(view(empty))[2] == "there are no pools yet: discovery has found no target"


def test_records_the_newest_last() -> None:
    shown = view(fleet())._replace(
        records=[
            answers.shapes.Event.model_validate(fakes.event(at=AT, sentence="second")),
            answers.shapes.Decision.model_validate(fakes.decision(at=AT - 5, sentence="first")),
        ]
    )
    assert [line.split("  ")[1] for line in lines(shown)[-2:]] == ["first", "second"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seen=fakes.fleets, orders=fakes.orders, width=st.integers(40, 160), height=st.integers(8, 60))
def test_any_fleet_fits_any_screen(seen: FleetSnapshot, orders: Orders, width: int, height: int) -> None:
    for limit in (height, _ANY_HEIGHT):
        shown = screen(view(seen, orders), width, limit, PAGES[0])
        assert len(shown) <= limit
        for line in shown:
            assert cell_len(line.plain) <= width
            assert line.plain.isprintable()


# -- the command -----------------------------------------------------------------------------------


def run(url: str) -> Result:
    return CliRunner().invoke(top, ["--once", "--url", url], env={"COLUMNS": "80"})


def test_once_prints_the_whole_fleet_over_several_pages() -> None:
    many = fleet(*[replica(f"vllm-{i}") for i in range(450)])
    with served(FakeDaemon(many)) as url:
        result = run(url)
        bare = run(url.removeprefix("http://"))
    assert result.exit_code == bare.exit_code == 0
    assert sum(line.startswith(" ●") for line in result.output.splitlines()) == 450
    assert "the engine restarted" in result.output
    assert all(cell_len(line) <= 80 for line in result.output.splitlines())


def test_a_journal_that_cannot_be_read_costs_only_the_records() -> None:
    with served(FakeDaemon(journal=OSError("the journal cannot be read"))) as url:
        result = run(url)
    assert result.exit_code == 0
    assert "chat 1/1" in result.output


def test_a_daemon_that_is_not_there_is_one_sentence() -> None:
    result = run("http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output == (
        "Error: no daemon to show at http://127.0.0.1:1: connection refused "
        "(start one with `controlplane run`, or give its --url)\n"
    )


def test_a_daemon_before_its_first_tick_is_one_sentence() -> None:
    with served(FakeDaemon(None)) as url:
        result = run(url)
    assert result.exit_code == 1
    assert "the first tick has not run yet" in result.output


def test_something_else_that_answers_is_one_sentence() -> None:
    with served(FakeDaemon()) as url:
        result = run(f"{url}/elsewhere")
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "there is no /elsewhere/api/v1/fleet here" in result.output


def test_an_address_that_is_none_is_one_sentence() -> None:
    result = run("ftp://x")
    assert result.exit_code == 1
    assert result.output == "Error: ftp://x: neither http:// nor https://\n"
