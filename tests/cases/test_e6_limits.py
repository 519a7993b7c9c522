"""Case E6: how much may this request write? Reservation per row, settled exactly once."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.ledger import Ledger
from controlplane.gateway.admission.output_quantile import OutputKey, OutputQuantiles
from controlplane.gateway.admission.output_size import OutputCeiling, OutputSettings, need, output_size
from controlplane.gateway.admission.prompt_size import Basis, PromptSize
from controlplane.gateway.admission.size_calibration import Category
from controlplane.gateway.admission.usage import read_usage

CASE = json.loads((Path(__file__).parent / "data" / "E6" / "limits.json").read_text())
GIVEN = CASE["given"]
PROMPT = PromptSize(GIVEN["prompt_tokens"], 1, Basis.TOKENIZER, True, Category.PROSE, 0, 0, 0)
SETTINGS = OutputSettings(unlearned_tokens=GIVEN["default_output_reserve"])
READ_AS_200 = 1200


@pytest.mark.parametrize("row", CASE["rows"], ids=lambda row: json.dumps(row["fields"]))
def test_E6_reservation(row: dict[str, Any]) -> None:
    endpoint = Endpoint(row["path"])
    nothing_learned = OutputQuantiles().learned_tokens(OutputKey("acme", row["path"]))
    output = output_size(endpoint, row["fields"], SETTINGS, OutputCeiling(), nothing_learned)
    # The case allows two readings of "200"; we read it as vLLM does, so that a ceiling holds for it too.
    wanted = READ_AS_200 if row["fields"].get("max_tokens") == "200" else row["reserve"]
    assert need(PROMPT, output, GIVEN["max_model_len"]).tokens == wanted
    assert output.refusal is None
    assert not output.edits


def test_E6_settlement_is_charged_once() -> None:
    settle = CASE["settle"]
    ledger = Ledger(extension_tokens=256)
    ledger.budget_tokens = 100_000
    held = ledger.reserve(settle["reserved"], 1, settle["reserved"])
    usage = read_usage(settle["usage"])
    assert usage is not None
    first, second = (ledger.settle(held, usage.tokens) for _ in range(2))
    assert first is not None
    assert (first.charged_tokens, first.returned_tokens) == (settle["charged"], settle["returned"])
    assert second is None
    assert ledger.reserved_tokens == 0
