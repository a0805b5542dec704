"""A generated text of any length, for long contexts: grammatical sentences that mean little and do not repeat.

A sentence is a pattern whose places are filled with random words and phrases; paragraphs have a topic, whose nouns
return. The text is a function of the number of words alone, so that records made with it can be reproduced. It is no
substitute for natural text where the text matters: words are drawn independently of what was said before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

DEFAULT_WORDS = 150_000  # about 170,000 tokens
_SENTENCES = range(4, 9)  # of a paragraph

_TOPICS = {
    "workshop": "lathe bench file clamp gauge drill spindle vice chisel rule apprentice mechanic blueprint bearing",
    "harbour": "quay ferry mooring crane tide pilot buoy warehouse lighthouse dredger cargo anchor sailor channel",
    "observatory": "telescope dome lens star catalogue eclipse astronomer meridian clock comet plate horizon orbit",
    "archive": "ledger shelf catalogue letter clerk index envelope map registrar signature folder stamp margin",
    "orchard": "apple ladder basket graft hedge frost gardener branch cellar press blossom wall crate harvest",
    "railway": "signal platform timetable engine carriage porter junction tunnel whistle ticket bridge points guard",
    "kitchen": "kettle oven recipe flour cook table knife spoon pantry stove bread bowl window apron",
    "laboratory": "flask balance thermometer burner crystal sample chemist notebook valve scale magnet current prism",
    "school": "slate teacher lesson pupil corridor bell ruler blackboard question exercise compass essay lamp",
    "valley": "river mill path meadow stone farmer fence hill flood weir boat willow ford village",
}
_WORDS = {
    "adjective": "old narrow patient careful bright uneven familiar borrowed second broken quiet heavy distant modest "
    "accurate doubtful plain crooked ordinary slow stubborn generous faded empty painted reliable curious wooden",
    "adverb": "slowly twice carefully seldom almost gladly soon again rarely quietly often suddenly patiently badly "
    "exactly once evenly promptly",
    "verb": "measured carried repaired mislaid counted described lifted compared moved opened painted sold borrowed "
    "cleaned followed ordered weighed copied explained replaced praised doubted finished inherited",
    "noun": "reason answer mistake number season promise habit rumour debt silence method journey visitor agreement "
    "error pattern story neighbour morning winter",
    "name": "Amara Bruno Celeste Dmitri Elspeth Farid Greta Hanno Ilse Jonas Kamala Ludo Mirela Nadir Odile Pascal "
    "Quentin Rosa Stellan Tamsin Ulla Viktor Wanda Xenia Yusuf Zora",
    "place": "upstairs outside nearby downstream indoors elsewhere overhead abroad",
    "unit": "inches minutes pounds paces degrees pages coins hours yards ounces",
    "connective": "because although while until unless after before since",
}
_PATTERNS = (
    "{Name} {verb} the {adjective} {topic} before the {topic} was {verb}.",
    "Nobody had {verb} the {topic}, and the {noun} was {adverb} {verb}.",
    "The {topic} beside the {topic} was {number} {unit} long, which {name} {adverb} {verb}.",
    "It was a {adjective} {noun}, {connective} the {topic} could not be {verb} {place}.",
    "When the {adjective} {topic} had been {verb}, {name} and {name} went {place}.",
    "There were {number} {unit} between one {topic} and the next, and each {topic} was {adjective}.",
    '"The {topic} is {adjective}," said {name}, who had {adverb} {verb} the {noun}.',
    "Every {noun} that {name} {verb} had something to do with the {adjective} {topic}.",
    "{Name} asked whether the {topic} or the {topic} was more {adjective}, and {verb} both.",
    "After {number} {unit} the {noun} was {adjective}, {connective} {name} {verb} the {topic} {adverb}.",
    "The {adjective} {topic}, the {topic} and the {adjective} {noun} were {verb} {place}.",
    "Not one {topic} in {number} was {adjective}, and still {name} {verb} it.",
    "If the {topic} is {verb} {adverb}, the {noun} becomes {adjective}.",
    "From the {topic} to the {topic} it was {number} {unit}, as {name} had {verb}.",
    "They {verb} the {topic} {adverb}, {connective} a {adjective} {noun} had been {verb} {place}.",
    "What {name} called a {noun} was only a {adjective} {topic} that somebody had {verb}.",
)


def generated_text(words: int = DEFAULT_WORDS) -> str:
    """Return a generated text of at least so many words; a shorter text is the beginning of a longer one.

    Args:
        words: The number of words.

    Returns:
        The text: paragraphs of sentences, none of which occurs twice.

    Example:
        >>> text = generated_text(500)
        >>> len(text.split()) >= 500 and generated_text(1000).startswith(text)
        True
        >>> text.split(".")[0]
        '"The pupil is accurate," said Kamala, who had exactly compared the silence'
    """
    draw = random.Random(0)
    choices = {key: tuple(value.split()) for key, value in _WORDS.items()}
    topics = [tuple(value.split()) for value in _TOPICS.values()]
    seen: set[str] = set()
    paragraphs: list[str] = []
    count = 0
    while count < words:
        nouns, sentences = _pick(draw, topics), []
        for _ in range(_pick(draw, _SENTENCES)):
            sentence = _sentence(draw, choices, nouns)
            while sentence in seen:
                sentence = _sentence(draw, choices, nouns)
            seen.add(sentence)
            sentences.append(sentence)
        paragraphs.append(" ".join(sentences))
        count += len(paragraphs[-1].split())
    return "\n\n".join(paragraphs)


def _sentence(draw: random.Random, choices: dict[str, tuple[str, ...]], nouns: tuple[str, ...]) -> str:
    """Return a random pattern whose places are filled with random words."""

    def fill(place: re.Match[str]) -> str:
        key = place[1].lower()
        if key == "number":
            return str(2 + int(draw.random() * 98))
        return _pick(draw, nouns if key == "topic" else choices[key])

    sentence = re.sub(r"\{(\w+)\}", fill, _pick(draw, _PATTERNS))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)


def _pick(draw: random.Random, items: Sequence[T]) -> T:
    """Return a random item; by `random()` alone, whose numbers are the same in every version of Python."""
    return items[int(draw.random() * len(items))]
