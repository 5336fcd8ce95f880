"""docs/lab/design-map.md has every section of the two designs, and what it names is there."""

import re
from pathlib import Path

import pytest

from support import REPOSITORY

ROOT = REPOSITORY
DOCS = ROOT / "docs" / "lab"
PAGE = (DOCS / "design-map.md").read_text()
FOLDERS = (
    ROOT,
    ROOT / "python" / "everlong",
    *(room / "include" / "everlong" for room in sorted((ROOT / "cpp").iterdir())),
)

# The numbered headings of both designs. Two headings of the second one count anew within 3.2.3.
SECTIONS = {
    "The design for four MI100 GPUs": """
        1 2 2.1 2.2 2.3 2.4 3 3.1 3.1.1 3.1.2 3.1.3
        3.2 3.2.1 3.2.1.1 3.2.1.2 3.2.2 3.2.2.1 3.2.2.2 3.2.3 3.2.3.1 3.2.3.2 3.2.3.3 3.2.4 3.2.5
        3.3 3.3.1 3.3.1.1 3.3.1.2 3.3.1.3 3.3.1.4 3.3.2 3.3.2.1 3.3.2.2 3.3.2.3 3.3.3
        3.4 3.4.1 3.4.2 3.4.3 4 5""",
    "The design for one consumer GPU": """
        1 2 2.1 2.2 2.3 2.4 3 3.1 3.1.1 3.1.2 3.1.3 3.2 3.2.1 3.2.2 3.2.3 3.2.3(1) 3.2.3(2) 3.3 3.3.1""",
}


def rows(design: str) -> list[list[str]]:
    """The cells of each section's row in one design's table."""
    table = PAGE.split(f"## {design}\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def paths(text: str) -> set[str]:
    named = re.findall(r"`([^`\s]+)`", text)
    return {name for name in named if "/" in name or re.search(r"\.(py|h|cc|hip|md)$", name)}


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("design", SECTIONS)
def test_every_section_has_one_row(design: str) -> None:
    numbers = [re.match(r"[\d.]+(?: \(\d\))?", cells[0]) for cells in rows(design)]
    found = [number[0].replace(" ", "") for number in numbers if number is not None]
    assert found == SECTIONS[design].split()
    assert len(found) == len(rows(design))


@pytest.mark.parametrize("design", SECTIONS)
def test_every_row_says_what_where_and_how(design: str) -> None:
    for cells in rows(design):
        assert len(cells) == 6, cells[0]
        section, built, where, measured, default, _ = cells
        assert built, section
        if not where:
            assert built.startswith("See "), section
            continue
        assert paths(where), section
        assert "](" in measured or paths(measured), section
        assert default, section


@pytest.mark.parametrize("path", sorted(paths(PAGE)))
def test_every_path_is_there(path: str) -> None:
    assert any((folder / path).exists() for folder in FOLDERS)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_every_link_leads_somewhere(link: str) -> None:
    page, _, anchor = link.partition("#")
    assert (DOCS / page).is_file()
    assert not anchor or anchor in anchors(DOCS / page)
