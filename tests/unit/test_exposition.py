"""The exposition reader against examples, the captured pages, prometheus_client and broken pages."""

import random
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from exposition_pages import (
    CAPTURES,
    CASES,
    Found,
    check_mutations,
    expected,
    found,
    mutations,
    odd_lines,
    outcome,
    printed_pages,
    with_new_values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as classic_families

from controlplane.sources.exposition import ExpositionError, Page, Reader, Series


def by_series(page: Page) -> dict[tuple[str, str], float]:
    """Values by name and `le` or `engine` label, where that is enough to tell series apart."""
    return {
        (name, dict(labels).get("le", dict(labels).get("engine", ""))): value
        for (name, labels), value in zip(page.layout.series, page.values, strict=True)
    }


# Examples


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("up 1", "up", {}, 1),
        ("up\t1", "up", {}, 1),
        (" up   1  ", "up", {}, 1),
        ("up{} 1", "up", {}, 1),
        ("up 1 1764000000000", "up", {}, 1),
        ("up\t1\t1764000000.123", "up", {}, 1),
        ("up 1 -5", "up", {}, 1),
        ('up{b="2",a="1"} 7', "up", {"a": "1", "b": "2"}, 7),
        ('up {a="1"} 7', "up", {"a": "1"}, 7),
        ('up{a="1"}7', "up", {"a": "1"}, 7),
        ('up{ a = "1" , b\t=\t"2" , } 7', "up", {"a": "1", "b": "2"}, 7),
        ('up{a="1",} 7', "up", {"a": "1"}, 7),
        ('up{a="x y"} 7', "up", {"a": "x y"}, 7),
        ('up{a="} 1 # {,"} 7', "up", {"a": "} 1 # {,"}, 7),
        (r'up{a="\\"} 7', "up", {"a": "\\"}, 7),
        (r'up{a="say \"hi\"\n"} 7', "up", {"a": 'say "hi"\n'}, 7),
        (r'up{a="C:\dir\\n"} 7', "up", {"a": r"C:\dir\n"}, 7),
        ('up{a=""} 7', "up", {"a": ""}, 7),
        ('up{a="\u00e9\u4e16\U0001f600"} 7', "up", {"a": "\u00e9\u4e16\U0001f600"}, 7),
        ('{"my.name"} 7', "my.name", {}, 7),
        ('{"my.name",a="b"} 7', "my.name", {"a": "b"}, 7),
        ('{ a="b" , "my name" } 7', "my name", {"a": "b"}, 7),
        ('up{"a.b"="c"} 7', "up", {"a.b": "c"}, 7),
        (r'{"a\"b","c\\"="d"} 7', 'a"b', {"c\\": "d"}, 7),
        ('{__name__="up",a="b"} 7', "up", {"a": "b"}, 7),
        ("ns:up:rate5m .5", "ns:up:rate5m", {}, 0.5),
        ("up 5.", "up", {}, 5),
        ("up -1.5e+3", "up", {}, -1500),
        ("up 1E5", "up", {}, 100000),
        ("up 007", "up", {}, 7),
        ('up 7 # {trace_id="a b"} 0.5 1764000000.1', "up", {}, 7),
        ('up{a="b"} 7 1764000000 # {} 0.5', "up", {"a": "b"}, 7),
        ('up_bucket{le="+Inf"} 7 # {t="\\"}"} 0.5', "up_bucket", {"le": "+Inf"}, 7),
    ],
)
def test_reads_a_line(line: str, name: str, labels: dict[str, str], value: float) -> None:
    page = Reader().read(line)
    assert page.layout.series == (Series(name, tuple(sorted(labels.items()))),)
    assert page.values == [value]
    assert isinstance(page.values[0], float)
    assert page.samples == 1


@pytest.mark.parametrize("text", ["NaN", "Nan", "nan", "+Inf", "-Inf", "Inf", "inf", "infinity", "1e999"])
def test_not_finite_numbers_are_read_and_counted(text: str) -> None:
    page = Reader().read(f"a 1\nb {text}\n")
    assert repr(page.values[1]) == repr(float(text))
    assert page.non_finite == 1


def test_finite_values_whose_sum_overflows_are_finite() -> None:
    assert Reader().read("a 1e308\nb 1e308\n").non_finite == 0


@pytest.mark.parametrize(
    "line",
    [
        "up",
        "up ",
        "1up 1",
        "up-down 1",
        "up+1",
        "up.5 1",
        "up 1_000",
        "up 0x10",
        "up 0x1p3",
        "up 1e",
        "up \u0663",
        "up\u00a01",
        "up 1\x0c",
        "up \x0b1",
        "up \x1c1",
        "up one",
        "up --1",
        "up 1 2 3",
        "up 1 soon",
        "up 1 1_0",
        "up 1 # comment",
        "up 1 #",
        "up 1# {} 1",
        "up +1 {",
        "inf",
        "5",
        "{} 1",
        '{a="b"} 1',
        '{"a","b"} 1',
        '{""} 1',
        'up{"b"} 1',
        'up{__name__="b"} 1',
        'up{a="b" 1',
        'up{a="b} 1',
        r'up{a="b\"} 1',
        "up{a=b} 1",
        "up{a='b'} 1",
        "up{a} 1",
        "up{=} 1",
        'up{a:b="c"} 1',
        'up{1a="c"} 1',
        'up{""="c"} 1',
        'up{a="b" c="d"} 1',
        'up{a="b",,c="d"} 1',
        'up{,a="b"} 1',
        "up{,} 1",
        'up{a="b"}{c="d"} 1',
        'up{a="b"}} 1',
        'up{a="b",a="b"} 1',
        'up{a="b","a"="c"} 1',
        'up{a="b"}',
        "up {count:1,sum:2} ",
        "\ufeffup 1",
        "up\r1",
        "\0",
        "<!DOCTYPE html>",
        '{"error": "no such page"}',
    ],
)
def test_refuses_a_line_fresh_and_warm(line: str) -> None:
    page = "# a comment\nok 1\n{}\nok 2\n"
    fresh = Reader()
    with pytest.raises(ExpositionError) as refused:
        fresh.read(page.replace("{}", line))
    message = str(refused.value)
    assert message.startswith("line 3: ")
    assert message.isprintable()
    assert outcome(fresh, "ok 1\n") == outcome(Reader(), "ok 1\n")
    warm = Reader()
    for known in ("up 3", "up 1 17", 'up{a="b"} 3', 'up{a="b"}3', "# a comment", "", "inf 5", "1up"):
        outcome(warm, page.replace("{}", known))
        assert outcome(warm, page.replace("{}", line)) == message


@pytest.mark.parametrize(
    "line", ["x" * 10_000, "\u2028" * 50, '"' * 79, "up \x1b[31m\u202egone", "\udcff" * 100]
)
def test_the_excerpt_is_short_and_safe(line: str) -> None:
    with pytest.raises(ExpositionError) as refused:
        Reader().read(line)
    excerpt = str(refused.value).split(": ", 2)[2]
    assert len(excerpt) <= 80
    assert excerpt.isprintable()


@pytest.mark.parametrize("body", [b"a 1\nb\xff 2\n", b"a 1\nb\xed\xa0\x80 2\n", b"a 1\nb\xc3"])
def test_invalid_utf8_names_the_byte(body: bytes) -> None:
    with pytest.raises(ExpositionError, match="byte 5"):
        Reader().read(body)


@pytest.mark.parametrize("body", [b"", b"\n", b" \t\n\n", b"# nothing\n", b"#\n# EOF\n", "", "\r\n"])
def test_a_page_without_samples(body: bytes | str) -> None:
    page = Reader().read(body)
    assert (page.layout.series, page.values, page.samples, page.non_finite) == ((), [], 0, 0)


def test_crlf_and_a_missing_last_newline() -> None:
    assert found(Reader().read(b"# c\r\na 1\r\n\r\nb 2\r\n")) == found(Reader().read("a 1\nb 2"))
    assert found(Reader().read("a 1\r\nb 2\r")) == found(Reader().read("a 1\nb 2"))


def test_eof_ends_the_page() -> None:
    reader = Reader()
    assert found(reader.read("a 1\n# EOF\n")) == found(reader.read("a 1\n"))
    assert reader.read("a 1\n# EOF of what\nb 1\n").samples == 2
    with pytest.raises(ExpositionError, match="line 3: a sample after # EOF"):
        reader.read("a 1\n# EOF\nb 1\n")


def test_type_and_help_are_not_trusted() -> None:
    body = '# TYPE vllm:x counter\n# HELP vllm:x \\q "{\n# TYPE\n# TYPE x x x x\nvllm_x_bucket 1\n'
    assert found(Reader().read(body)) == [("vllm_x_bucket", (), "1.0")]


def test_a_series_twice_stays_twice() -> None:
    assert found(Reader().read('a{b="c"} 1\na{b="c"} 2\n')) == [
        ("a", (("b", "c"),), "1.0"),
        ("a", (("b", "c"),), "2.0"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6,
        "up{" * 300_000,
        'up{a="' + "\\" * 10**6,
        'up{a="b"' + ' ,"' * 300_000,
        " \t" * 500_000 + "#{",
    ],
)
def test_no_line_takes_more_than_linear_time(text: str) -> None:
    start = time.process_time()
    for line in (text, f"{text} 1", f"up{{{text}}} 1", f"up 1 # {{{text}"):
        outcome(Reader(), line)
    assert time.process_time() - start < 2


# One reader, page after page


def test_the_layout_is_one_object_while_the_series_stay_the_same() -> None:
    reader = Reader(lambda name: name != "c")
    first = reader.read('a{b="1"} 1\nc 3\n')
    moved = reader.read('a{b="1"} 2\nc 3\n')
    assert moved.layout is first.layout
    assert (first.values, moved.values) == ([1.0], [2.0])
    assert reader.read('# HELP a more\na{b="1"}  2 17\nc 4\nc 5\n').layout is first.layout
    with pytest.raises(ExpositionError):
        reader.read('a{b="2"} 1\nbroken')
    assert reader.read('a{b="1"} 5\n').layout is first.layout
    other = reader.read('a{b="1"} 1\na{b="2"} 1\n')
    assert other.layout is not first.layout
    assert other.layout.series == (Series("a", (("b", "1"),)), Series("a", (("b", "2"),)))
    assert reader.read('a{b="2"} 1\na{b="1"} 1\n').layout is not other.layout


def test_the_layout_outlives_the_memo() -> None:
    reader = Reader(max_memo=1)
    first = reader.read("a 1\nb 1\nc 1\n")
    assert reader.read("a 1\nb 1\nc 1\n\n").layout is first.layout
    assert reader.read("a 1\nb 1\nc 1\n").layout is first.layout


def test_what_a_caller_does_to_the_values_stays_there() -> None:
    reader = Reader()
    reader.read("a 1\nb 2\n").values[0] = 99.0
    assert reader.read("a 1\nb 2\n").values == [1.0, 2.0]
    reader.read("a 1\nb 3\n").values.clear()
    assert reader.read("a 1\nb 4\n").values == [1.0, 4.0]


def test_wanted_is_asked_once_for_each_name() -> None:
    asked: list[str] = []

    def wanted(name: str) -> bool:
        asked.append(name)
        return name.startswith("vllm:")

    reader = Reader(wanted)
    body = 'vllm:a{x="1"} 1\nvllm:a{x="2"} 2\npython_info NaN\nvllm:b Inf\n{"my.name",a="b"} 1\n'
    for text in (body, body.replace("2\n", "7\n"), body + "vllm:c 1\n", "python_info 2\n" + body):
        page = reader.read(text)
    assert sorted(asked) == ["my.name", "python_info", "vllm:a", "vllm:b", "vllm:c"]
    assert found(page) == [
        ("vllm:a", (("x", "1"),), "1.0"),
        ("vllm:a", (("x", "2"),), "2.0"),
        ("vllm:b", (), "inf"),
    ]
    assert (page.samples, page.non_finite) == (6, 1)


def test_what_nobody_wants_must_still_be_a_sample() -> None:
    reader = Reader(lambda name: False)
    assert reader.read("a 1\n").samples == 1
    for line in ("a one", "a", 'a{b="c} 1', "a 1 2 3", 'a{b="c",b="c"} 1'):
        with pytest.raises(ExpositionError):
            reader.read(f"{line}\n")
        with pytest.raises(ExpositionError):
            reader.read(f"a 1\n{line}\n")


def test_numbers_that_nobody_wants_change_nothing() -> None:
    reader = Reader(lambda name: name == "a")
    reader.read("b 0\na 1\nb 2\n")
    for body in ("b 5\na 1\nb NaN\n", "b 6\na 1\nb 7\n# more\n"):
        page = reader.read(body)
        assert (page.values, page.samples, page.non_finite) == ([1.0], 3, 0)


def test_an_exception_of_wanted_is_not_dressed_up() -> None:
    def wanted(name: str) -> bool:
        raise KeyError(name)

    with pytest.raises(KeyError):
        Reader(wanted).read("a 1\n")


@pytest.mark.parametrize("bad", ["", "bad{\n", 'bad{label="unheard of %d",b="c",b="c"} 1\n'])
def test_series_that_come_and_go_do_not_pile_up(bad: str) -> None:
    reader = Reader(max_memo=200)

    def scrapes(first: int) -> int:
        for number in range(first, first + 1_500):
            outcome(
                reader,
                f'lora_{number}{{adapter="adapter-{number}",pid="{number}"}} 1\n'
                + (bad and bad.replace("%d", str(number))),
            )
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = scrapes(0)
        after = scrapes(10_000)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, "3,000 series of some 400 bytes each, and none of them may stay"


# Captured pages and cases


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captured_pages_read_as_prometheus_client_reads_them(path: Path) -> None:
    text = path.read_text()
    reader, rng = Reader(), random.Random(1)
    want = sorted(expected(classic_families(text)))
    cold = reader.read(text.encode())
    assert sorted(found(cold)) == want
    assert cold.samples == len(want)
    assert found(reader.read(text)) == found(cold)
    for _ in range(3):
        text = with_new_values(text, rng)
        warm = reader.read(text)
        assert warm.layout is cold.layout
        assert found(warm) == found(Reader().read(text))
        assert sorted(found(warm)) == sorted(expected(classic_families(text)))
    assert found(reader.read(text.replace("\n", "\r\n"))) == found(warm)
    assert found(reader.read(text + "# EOF\n")) == found(warm)


def test_there_are_captured_pages() -> None:
    assert len(CAPTURES) >= 21


def test_case_a1_one_nan_does_not_cost_the_page() -> None:
    text = (CASES / "A1" / "nan_and_inf.prom").read_text()
    page = Reader().read(text)
    assert sorted(found(page)) == sorted(expected(classic_families(text)))
    values = by_series(page)
    assert values["vllm:num_requests_running", "0"] == 3
    assert values["vllm:num_requests_waiting", "0"] == 1
    assert values["vllm:kv_cache_usage_perc", "0"] == 0.42
    assert [values["vllm:request_queue_time_seconds_bucket", le] for le in ("0.3", "1.0", "5.0", "+Inf")] == [
        80,
        95,
        100,
        100,
    ]
    assert page.non_finite == 3
    assert found(Reader().read(text.rstrip() + "\n# EOF\n")) == found(page)


@pytest.mark.parametrize(
    "path", sorted(CASES.glob("A[234]/*.prom")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_case_pages_read_as_prometheus_client_reads_them(path: Path) -> None:
    text = path.read_text()
    assert sorted(found(Reader().read(text))) == sorted(expected(classic_families(text)))


@pytest.mark.parametrize(
    "name", ["valid_body_html_type", "valid_body_no_type", "wrong_exporter", "login_page", "empty_body"]
)
def test_case_a5_not_every_body_is_a_page(name: str) -> None:
    body = (CASES / "A5" / f"{name}.http").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    if name == "login_page":
        with pytest.raises(ExpositionError, match=r"line 1: .*DOCTYPE"):
            Reader().read(body)
    else:
        assert Reader().read(body).samples == {"empty_body": 0, "wrong_exporter": 2}.get(name, 3)


def test_case_a6_exemplars_are_no_values_and_no_timestamps() -> None:
    text = (CASES / "A6" / "exemplars.prom").read_text()
    reader = Reader()
    page = reader.read(text)
    values = by_series(page)
    assert values["vllm:request_success_total", "0"] == 42
    assert values["vllm:e2e_request_latency_seconds_bucket", "1.0"] == 40
    assert values["vllm:e2e_request_latency_seconds_count", "0"] == 42
    assert values["vllm:iteration_tokens_total_count", "0"] == 1000
    assert values["vllm:iteration_tokens_total_sum", "0"] == 5200
    assert not [name for (name, _), value in values.items() if value > 1e9 and not name.endswith("_created")]
    moved = text.replace("} 42.0 # {", "} 43.0 # {").replace("0.67\n", "0.68 1764000001.1\n")
    again = reader.read(moved)
    assert again.layout is page.layout
    assert by_series(again) == values | {("vllm:request_success_total", "0"): 43}


# Against prometheus_client and against what was meant


@settings(max_examples=300, deadline=None)
@given(printed_pages(open_metrics=False), st.randoms(use_true_random=False))
def test_classic_pages_read_as_prometheus_client_reads_them(text: str, rng: random.Random) -> None:
    reader = Reader()
    assert sorted(found(reader.read(text.encode()))) == sorted(expected(classic_families(text)))
    for _ in range(2):
        text = with_new_values(text, rng)
        assert outcome(reader, text) == outcome(Reader(), text)
        assert sorted(found(reader.read(text))) == sorted(expected(classic_families(text)))


@settings(max_examples=300, deadline=None)
@given(printed_pages(open_metrics=True), st.randoms(use_true_random=False))
def test_openmetrics_pages_read_as_prometheus_client_reads_them(text: str, rng: random.Random) -> None:
    reader = Reader()
    strict = openmetrics_families(text)  # type: ignore[no-untyped-call]
    assert sorted(found(reader.read(text.encode()))) == sorted(expected(strict))
    moved = with_new_values(text, rng)  # no page that the strict parser would take: its buckets may fall
    assert outcome(reader, moved) == outcome(Reader(), moved)


@settings(max_examples=300, deadline=None)
@given(st.lists(odd_lines(), max_size=5), st.lists(odd_lines(), max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_odd_lines_are_read_as_they_were_meant(
    one: list[tuple[str, Found]], other: list[tuple[str, Found]], newline: str
) -> None:
    reader = Reader()
    for lines in (one, other, one + other, other):
        page = reader.read(newline.join(line for line, _ in lines))
        assert found(page) == [meant for _, meant in lines]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_bytes_are_a_page_or_an_exposition_error(body: bytes | str) -> None:
    reader = Reader()
    reader.read('a 1\nb{c="d"} 2\n')
    assert outcome(reader, body) == outcome(Reader(), body)


def test_broken_lines_are_refused_or_read_as_prometheus_client_reads_them() -> None:
    for _, bad in mutations(seed=5, count=1_000):
        for line in bad.decode(errors="replace").split("\n"):
            got = outcome(Reader(), line)
            # That client stumbles over broken exemplars, and takes more for a sample than the format does.
            with suppress(ValueError, IndexError):
                want = expected(classic_families(line))
                assert isinstance(got, str) or got[0] == want, line


def test_broken_pages_are_read_alike_fresh_and_warm() -> None:
    read, refused = check_mutations(seed=20261129, count=2_000)
    assert min(read, refused) > 200
