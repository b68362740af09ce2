"""The built-in prompts whose answers have a form: objects of fixed keys, filled from a text."""

from __future__ import annotations

import json
from typing import Any

from ..request import StructuredSpec


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """All of these keys, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def _number(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": most}


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_PERSON = _object(
    name=_text(40),
    age=_number(120),
    email=_text(40),
    kind={"enum": ["customer", "supplier", "employee"]},
    active={"type": "boolean"},
    address=_object(
        street=_text(40),
        city=_text(24),
        postal_code={"type": "string", "pattern": "^[0-9]{5}$"},
        country={"enum": ["DE", "FR", "IT", "NO", "SE"]},
    ),
)
_EVENT = _object(
    title=_text(60),
    date={"type": "string", "format": "date"},
    begins={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
    minutes=_number(600),
    place=_text(40),
    kind={"enum": ["meeting", "concert", "talk", "other"]},
    people=_list(_text(24), 1, 3),
    online={"type": "boolean"},
)
_ORDER = _object(
    order_number=_number(99999),
    customer=_text(40),
    items=_list(_object(product=_text(30), quantity=_number(99), price=_number(9999)), 2, 3),
    currency={"enum": ["EUR", "NOK", "USD"]},
    total=_number(99999),
    paid={"type": "boolean"},
)
_TICKET = _object(
    product=_text(30),
    version=_text(10),
    category={"enum": ["bug", "question", "feature", "billing"]},
    severity={"enum": ["low", "medium", "high"]},
    summary=_text(100),
    customer=_text(40),
    needs_reply={"type": "boolean"},
    language={"enum": ["en", "de", "fr"]},
)

# Parted by blank lines; two for each form.
_TEXTS = """
Anna Berg, 34 years old, has bought from us since 2019. She lives at Lindenstrasse 12 in 10969
Berlin, Germany, and her mail address is anna.berg@example.org.

The bread comes from Luca Rossi. He is 51, lives at Via Roma 8, 20121 Milano, Italy, and still
delivers every morning. Write to luca@example.com.

On 2026-05-14 at 19:30 the Harbour Quartet plays in the Old Customs House for 90 minutes. Ida Holm
and Per Lund will be there in person.

Budget review with Mara Klein and Tom Reed: 2026-02-03, 09:15, 45 minutes, by video call, no room
booked.

Order 48213 of Jonas Lindqvist: 1 oak desk at 420 EUR, 2 desk lamps at 35 EUR each and 4 drawer
handles at 6 EUR each. The 514 EUR have been paid.

Order 7719, Nordlys Hotel: 12 bath towels at 90 NOK and 6 door mats at 150 NOK. Total 1980 NOK,
invoice sent, nothing paid so far.

Subject: export crashes. Since we moved to Ledger Pro 4.2, the export to PDF ends with an error
every time. We cannot send invoices. Please call me today. Claire Dubois

Hello, is there a way to see the photos of two folders side by side in Photo Shelf 1.9? It is not
urgent. Thank you, Dr Okafor
"""
_TASKS = tuple(
    (text.replace("\n", " "), (_PERSON, _EVENT, _ORDER, _TICKET)[number // 2])
    for number, text in enumerate(_TEXTS.strip().split("\n\n"))
)

SCHEMA_PROMPTS = tuple(
    f"Extract the facts from this text as JSON with the keys {', '.join(schema['properties'])}.\n\n{text}"
    for text, schema in _TASKS
)
FORMS: dict[str, tuple[StructuredSpec, ...]] = {
    "schema": tuple(StructuredSpec("json_schema", json.dumps(schema)) for _, schema in _TASKS)
}
