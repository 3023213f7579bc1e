"""Turns sentence templates into text, and remembers which words of it a reader could only know from earlier on.

A template is text with `[one|another|]` for a random choice (choices nest) and `{name.attribute}` for the story's
people and things. Text produced through an `again` attribute or `Story.recall` is marked: it repeats something that the
story said before, so a model can be asked to complete it.
"""

import re

import story_words as words

CHOICE = re.compile(r"\[([^\[\]]*)\]")
ARTICLE = re.compile(r"\b([Aa]) (?=(?:\x02[A-Z])?[aeiouAEIOU](?!ne\b|ni|se))")
SENTENCE_START = re.compile(r"(?:^|(?<=[.!?] ))((?:\x02[A-Z])?\"?)([a-z])")
MARK = re.compile(r"\x02([A-Z])([^\x03]*)\x03")
RECALL_KINDS = {"N": "name", "O": "object", "P": "place", "L": "list", "W": "words"}


def mark(kind, text):
    """`text` as a recall of `kind` (a key of RECALL_KINDS)."""
    return f"\x02{kind}{text}\x03"


class Person:
    """Someone with a name; `kind` is what they are (girl, fox, baker)."""

    def __init__(self, name, gender, kind):
        self.name, self.kind = name, kind
        female = gender == "f"
        self.they, self.them, self.their = ("she", "her", "her") if female else ("he", "him", "his")
        self.theirs, self.themself = ("hers", "herself") if female else ("his", "himself")
        self.they_cap = self.they.capitalize()
        self.again = mark("N", name)

    def __str__(self):
        return self.name


class Kin:
    """A grown-up of the hero's family: `ref` in the narration (her mother), `call` in speech (Mom)."""

    def __init__(self, hero, relation, call, gender):
        other = Person(call, gender, relation)
        self.they, self.them, self.their, self.call, self.relation = other.they, other.them, other.their, call, relation
        self.ref = f"{hero.their} {relation}"

    def __str__(self):
        return self.ref


class Thing:
    """A thing with an adjective or two: `full` is "small red kite"."""

    def __init__(self, noun, *adjectives):
        self.noun, self.full = noun, " ".join([*adjectives, noun])
        self.adjectives = adjectives
        self.a, self.the = f"a {self.full}", f"the {self.full}"
        self.again = mark("O", self.full)
        self.the_again, self.a_again, self.a_cap_again = f"the {self.again}", f"a {self.again}", f"A {self.again}"

    def __str__(self):
        return self.full


class Story:
    """One story being told: its people and things by name, its paragraphs so far, and its random numbers."""

    def __init__(self, rng):
        self.rng = rng
        self.animals = self.chance(0.2)  # the people of the story are animals
        self.setting_key = "forest" if self.animals else self.pick(sorted(words.SETTINGS))
        self.setting = words.SETTINGS[self.setting_key]
        self.cast = {}  # what templates can name
        self.paragraphs = [[]]
        self.used_names = set()
        self.summary = None  # what the hero did, as said by the hero: "I found the red kite"
        self.moral = None  # a key of words.MORALS
        self.at_night = False  # the plot ends in bed already

    def pick(self, options):
        return options[int(self.rng.random() * len(options))]

    def sample(self, options, count):
        return self.rng.sample(list(options), count)

    def chance(self, probability):
        return self.rng.random() < probability

    def fill(self, template, **more):
        while "[" in template:
            template = CHOICE.sub(lambda match: self.pick(match[1].split("|")), template)
        return template.format(**(self.cast | more))

    def say(self, *variants, **more):
        """Adds one of the variants, each one or more whole sentences."""
        text = re.sub("  +", " ", self.fill(self.pick(variants), **more)).strip()
        self.paragraphs[-1].append(SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text))

    def maybe(self, probability, *variants, **more):
        if self.chance(probability):
            self.say(*variants, **more)

    def paragraph(self):
        if self.paragraphs[-1]:
            self.paragraphs.append([])

    def atmosphere(self):
        """Now and then, a sentence about what can be seen and heard there."""
        self.maybe(0.4, *self.setting["sounds"], *words.ANY_SOUNDS)

    def recall(self, text, kind="W"):
        return mark(kind, text)

    def finish(self):
        """(text, recalls): each recall is (start, end, kind) in characters of the text."""
        joined = "\n\n".join(" ".join(sentences) for sentences in self.paragraphs if sentences)
        joined = ARTICLE.sub(lambda match: match[1] + "n ", joined)
        text, recalls, position = [], [], 0
        length = 0
        for match in MARK.finditer(joined):
            before = joined[position : match.start()]
            text += [before, match[2]]
            length += len(before)
            recalls.append((length, length + len(match[2]), RECALL_KINDS[match[1]]))
            length += len(match[2])
            position = match.end()
        text.append(joined[position:])
        return "".join(text), recalls

    # People and things. No name and no adjective-noun pair is used twice in a story.

    def name_for(self, gender):
        while True:
            source = self.rng.random()
            if source < 0.25:
                ends = words.GIRL_ENDS if gender == "f" else words.BOY_ENDS
                name = self.pick(words.NAME_STARTS) + self.pick(words.NAME_MIDDLES) + self.pick(ends)
            elif source < 0.4:
                name = "".join(self.syllable() for _ in range(self.pick([1, 1, 2, 2, 3]))).capitalize()
            else:
                name = self.pick(words.GIRLS if gender == "f" else words.BOYS)
            if name not in self.used_names:
                self.used_names.add(name)
                return name

    def syllable(self):
        return self.pick(words.ONSETS) + self.pick(words.VOWELS) + self.pick(words.CODAS)

    def child(self, gender=None):
        gender = gender or self.pick("fm")
        return Person(self.name_for(gender), gender, "girl" if gender == "f" else "boy")

    def animal(self, kinds, gender=None):
        gender = gender or self.pick("fm")
        kind = self.pick([kind for kind in kinds if kind not in self.used_names] or kinds)
        self.used_names.add(kind)
        names = [name for name in words.PET_NAMES if name not in self.used_names]
        name = self.pick(names) if self.chance(0.7) else self.name_for(gender)
        self.used_names.add(name)
        return Person(name, gender, kind)

    def friend(self):
        """Another of the hero's sort: a child, or in the stories of animals an animal."""
        return self.animal(words.FOREST_ANIMALS) if self.animals else self.child()

    def helper_animal(self):
        return self.animal(words.FOREST_ANIMALS if self.animals else words.LOCAL_ANIMALS[self.setting_key])

    def neighbor(self):
        family = self.pick([name for name in words.FAMILY_NAMES if name not in self.used_names])
        self.used_names.add(family)
        gender = self.pick("fm")
        return Person(f"{'Mrs.' if gender == 'f' else 'Mr.'} {family}", gender, "neighbor")

    def thing(self, nouns, plain=False):
        noun = self.pick([noun for noun in nouns if noun not in self.used_names] or nouns)
        self.used_names.add(noun)
        color = self.pick([color for color in words.COLORS if color not in self.used_names])
        self.used_names.add(color)
        if plain or self.chance(0.5):
            return Thing(noun, color)
        look = self.pick([look for look in words.LOOKS if look != "wooden" or noun not in words.NOT_WOODEN])
        return Thing(noun, look, color)

    def spots(self, count):
        return self.sample(self.setting["spots"], count)

    def listed(self, items):
        return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
