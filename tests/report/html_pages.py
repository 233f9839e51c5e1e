"""A parser of pages for tests without a browser."""

import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags, attributes, text and scripts of a page; unbalanced tags are an error."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.scripts, self.open = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs).get("type", ""), ""])

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def data(self):
        """Data blocks that the script of the page reads."""
        return [json.loads(content) for kind, content in self.scripts if kind == "application/json"]

    @property
    def programs(self):
        """Scripts that a browser would run."""
        return [content for kind, content in self.scripts if kind != "application/json"]
