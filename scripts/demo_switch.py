"""The demo's switch: control on is a person's word, an override of the pool's mode, taken back for off.

Nothing is restarted for it; whoever else has the token (the status page, curl) can do the same.
"""

import getpass
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import yaml
from demo_site import CONFIG, FOLDER, POOL, TOKEN, DemoError, is_running_here

KEY = "c"


def is_on(fleet: dict[str, Any]) -> bool:
    """Whether control is on, from the API's answer about the `fleet`."""
    overrides = fleet["orders"]["overrides"] if fleet else []
    return any((o["name"], o["setting"], o["value"]) == (POOL, "mode", "enforce") for o in overrides)


def switch(on: bool) -> None:
    """Turn control on or off in the demo of this folder. Raises DemoError."""
    if not is_running_here():
        raise DemoError(f"no demo runs in this folder ({FOLDER})")
    url = f"http://{yaml.safe_load(CONFIG.read_text())['api']['listen']}/api/v1/overrides"
    order = {"scope": "pool", "name": POOL, "setting": "mode", "by": getpass.getuser()}
    if on:
        body = json.dumps({**order, "value": "enforce", "reason": "the demo's switch"}).encode()
        request = urllib.request.Request(url, body, method="PUT")
    else:
        request = urllib.request.Request(f"{url}?{urlencode(order)}", method="DELETE")  # noqa: S310 - ours, and http
    request.add_header("Authorization", f"Bearer {TOKEN.read_text()}")
    try:
        urllib.request.urlopen(request, timeout=5.0).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        if on or error.code != 404:  # nothing to take back is off as well
            raise DemoError(f"control cannot be switched: {error.read().decode()}") from None
    except OSError as error:
        raise DemoError(f"no demo answers at {url}: {error}") from None
