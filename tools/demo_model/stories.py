#!/usr/bin/env python3
"""Writes short stories for the demo model to learn from: `python stories.py --count 3 --seed 7`.

A story is an opening, one plot out of many, and a closing, told in a setting whose parts fit together. Small threads (a
keepsake, a pet, a promise) start in the opening and come back in the closing. `generate(seed)` gives the text and the
places where it repeats what only the story itself can tell; see story_engine.py.
"""

import argparse
import random

import story_plots_days
import story_plots_people
import story_plots_things
import story_plots_wonders
import story_words as words
from story_engine import Kin, Story

PLOTS = story_plots_things.PLOTS + story_plots_people.PLOTS + story_plots_wonders.PLOTS + story_plots_days.PLOTS
RELATIONS = [("mother", "Mom", "f"), ("father", "Dad", "m"), ("grandmother", "Grandma", "f"), ("grandfather", "Grandpa", "m"),
             ("aunt", "Auntie", "f"), ("uncle", "Uncle", "m")]
DAYS = ["one [sunny|windy|cloudy|warm|cold|bright|quiet] [morning|day|afternoon]", "one day", "one [spring|summer|autumn] [morning|day]",
        "one morning", "one afternoon", "one Saturday", "one Sunday morning"]

OPENINGS = [
    "Once upon a time, there was a {trait} [little |] {h.kind} named {h} who lived {at_home}.",
    "Once upon a time, there was a [little |] {h.kind} named {h}. {h} lived {at_home} with {k}.",
    "Once upon a time, {at_home}, there lived a {trait} {h.kind} named {h}.",
    "Once upon a time, a {trait} [little |] {h.kind} named {h} lived {at_home} with {k}.",
    "Once upon a time there lived a {h.kind} whose name was {h}. {h.they} lived {at_home}.",
    "There once was a {trait} {h.kind} called {h}, who lived {at_home}.",
    "{h} was a {trait} [little |] {h.kind} who lived {at_home} with {k}.",
    "{h} lived {at_home}. {h.they} was a {trait} {h.kind}.",
    "{h} was [five|six|seven|eight] years old and lived {at_home} with {k}. Everybody knew what a {trait} {h.kind} {h.they} was.",
    "{h} the {h.kind} lived {at_home} with {k}.",
    "{h} was a {trait} [little |] {h.kind}.",
    "{at_home} lived a [little |] {h.kind} named {h}.",
    "Far away, {at_home}, lived a {trait} {h.kind} named {h} and {k}.",
    "Long ago, {at_home}, there was a {trait} {h.kind} named {h}.",
    "This is the story of {h}, a {trait} {h.kind} who lived {at_home}.",
    "A [little |] {h.kind} named {h} lived with {k} {at_home}.",
    "There was a {h.kind} named {h}. {h} was the most {trait} {h.kind} you could imagine, and {h.they} lived {at_home}.",
]
# These begin in the middle of the day, so the plot goes on with "that day" instead of "one day".
DAY_OPENINGS = [
    "One day, a [little |] {h.kind} named {h} [woke up very early|was sitting by the window|was helping {k}|had nothing to do]. {h.they} lived {at_home}.",
    "One day, a {trait} {h.kind} named {h} [looked outside and smiled|wanted to have an adventure]. {h} lived {at_home}.",
    "One day, {h}, a {trait} {h.kind} who lived {at_home}, [woke up very early|looked up at the clouds|was in a very good mood].",
    "One morning, a {h.kind} named {h} woke up {at_home}. [The sun was already high.|It was a beautiful day.|{h.they} felt that something would happen.]",
    "It was a [sunny|windy|rainy|quiet] day, and a [little |] {h.kind} named {h} [was looking out of the window|had just finished breakfast]. {h.they} lived {at_home}.",
    "It was early in the morning, and {h} was already awake. {h} was a {trait} {h.kind} who lived {at_home}.",
]
HOBBY_LINES = ["{h.they} was never bored, because {h.they} loved to {hobby}.", "Whenever there was time, {h.they} liked to {hobby}.",
               "Nobody could {hobby} like {h}.",
               "{h.they} loved to {hobby}.", "Every day, {h.they} liked to {hobby}.", "{h} liked to {hobby}, and {h.they} was good at it.",
               "Most of all, {h} liked to {hobby}."]
LAST_LINES = ["{h} fell asleep with a smile.", "And {h} slept very well that night.", "Soon {h} was fast asleep.", "{h} yawned and closed {h.their} eyes.",
              "The stars came out, and all was quiet.", "The moon looked in at the window, and all was well."]


def open_story(s):
    gender = s.pick("fm")
    hero = s.animal(words.FOREST_ANIMALS, gender) if s.animals else s.child(gender)
    kin = Kin(hero, *s.pick(RELATIONS[:4] if s.chance(0.85) else RELATIONS[4:]))
    home = s.pick(["in a hollow tree", "in a cozy burrow", "in a little house under the roots of an oak",
                   "in a deep green forest", "in a den near the stream", "at the edge of the woods"] if s.animals else s.setting["homes"])
    starts_today = s.chance(0.25)
    s.cast |= dict(h=hero, k=kin, at_home=home, trait=s.pick(words.TRAITS), hobby=s.pick(words.HOBBIES),
                   place=s.pick(s.setting["places"]), way=s.setting["way"])
    day = s.pick(["that day", "that same day", "that morning, after breakfast", "later that day"] if starts_today else DAYS)
    s.cast |= dict(day_low=s.fill(day))
    s.cast["day"] = s.cast["day_low"]  # sentences are capitalised when they are added
    if not starts_today and s.chance(0.06):
        return  # the plot begins at once
    s.say(*(DAY_OPENINGS if starts_today else OPENINGS))
    s.maybe(0.55, *HOBBY_LINES)


def open_thread(s):
    """Starts a thread, or none, and returns what closes it."""
    kind = s.pick(["none", "none", "keepsake", "pet", "promise", "wish"])
    if kind == "keepsake":
        o = s.thing(words.KEEPSAKES)
        giver = s.pick(["grandmother", "grandfather", "big sister", "big brother", "teacher", "cousin"])
        if giver == s.cast["k"].relation:
            giver = "oldest friend"
        s.cast |= dict(t=o, giver=giver, giver_again=s.recall(giver))
        s.say("{h.they} always carried {t.a} for good luck. {h.their} {giver} had given it to {h.them}.", "Around {h.their} neck {h.they} wore a little bag with {t.a} in it, a gift from {h.their} {giver}.")
        return ["That night, {h} put {t.the_again} [under {h.their} pillow|next to {h.their} bed] and thought of {h.their} {giver_again}.",
                "\"You did bring me luck,\" {h} whispered to {t.the_again} that {h.their} {giver_again} had given {h.them}."]
    if kind == "pet" and not s.animals:
        pet = s.animal(sorted(words.PETS))
        s.cast |= dict(pet=pet, pet_kind=s.recall(pet.kind), pet_act=s.fill(words.PETS[pet.kind], p=pet))
        s.say("{h.they} had a {pet.kind} named {pet}, who [waited for {h.them} every day|slept at the foot of {h.their} bed].", "With {h.them} lived a {pet.kind} called {pet}, who [liked to sleep in the sun|was always hungry].")
        return ["When {h} came home, {pet.again} the {pet_kind} [was waiting at the door|came to meet {h.them}] and {pet_act}.", "At home, {h} told {pet.again} all about it, and {pet.again} {pet_act}."]
    if kind == "promise":
        until = s.pick(["the sun went down", "the bell rang six times", "supper was on the table", "the first star came out", "the lamps were lit"])
        s.cast |= dict(until=until, until_again=s.recall(until))
        s.say("{h.they} could go wherever {h.they} liked, as long as {h.they} was home before {until}.", "There was only one rule. {h} had to be home before {until}.")
        return ["{h} was home before {until_again}, just as {h.they} had promised.", "And {h.they} got home just before {until_again}."]
    if kind == "wish":
        wish = s.pick(["see the ocean from a mountain", "ride on a white horse", "fly like a swallow", "learn to play the violin", "build a house in a tree", "swim across the lake", "write a book"])
        s.cast |= dict(wish=wish, dream=s.recall(wish))
        s.say("{h.their} biggest dream was to {wish}.", "One day {h.they} wanted to {wish}.")
        return ["That night {h} dreamed that {h.they} could {dream}.", "\"And one day,\" {h} said to the moon, \"I will {dream}.\""]
    return None


def second_day(s, first_plot):
    """Another plot for the same hero, on another day."""
    s.paragraph()
    s.say("That was not the only thing that happened to {h} that year.", "But {h} did not stay quiet for long.",
          "You might think that this is the end of the story, but it is not.", "{h} was happy, and the days went by.",
          "Not long after that, something else happened.")
    s.cast["day"] = s.cast["day_low"] = s.fill("[a few days later|one day the next week|the next Sunday|one day, when it was almost summer|the very next morning|one evening]")
    s.setting = s.setting | {"spots": [spot for spot in s.setting["spots"] if spot not in s.cast.values()]}
    s.pick([plot for plot in PLOTS if plot is not first_plot])(s)


def close_story(s, thread_end):
    s.paragraph()
    s.cast |= dict(summary=s.summary, summary_cap=s.summary[0].upper() + s.summary[1:], lesson=s.pick(words.MORALS[s.moral]))
    ending = s.pick(["moral", "short", "years"] + ([] if s.at_night else ["bedtime", "bedtime", "both"]))
    if ending in ("bedtime", "both"):
        s.say("At bedtime, {k} asked, \"What did you do today, {h.again}?\" \"{summary_cap},\" said {h}.",
              "\"How was your day?\" asked {k} [that evening|at bedtime]. {h} told {k.them} everything. \"{summary_cap},\" {h.they} said.",
              "\"Tell me something nice,\" said {k} when it was time for bed. {h} thought about it. \"{summary_cap},\" {h.they} said.")
    if ending in ("moral", "both"):
        s.say("[From that day on|After that], {h} [knew|never forgot] that {lesson}.", "\"{lesson_cap},\" said {k}, and {h} [nodded|agreed].",
              "And that is how {h} learned that {lesson}.", lesson_cap=s.cast["lesson"][0].upper() + s.cast["lesson"][1:])
    if thread_end:
        s.say(*thread_end)
    elif ending in ("bedtime", "short"):
        s.say(*LAST_LINES)
    if ending == "years":
        s.say("Years later, {h} still liked to tell the story. \"{summary_cap},\" {h.they} would always [begin|say].",
              "{h} never forgot that day. \"{summary_cap},\" {h.they} [told everyone|liked to say].")
    s.maybe(0.2, "The end.")


def generate(seed):
    """(text, recalls) of the story with this seed; recalls are (start, end, kind) in characters."""
    s = Story(random.Random(seed))
    open_story(s)
    plot = s.pick(PLOTS)
    thread_end = open_thread(s) if s.paragraphs[0] else None
    if s.chance(0.8):
        s.paragraph()
    plot(s)
    if s.chance(0.15):
        second_day(s, plot)
    close_story(s, thread_end)
    return s.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show-recalls", action="store_true", help="put the recalled words between « and »")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        text, recalls = generate(seed)
        if arguments.show_recalls:
            for start, end, _ in reversed(recalls):
                text = f"{text[:start]}«{text[start:end]}»{text[end:]}"
        print(text, end="\n\n---\n\n")


if __name__ == "__main__":
    main()
