"""A hook of MkDocs: the pages at the root of the repository join the site, and links to them and to code are rewritten.

In the repository a page links to `../CONTRIBUTING.md` or to a file of code; the site has the first as a page, and shows
the name of the second.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Where each page of the root stands on the site.
ROOT_PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links that leave docs/."""
    names = {uri: name for name, uri in ROOT_PAGES.items()}
    uri = page.file.src_uri
    source = ROOT / names[uri] if uri in names else Path(config.docs_dir) / uri
    return rewrite(markdown, source, uri, Path(config.docs_dir))


def rewrite(markdown: str, source: Path, uri: str, docs: Path) -> str:
    """Return the page with links as the site needs them. `source`: the file; `uri`: its place on the site."""

    def replace(link: re.Match[str]) -> str:
        target = (source.parent / link["path"]).resolve()
        if target.parent == ROOT and target.name in ROOT_PAGES:
            place = ROOT_PAGES[target.name]
        elif target.is_relative_to(docs):
            place = target.relative_to(docs).as_posix()
        else:
            # Code is not part of the site; a file that is not there stays a link, which MkDocs refuses.
            return link["text"] if target.exists() else link[0]
        way = os.path.relpath(place, Path(uri).parent)
        return f"{link['image']}[{link['text']}]({Path(way).as_posix()}{link['anchor'] or ''})"

    return _LINK.sub(replace, markdown)
