"""What can be kept of samples on which a tick fails: one odd page must not cost the pages beside it."""

from collections.abc import Callable

import msgspec

from controlplane.signals.samples import Samples, Scrape, ScrapeFailure

_MOST_TRIES = 64  # ticks; one bad page among a thousand takes 20

Pages = tuple[Scrape | ScrapeFailure, ...]


def salvage(samples: Samples, works: Callable[[Samples], bool]) -> Samples:
    """The samples without the pages on which a tick fails, found by halving; `works` tries a tick.

    Where it is the GPU reports, they go, and all pages stay. The pages that stay work in groups; whether
    they work all together is for the caller to see.
    """
    if samples.gpus and works(msgspec.structs.replace(samples, gpus=())):
        return msgspec.structs.replace(samples, gpus=())
    tries = 0

    def kept(pages: Pages) -> Pages:
        nonlocal tries
        tries += 1
        if tries > _MOST_TRIES:
            return ()
        if works(msgspec.structs.replace(samples, scrapes=pages)):
            return pages
        if len(pages) <= 1:
            return ()
        half = len(pages) // 2
        return kept(pages[:half]) + kept(pages[half:])

    return msgspec.structs.replace(samples, scrapes=kept(samples.scrapes))
