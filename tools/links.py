"""Find links of the documentation that lead nowhere: a file that is not there, or a heading that its page lacks.

python -m tools.links    # exit code 1 when a link is broken (make check)
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_ELSEWHERE = ("http://", "https://", "mailto:")
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.M | re.S)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def list_pages(root: Path) -> list[Path]:
    """Return every page of the documentation."""
    pages = [root / name for name in ROOT_PAGES if (root / name).exists()]
    return [*pages, *sorted((root / "docs").rglob("*.md"))]


def find_broken(root: Path) -> list[str]:
    """Return each broken link as `page: target, what is wrong`."""
    broken = []
    for page in list_pages(root):
        text = re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", page.read_text(encoding="utf-8")))
        broken += [
            f"{page.relative_to(root)}: {target}: {problem}"
            for target in _LINK.findall(text)
            if not target.startswith(_ELSEWHERE) and (problem := _find_problem(page, target))
        ]
    return broken


def _find_problem(page: Path, target: str) -> str:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return "there is no such file"
    if anchor and anchor not in list_anchors(file.read_text(encoding="utf-8")):
        return "the page has no such heading"
    return ""


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them; a repeated one gets a number."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?) *#* *$", _FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def main() -> int:
    """Print what is broken."""
    broken = find_broken(ROOT)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
