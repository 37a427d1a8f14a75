"""JSON documents to rewrite, and what is to be done to each; written for this project."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Rewriting(NamedTuple):
    """A document, and the change that is asked for."""

    task: str
    document: Any

    @property
    def text(self) -> str:
        return json.dumps(self.document, indent=2)


def _rows(keys: str, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(keys.split(), row, strict=True)) for row in rows]


REWRITINGS = (
    Rewriting(
        'Rename the key "price" to "price_eur" everywhere.',
        _rows(
            "id name price stock",
            (101, "copper kettle", 48.5, 12),
            (102, "tile cutter", 89.0, 3),
            (103, "rope, 20 m", 17.25, 40),
            (104, "brass hook", 2.4, 310),
            (105, "pipe bender", 132.0, 2),
        ),
    ),
    Rewriting(
        'Add the field "checked": true to each entry.',
        _rows(
            "station departure platform",
            ("Belmar", "22:40", 3),
            ("Hollin", "01:05", 1),
            ("Tarn", "03:32", 2),
            ("Orsova", "05:50", 4),
            ("Coast", "07:15", 1),
        ),
    ),
    Rewriting(
        'Remove the field "phone" from each person.',
        _rows(
            "name email phone",
            ("Ilse Varga", "ilse@ammer.example", "555-0181"),
            ("Jonna Aalto", "jonna@skerra.example", "555-0134"),
            ("Piet Doorne", "piet@karrow.example", "555-0102"),
            ("Wilma Doorne", "wilma@karrow.example", "555-0107"),
        ),
    ),
    Rewriting(
        'Change the value of "enabled" to false for every service and change nothing else.',
        {
            "services": _rows(
                "name host port enabled",
                ("mail", "mail.internal", 2525, True),
                ("search", "search.internal", 9200, True),
                ("cache", "cache.internal", 6379, True),
                ("queue", "queue.internal", 5672, True),
            )
        },
    ),
    Rewriting(
        'Rename "lat" to "latitude" and "lon" to "longitude".',
        _rows(
            "place lat lon",
            ("Karrow Point", 54.3312, 7.9021),
            ("Lake Ammer", 48.0021, 11.1203),
            ("Hessel plateau", 51.2245, 9.8807),
            ("Sarn", 46.7713, 8.2290),
            ("Immerau", 49.5102, 10.4438),
        ),
    ),
    Rewriting(
        'Add the field "currency": "EUR" after "total" in every order.',
        _rows(
            "order customer total",
            ("A-1009", "Quill Street Library", 412.0),
            ("A-1010", "Tellan Cooperative", 87.9),
            ("A-1011", "Mirador Gardens", 1290.5),
            ("A-1012", "Norrby School", 64.0),
        ),
    ),
    Rewriting(
        'Put every object into a list under the key "birds" and keep all fields.',
        _rows(
            "species pairs first_seen protected",
            ("grey heron", 158, 1987, True),
            ("red kite", 12, 2004, True),
            ("kingfisher", 7, 1999, True),
            ("mallard", 240, 1987, False),
        ),
    ),
    Rewriting(
        'Write the value of "status" in capital letters and change nothing else.',
        _rows(
            "task owner status days",
            ("paint the tower", "Anselm", "open", 4),
            ("repair the lamp", "Wilma", "done", 2),
            ("order rope", "Piet", "open", 1),
            ("print tickets", "Jonna", "waiting", 6),
            ("count herons", "Ilse", "done", 1),
        ),
    ),
    Rewriting(
        'Rename the key "temp" to "temperature_c".',
        _rows(
            "hour temp wind_ms rain_mm",
            ("06:00", 3.5, 4.1, 0.0),
            ("09:00", 6.2, 5.0, 0.2),
            ("12:00", 9.8, 6.7, 0.0),
            ("15:00", 10.4, 7.2, 1.4),
            ("18:00", 7.1, 5.5, 0.6),
        ),
    ),
    Rewriting(
        'Add the field "language": "en" to each book and keep the order.',
        _rows(
            "title author year pages",
            ("A Loaf on the Table", "R. Immer", 1998, 212),
            ("Four Minutes Ahead", "S. Kolb", 2011, 340),
            ("The Painted Fish", "M. Ador", 2007, 188),
            ("Rope and Whistle", "W. Doorne", 1931, 256),
        ),
    ),
)
