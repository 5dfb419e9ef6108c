"""Checks HTML pages that are to be read offline; soarbook starts it in its private Python environment.

usage: pages.py FOLDER PAGE…. Prints a JSON list of texts, what is wrong with each page: something that a browser would load from elsewhere,
a link to a page or to a place in a page that is not there, a formula that was not rendered, a picture without a text in its place.
"""

import json
import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//|^\s*(?:https?|ftp):", re.I)
LOADS = {"script": ("src",), "img": ("src", "srcset"), "link": ("href",), "iframe": ("src", "srcdoc"), "video": ("src", "poster"), "audio": ("src",),
         "source": ("src", "srcset"), "track": ("src",), "object": ("data",), "embed": ("src",), "image": ("href", "xlink:href"), "use": ("href", "xlink:href"),
         "input": ("src",), "base": ("href",)}


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.problems, self.inside = set(), [], [], None

    def handle_starttag(self, tag, attrs):
        a = {name: value or "" for name, value in attrs}
        if tag in ("script", "style"):
            self.inside = tag
        if "id" in a:
            if a["id"] in self.ids and a["id"]:
                self.problems.append(f"two elements have the id {a['id']!r}")
            self.ids.add(a["id"])
        if tag == "a" and "href" in a:
            self.links.append(a["href"])
        for name in LOADS.get(tag, ()):
            if ELSEWHERE.search(a.get(name, "")):
                self.problems.append(f"<{tag}> loads {a[name][:100]}")
        self.css(a.get("style", ""))
        if tag == "img" and "alt" not in a:
            self.problems.append(f"<img> has no alt: {a.get('src', '')[:60]}")
        if tag == "code" and "soarbook-formula" in a.get("class", "").split():
            self.problems.append("a formula is not understood by latex2mathml; write it in simpler LaTeX")

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = None

    def handle_data(self, data):
        if self.inside == "style":
            self.css(data)
        elif self.inside == "script":
            for match in re.finditer(r"""(?:import\s*\(?|from|fetch\s*\(|\.src\s*=)\s*["'`](https?:)?//[^"'`]*""", data):
                self.problems.append(f"a script loads {match[0][:100]}")

    def css(self, text):
        for match in re.finditer(r"""(?:url\(|@import)\s*["']?\s*(?:https?:)?//[^"')\s]*""", text, re.I):
            self.problems.append(f"a style loads {match[0][:100]}")


def main(folder, names):
    pages = {}
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            pages[name] = Page()
            pages[name].feed(f.read())
    problems = []
    for name, page in pages.items():
        found = list(page.problems)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = unquote(parts.path) or name
            if target in pages:
                # As a browser does: the fragment as it stands, then decoded.
                if parts.fragment and not {parts.fragment, unquote(parts.fragment)} & pages[target].ids:
                    found.append(f"the link {link!r} leads to no place in {target}")
            elif not os.path.exists(os.path.join(folder, target)):
                found.append(f"the link {link!r} leads nowhere")
        problems += [f"{name}: {text}" for text in dict.fromkeys(found)]
    print(json.dumps(problems))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
