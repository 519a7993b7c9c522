"""The forms of orders: each says what will happen, asks for a reason, and is confirmed before it is sent.

The browser sends an order to the API as any other client does, with the token in a header; nothing here
keeps the token or looks at it.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from htpy import Element, Node, Renderable, a, button, dialog, form, h1, input, label, main, option, p, select  # noqa: A004

from controlplane.api.page.document import shell
from controlplane.api.page.places import Kind
from controlplane.terminal.figures import plain

_UNTIL = ((900.0, "15 minutes"), (3600.0, "1 hour"), (8 * 3600.0, "8 hours"))


class About(NamedTuple):
    """What an order is about; empty where it is about the fleet. `value` is what holds there now."""

    scope: str = ""
    name: str = ""
    setting: str = ""
    value: str = ""


class Order(NamedTuple):
    """One kind of order. `sentence` is what is confirmed; `{field}` stands for what was put in there."""

    title: str
    method: Literal["POST", "PUT", "DELETE"]
    path: str
    says: str
    sentence: str
    verb: str


def orders(about: About) -> dict[Kind, Order]:
    """All kinds of orders, in words about this thing."""
    thing = f"{about.scope} {about.name}"
    return {
        "hold": Order(
            "Hold everything",
            "POST",
            "/api/v1/hold",
            "Every actuator of the whole fleet stops within a tick. What was done stays as it is: limits, "
            "shares and marks on nodes. It survives restarts, and ends when somebody releases it.",
            "Hold every actuator of the whole fleet?",
            "Hold everything",
        ),
        "release": Order(
            "Release the hold",
            "DELETE",
            "/api/v1/hold",
            "What is in enforce acts again with the next tick.",
            "End the hold? What is in enforce acts again.",
            "Release",
        ),
        "limit": Order(
            f"Set the limit of {thing}",
            "PUT",
            "/api/v1/overrides",
            "So many sequences may a replica hold at once, whatever the law says. The law goes on from there "
            "once this is taken back or over. It reaches gateways only where the limit is enforced.",
            f"Set the limit of {thing} to {{value}} sequences, {{until}}?",
            "Set the limit",
        ),
        "mode": Order(
            f"Observe or enforce: {thing}",
            "PUT",
            "/api/v1/overrides",
            "Observe: decisions are written down and nothing is touched; what was done stays as it is. "
            "Enforce: decisions are carried out, whatever the configuration says.",
            f"Make {thing} {{value}}, {{until}}?",
            "Set the mode",
        ),
        "node": Order(
            f"The GPUs of {thing}",
            "PUT",
            "/api/v1/overrides",
            "Your word stands before every verdict on its GPUs until it is taken back or over.",
            f"Say of {thing}: {{value}}, {{until}}?",
            "Say so",
        ),
        "clear": Order(
            f"Take back {about.setting} of {thing}",
            "DELETE",
            "/api/v1/overrides",
            "The laws and the configuration hold again.",
            f"Take back what was ordered of {about.setting} of {thing}?",
            "Take it back",
        ),
    }


_SETTINGS: dict[Kind, str] = {"limit": "limit", "mode": "mode", "node": "quarantine"}
_VALUES: dict[Kind, tuple[tuple[str, str], ...]] = {
    "mode": (("observe", "observe"), ("enforce", "enforce")),
    "node": (
        ("release", "it is well, release it"),
        ("never", "hands off, never take it out"),
        ("allow", "it may be taken out again"),
    ),
}


def page(kind: Kind, about: About, now: float, *, may_write: bool) -> Renderable:
    """The form of one order at Unix time `now`. `may_write`: whether any token opens the API."""
    order = orders(about)[kind]
    closed = "Nothing can be ordered here: no token is configured (api.token_file or api.token_env)."
    return shell(
        f"controlplane: {plain(order.title)}",
        main(".order")[
            p[a(href="/")["◂ back to the fleet"]],
            h1[plain(order.title)],
            p[order.says],
            _form(kind, order, about, now) if may_write else p(".bad")[closed],
            may_write and _confirmation(order),
        ],
    )


def _form(kind: Kind, order: Order, about: About, now: float) -> Node:
    return form(
        data_method=order.method, data_path=order.path, data_sentence=plain(order.sentence), autocomplete="on"
    )[
        _subject(kind, about),
        _value(kind, about),
        kind in _SETTINGS and _field("how long", _until(now)),
        order.method != "DELETE"
        and _field("reason", input(name="reason", required=True, maxlength="500", autocomplete="off")),
        _field("your name", input(name="by", required=True, maxlength="253", autocomplete="username")),
        _field("token", input(name="token", type="password", required=True, autocomplete="current-password")),
        p("#trouble.bad", role="alert"),
        button(".stop")[f"{order.verb}…"],
    ]


def _subject(kind: Kind, about: About) -> Sequence[Renderable]:
    """What the order is about, as it is sent; nothing of one about the fleet."""
    if not about.scope:
        return ()
    setting = _SETTINGS.get(kind, about.setting)
    sent = {"scope": about.scope, "name": about.name, "setting": setting}
    return [input(type="hidden", name=key, value=value) for key, value in sent.items()]


def _value(kind: Kind, about: About) -> Node:
    if kind == "limit":
        field = input(
            name="value",
            type="number",
            required=True,
            min="1",
            max="1000000",
            step="1",
            value=about.value or None,
        )
        return _field("sequences at once", field)
    values = _VALUES.get(kind)
    if values is None:
        return None
    return _field("to", select(name="value")[[option(value=value)[words] for value, words in values]])


def _until(now: float) -> Element:
    ends = [option(value=f"{now + seconds:.0f}")[f"for {words}"] for seconds, words in _UNTIL]
    return select(name="until")[ends, option(value="")["until it is taken back"]]


def _field(words: str, field: Node) -> Element:
    return label[words, " ", field]


def _confirmation(order: Order) -> Node:
    return dialog(aria_label="Confirm")[
        p,
        form(method="dialog")[
            button(value="no", autofocus=True)["No, go back"],
            " ",
            button(".stop", value="yes")[f"Yes: {order.verb}"],
        ],
    ]
