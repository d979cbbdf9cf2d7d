"""Link the words of the glossary on the pages of the documentation."""

import os
import re
from pathlib import Path

_ENTRY = re.compile(r"^\*\*([A-Z][\w ]+)\*\*:", re.M)
# code, headings, links, pictures and HTML, where no link may stand
_OTHER = re.compile(
    r"(^ *```.*?^ *```|^(?:    |#).*?$|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<!--.*?-->|<[^>]+>)",
    re.M | re.S,
)
# Words such as `run` and `point` are also verbs. After one of these they are nouns.
_BEFORE = "a|an|the|each|every|this|that|one|of|all|two|past|between|whole"


def link_glossary(folder: Path) -> None:
    """Link the first use of each word on each page below FOLDER to docs/glossary.md."""
    glossary = folder / "docs/glossary.md"
    text = glossary.read_text()
    words = _ENTRY.findall(text)
    glossary.write_text(
        _ENTRY.sub(lambda match: f'<a id="{_anchor(match[1])}"></a>{match[0]}', text)
    )
    for page in folder.rglob("*.md"):
        if page != glossary:
            where = os.path.relpath(glossary, page.parent)
            page.write_text(add_links(page.read_text(), words, where))


def add_links(text: str, words: list[str], where: str) -> str:
    """Return the Markdown with a link to WHERE at the first use of each word as a noun."""
    forms = {form: _anchor(word) for word in words for form in _forms(word.lower())}
    longest = "|".join(sorted(map(re.escape, forms), key=len, reverse=True))
    pattern = re.compile(rf"\b({_BEFORE})(\s+)({longest})\b(?!-)", re.I)
    words_seen: set[str] = set()

    def link(match: re.Match[str]) -> str:
        anchor = forms[match[3].lower()]
        if anchor in words_seen:
            return match[0]
        words_seen.add(anchor)
        return f"{match[1]}{match[2]}[{match[3]}]({where}#{anchor})"

    parts = _OTHER.split(text)
    return "".join(part if i % 2 else pattern.sub(link, part) for i, part in enumerate(parts))


def _forms(word: str) -> tuple[str, str]:
    """Return the singular and the plural."""
    if word.endswith("y"):
        return word, f"{word[:-1]}ies"
    return word, word if word.endswith("ies") else f"{word}es" if word.endswith(
        "ch"
    ) else f"{word}s"


def _anchor(word: str) -> str:
    return word.lower().replace(" ", "-")
