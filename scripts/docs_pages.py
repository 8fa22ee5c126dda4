"""Write the pages of the site that are not written by hand into docs/generated: `make site` calls it.

    python scripts/docs_pages.py

Commands and settings, the HTTP routes, and the notebooks as pages. What an earlier run left there is removed.
"""

import json
import shutil
import sys
from pathlib import Path

from npm.cli.reference import command_pages, http_page, notebook_page

DOCS = Path(__file__).parents[1] / "docs"


def main(docs: Path = DOCS) -> int:
    """Write all pages; returns 0."""
    pages = command_pages()
    pages["http.md"] = http_page(json.loads((docs / "openapi.json").read_text("utf-8")))
    for script in sorted((docs / "notebooks").glob("*.py")):
        pages[f"notebooks/{script.stem}.md"] = notebook_page(script.read_text("utf-8"))
    out = docs / "generated"
    shutil.rmtree(out, ignore_errors=True)
    for name, page in pages.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(page, "utf-8")
    sys.stdout.write(f"{len(pages)} pages are in {out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
