"""What may be passed over, as both forms of it say: in Python, and in C where it is built."""

from __future__ import annotations

from dynamo_mlperf.load import pump, skim

FORMS = [skim.plain]
if pump.COMPILED is not None:
    from dynamo_mlperf.load import _pump

    FORMS.append(_pump.plain)


def plain(data: bytes) -> bool:
    """As both say; they have to agree."""
    said = [form(data) for form in FORMS]
    assert len(set(said)) == 1, (data, said)
    return said[0]
