"""What the forms of a run's page say, as messages of the protocol."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from fastapi import Request
from gradwire_protocol.codecs import CATALOGUE, Number
from gradwire_protocol.errors import MalformedError
from gradwire_protocol.messages import SetRequest
from gradwire_protocol.plans import PlanSpec, validate_plan
from msgspec.structs import replace

from gradwire_server.answers import read_body

# The longest form is a reason of the longest text, percent-encoded from UTF-8.
MAX_FORM_BYTES = 32 * 1024

Form = Mapping[str, str]


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form; of repeated ones the last.

    Raises:
        ServiceError, ProtocolError: The body is too large or does not arrive.
    """
    body = await read_body(request.scope, request.receive, MAX_FORM_BYTES)
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def set_request(form: Form, present: PlanSpec) -> SetRequest:
    """Return the change that a form asks for: codec and parameters are the form's, the rest of the plan stays.

    Args:
        form: Fields `codec`, `CODEC.PARAMETER`, `revision`, `model` and `reason`.
        present: The plan in use, whose exemptions and warm-up are kept.

    Raises:
        MalformedError: A field is missing, not a number, or out of its range.
    """
    codec = form.get("codec", "")
    plan = replace(present, codec=codec, parameters=_parameters(form, codec), force=False)
    return SetRequest(
        plan=validate_plan(plan),
        revision=whole(form.get("revision", ""), field="revision"),
        model=form.get("model", "model"),
        reason=form.get("reason", "").strip(),
    )


def _parameters(form: Form, codec: str) -> dict[str, Number]:
    spec = CATALOGUE.get(codec)
    values: dict[str, Number] = {}
    for parameter in spec.parameters if spec else ():
        text = form.get(f"{codec}.{parameter.name}")
        if text is not None:
            values[parameter.name] = _number(text, parameter.kind, field=f"{codec}.{parameter.name}")
    return values


def _number(text: str, kind: str, *, field: str) -> Number:
    if kind == "int":
        return whole(text, field=field)
    try:
        return float(text)
    except ValueError as error:
        raise MalformedError(f"{field} is {text[:40]!r}; wanted: a number", field=field) from error


def whole(text: str, *, field: str) -> int:
    """Return a field as a whole number.

    Raises:
        MalformedError: It is none.
    """
    try:
        return int(text)
    except ValueError as error:
        raise MalformedError(f"{field} is {text[:40]!r}; wanted: a whole number", field=field) from error


def confirmed_fields(form: Form) -> list[tuple[str, str]]:
    """Return the fields that the confirmation sends along, those of the chosen codec alone."""
    codec = form.get("codec", "")
    wanted = ("codec", "revision", "model", "reason")
    return [(name, value) for name, value in form.items() if name in wanted or name.startswith(f"{codec}.")]
