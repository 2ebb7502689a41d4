"""What a reader sees of a page, and what its elements are, from HTML alone."""

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "img"}
# Their text is shown by nothing, or only by a script.
UNSEEN = {"script", "style", "template", "noscript", "title", "option"}


class PageText(HTMLParser):
    """Collects elements and visible text; text inside `skip` (an id or a class) is left out."""

    def __init__(self, skip: str = "") -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._skip = skip
        # For every open element: its tag, and whether its text counts.
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag in VOID:
            return
        names = {attributes.get("id", ""), *attributes.get("class", "").split()}
        is_seen = self.is_seen and tag not in UNSEEN and not (self._skip and self._skip in names)
        self._open.append((tag, is_seen))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.is_seen and data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def is_seen(self) -> bool:
        return self._open[-1][1] if self._open else True


def read(html: str, *, skip: str = "") -> PageText:
    page = PageText(skip)
    page.feed(html)
    page.close()
    return page


def visible_text(html: str, *, skip: str = "") -> str:
    """Return the text that a reader sees, one line for each piece, narrow spaces as plain ones."""
    return "\n".join(read(html, skip=skip).texts).replace("\u202f", " ").replace("\u2060", "")
