"""How many bytes of text make a token: learned per category and tenant from the usage that engines report.

    estimate   tokens = ceil(bytes / max(c - gamma * sigma, c / 2))
    learning   g = max(1 - beta, 1 / (n + 1));  sigma += g * (|o - c| - sigma);  c += g * (o - c)

with o = bytes / tokens of one request, n requests seen so far in this class, c = 4.0 at the start.
arXiv 2604.08075 has the rule with the constant gain 1 - beta; beta and gamma are not given there, 0.95 fits
its figures. With a constant gain the start still weighs 0.95^50 = 8 % after 50 requests, which is 7 % of a
CJK ratio of 2.0; so the first 19 requests are averaged with the start (gain 1 / (n + 1)) and the start
weighs 1 % after 50. A lower ratio means more tokens, so taking sigma off is the careful side; it never
more than doubles the estimate.

A tenant that is new in a category starts from what the category has learned over all tenants.
"""

import math
import re
from enum import StrEnum

from controlplane.gateway.admission.lru import Lru

START_RATIO = 4.0
"""Bytes per token before anything is learned."""
_LEAST_RATIO, _LARGEST_RATIO = 0.5, 16.0
"""A request outside of these is no text that a tokenizer saw whole (a cut prompt, hidden history)."""
_LEAST_BYTES = 64
"""Shorter texts say more about the chat template than about the language."""
_MOST_CLASSES = 8192
_EVERYBODY = ""


class Category(StrEnum):
    """A kind of text, because code and other scripts have fewer bytes a token than prose."""

    PROSE = "prose"
    CODE = "code"
    SCRIPT = "script"  # mostly characters outside of ASCII: CJK, Cyrillic, Arabic, ...


_CODE_MARKS = re.compile(r'[{}\[\]()<>;=_\\/|&#$*+`"]')
_SAMPLE_CHARACTERS = 512


def category_of(text: str) -> Category:
    """The category of a text, by samples of its beginning, middle and end."""
    if len(text) <= 3 * _SAMPLE_CHARACTERS:
        sample = text
    else:
        middle = len(text) // 2
        sample = text[:_SAMPLE_CHARACTERS] + text[middle:][:_SAMPLE_CHARACTERS] + text[-_SAMPLE_CHARACTERS:]
    if not sample:
        return Category.PROSE
    if len(sample.encode("ascii", "ignore")) < 0.8 * len(sample):
        return Category.SCRIPT
    return Category.CODE if len(_CODE_MARKS.findall(sample)) > 0.06 * len(sample) else Category.PROSE


class _Ratio:
    """Bytes per token of one class, and its mean absolute deviation."""

    __slots__ = ("bytes_per_token", "deviation", "samples")

    def __init__(self, start: float) -> None:
        self.bytes_per_token = start
        self.deviation = 0.0
        self.samples = 0

    def learn(self, observed: float, beta: float) -> None:
        self.samples += 1
        gain = max(1 - beta, 1 / (self.samples + 1))
        self.deviation += gain * (abs(observed - self.bytes_per_token) - self.deviation)
        self.bytes_per_token += gain * (observed - self.bytes_per_token)

    def careful(self, gamma: float) -> float:
        return max(self.bytes_per_token - gamma * self.deviation, self.bytes_per_token / 2)


class SizeCalibration:
    """The ratios of all classes. `beta` is the weight of the past, `gamma` how many deviations are taken off.

    Holds at most 8,192 classes; those not used for longest are forgotten.
    """

    def __init__(self, beta: float = 0.95, gamma: float = 1.0) -> None:
        self._beta = beta
        self._gamma = gamma
        self._ratios: Lru[tuple[Category, str], _Ratio] = Lru(_MOST_CLASSES)

    def bytes_per_token(self, category: Category, tenant: str) -> float:
        """The careful ratio for the next request of a tenant."""
        ratio = self._ratios.get((category, tenant)) or self._ratios.get((category, _EVERYBODY))
        return START_RATIO if ratio is None else ratio.careful(self._gamma)

    def tokens(self, text_bytes: int, category: Category, tenant: str) -> int:
        """Tokens that so many bytes will be, on the careful side."""
        return math.ceil(text_bytes / self.bytes_per_token(category, tenant))

    def learn(self, category: Category, tenant: str, text_bytes: int, tokens: int) -> None:
        """Take in that `text_bytes` of text were `tokens` tokens. Too small or odd a text teaches nothing."""
        if text_bytes < _LEAST_BYTES or tokens < 1:
            return
        observed = text_bytes / tokens
        if not _LEAST_RATIO <= observed <= _LARGEST_RATIO:
            return
        everybody = self._ratios.make((category, _EVERYBODY), lambda: _Ratio(START_RATIO))
        own = self._ratios.make((category, tenant), lambda: _Ratio(everybody.bytes_per_token))
        own.learn(observed, self._beta)
        if own is not everybody:
            everybody.learn(observed, self._beta)
