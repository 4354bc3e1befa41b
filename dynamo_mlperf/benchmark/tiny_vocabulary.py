"""The words that the tiny model and the tiny catalogue share: categories, brands, plain English.

Every word here is one token of the tiny tokenizer, so a short text is a short prompt. The order is
part of the model: token ids follow it.
"""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

CATEGORIES: tuple[tuple[str, str, str], ...] = (
    ("Apparel & Accessories", "Clothing", "Shirts"),
    ("Apparel & Accessories", "Clothing", "Jackets"),
    ("Apparel & Accessories", "Shoes", "Boots"),
    ("Apparel & Accessories", "Jewelry", "Rings"),
    ("Home & Garden", "Kitchen", "Cookware"),
    ("Home & Garden", "Kitchen", "Cups"),
    ("Home & Garden", "Lighting", "Lamps"),
    ("Home & Garden", "Decor", "Vases"),
    ("Sporting Goods", "Outdoor", "Tents"),
    ("Sporting Goods", "Outdoor", "Bicycles"),
    ("Sporting Goods", "Fitness", "Weights"),
    ("Toys & Games", "Toys", "Puzzles"),
    ("Toys & Games", "Games", "Cards"),
    ("Electronics", "Audio", "Speakers"),
    ("Electronics", "Audio", "Headphones"),
    ("Electronics", "Cameras", "Lenses"),
)
"""Category paths of the tiny catalogue, three levels each, shaped like the benchmark's taxonomy."""

BRANDS: tuple[str, ...] = (
    "Alderwick", "Bluefern", "Corrany", "Dunmarsh", "Elmhollow", "Farrowlight", "Glenpeak", "Hartmoor",
    "Inkwell", "Juniper", "Kestrel", "Larkfield", "Mossgate", "Northfell", "Oakmere", "Pinecrest",
)  # fmt: skip
"""Invented brand names."""

QUALITIES: tuple[str, ...] = tuple(
    (
        "small large light heavy soft hard warm cool bright dark plain fine new old clean strong slim wide narrow "
        "round square long short deep flat smooth rough quiet quick simple modern classic vintage rustic sturdy "
        "durable compact portable folding matching striped printed woven knitted polished painted carved coated "
        "sealed padded red blue green yellow black white grey brown pink orange purple silver golden ivory olive navy "
        "cotton wool linen silk leather denim canvas steel iron copper brass glass stone ceramic wooden bamboo rubber "
        "plastic paper"
    ).split()
)
"""What a product is like: colours, materials, shapes."""

THINGS: tuple[str, ...] = tuple(
    (
        "shirt jacket boot ring pan cup lamp vase tent bicycle weight puzzle card speaker headphone lens coat dress "
        "hat scarf glove belt bag box bottle bowl plate knife spoon table chair shelf mirror clock candle pillow "
        "blanket curtain basket garden kitchen room door window wall floor lining button pocket collar sleeve handle "
        "strap cover frame wheel pedal rope pole mat ball board piece set pair pack size color fabric metal surface "
        "edge corner battery cable screen sound picture camera model style design pattern season summer winter travel "
        "office home"
    ).split()
)
"""What a product is, or has."""

DEEDS: tuple[str, ...] = tuple(
    (
        "made used worn kept sold shown packed washed stored carried opened closed turned held placed given built cut "
        "with for from into over under after before around inside outside between without every each many most some "
        "all other more less very well often always never again also only just even still both that this these those "
        "it is are was has can will may fits comes works looks feels lasts holds needs keeps makes gives takes goes "
        "day year hand side part way time place care work life friend family gift price order store shop"
    ).split()
)
"""Verbs and small words that tie the others together."""

PLAIN: tuple[str, ...] = tuple(
    (
        "the a an of to in on and or as by at be you your product products photo text title description image answer "
        "one object keys category brand path levels joined true false if second hand otherwise name no nothing else "
        "reply json look read then system user assistant"
    ).split()
)
"""Words of instructions: never sampled, but cheap to send."""
