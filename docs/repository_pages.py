"""Files of the repository outside docs/ as pages of the site, so that links to them work there as on a code host.

A page links to a source file by its relative path, ``../src/logpolar/errors.py``. The site gets a page with the
file's text, of a folder a list of its files, of a Markdown file its content, and the link leads there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PLACES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that the navigation names; all others lie in source/."""

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".cff": "yaml"}
HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that a page links to, and for those that these link to."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {path: (ROOT / path).read_text() for path in PLACES}
    added = set(PLACES)
    waiting = list(texts.items())
    while waiting:
        page, text = waiting.pop()
        for target in {target_of(page, match[1]) for match in LINK.finditer(text)} - added:
            if not target.startswith("docs/") and (ROOT / target).exists():
                added.add(target)
                if has_links(target):
                    waiting.append((target, content_of(target)))
    for target in sorted(added):
        files.append(File.generated(config, place_of(target), content=content_of(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to places in the site."""
    place = page.file.src_uri
    path = {site: path for path, site in PLACES.items()}.get(place, f"docs/{place}")
    if place.startswith("source/"):
        path = place.removeprefix("source/").removesuffix(".md")
        if not has_links(path):
            return markdown

    def moved(match: re.Match[str]) -> str:
        target = place_of(target_of(path, match[1]))
        return f"]({posixpath.relpath(target, posixpath.dirname(place) or '.')}{match[2] or ''})"

    return LINK.sub(moved, markdown)


def has_links(path: str) -> bool:
    """Of Markdown and of lists of files; what looks like a link in a program's text is none."""
    return path.endswith(".md") or (ROOT / path).is_dir()


def target_of(page: str, link: str) -> str:
    """The path in the repository that a link on the page at another path means."""
    folder = page if (ROOT / page).is_dir() else posixpath.dirname(page)
    return posixpath.normpath(posixpath.join(folder, link))


def place_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PLACES.get(path) or f"source/{path}.md"


def content_of(path: str) -> str:
    """Markdown that shows a file or a folder of the repository."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(each.name for each in file.iterdir() if each.suffix == ".py")
        links = "\n".join(f"- [{name}]({name})" for name in inside)
        return f"{HIDDEN}# {path}/\n\n{links}\n"
    if file.suffix == ".md":
        return file.read_text()
    return f"{HIDDEN}# {path}\n\n``````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}``````\n"
