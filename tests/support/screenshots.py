"""`make screenshots`: the console's pages as pictures for the documentation, from a party with simulated jobs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.browser import PHONE, Watched, launched
from support.operators import busy_party, served


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as root,
        busy_party(Path(root), n=2000) as made,
        served(made.service) as (console, link),
        launched() as browser,
    ):
        components = made.service.waiting()[0].name
        with Watched(browser, width=1000, height=700) as seen:
            seen.open(link)
            for name, path, width, height in (
                ("overview", "", 1160, 640),
                ("request", f"requests/{components}", 900, 1440),
                ("budget", "budget", 900, 820),
                ("transcript", "transcript", 1160, 560),
            ):
                seen.page.set_viewport_size({"width": width, "height": height})
                seen.open(console.origin + console.base + path)
                seen.page.screenshot(path=folder / f"console-{name}.png")
        with Watched(browser, width=PHONE, height=760, dark=True) as seen:
            seen.open(console.new_link())
            seen.open(f"{console.origin}{console.base}runs")
            seen.page.screenshot(path=folder / "console-runs-dark-phone.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
